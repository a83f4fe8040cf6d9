"""The messages of a pool of bundles (`agileml.core.pool`), except pulls and pushes (`messages`)."""

from __future__ import annotations

from dataclasses import dataclass

from straggler.coverage import Units


@dataclass(frozen=True)
class DrawBundle:
    """Worker to the owner of partition 0: which bundle is the next for me, the `number`-th of this epoch (from 0)?

    `wants`: a clock and a bundle of it that this worker was computing, or had computed, under the view before; or none.
    """

    epoch: int
    number: int
    wants: tuple[tuple[int, Units], ...] = ()


@dataclass(frozen=True)
class BundleDrawn:
    """The answer to a `DrawBundle`, always the same: the bundle is this worker's alone in its epoch."""

    epoch: int
    number: int
    clock: int
    bundle: Units
