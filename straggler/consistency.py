"""When a worker may start a clock and the version that it reads: BSP, SSP, ASP and ElasticBSP as policy objects.

A partition has version v when exactly the clocks < v have been applied to it (thesis 2.2). A policy answers a
worker that wants to start clock t from a partition of version v. It knows nothing of messages or machines.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from straggler.elasticbsp import Objective


class Read(Enum):
    """The answer to a worker that asks for the parameters of a clock."""

    WAIT = "wait"  # not yet: too old
    CURRENT = "current"  # the newest version
    PREVIOUS = "previous"  # the version before the newest, which is kept for redone work
    BEHIND = "behind"  # that clock is done everywhere: go to the next


class Consistency(Protocol):
    """A consistency model, as the engine uses it."""

    @property
    def slack(self) -> int | None:
        """The most clocks a worker may be ahead of a partition's version; None: without bound."""

    @property
    def applies_on_arrival(self) -> bool:
        """True when a contribution changes the parameters at once, False when its whole clock does."""

    @property
    def keeps_previous(self) -> bool:
        """True when a redone clock must read exactly the version that its first run read."""

    def read(self, clock: int, version: int, *, has_previous: bool) -> Read:
        """Answer a worker that wants to start `clock` from a partition of `version`."""


@dataclass(frozen=True)
class Bsp:
    """Bulk synchronous: clock t reads exactly version t. Redone work reads the kept version before."""

    slack: int = 0
    applies_on_arrival: bool = False
    keeps_previous: bool = True

    def read(self, clock: int, version: int, *, has_previous: bool) -> Read:
        if clock > version:
            return Read.WAIT
        if clock == version:
            return Read.CURRENT
        # A kept previous version says that this clock may still be open at another partition.
        return Read.PREVIOUS if clock == version - 1 and has_previous else Read.BEHIND


@dataclass(frozen=True)
class Ssp:
    """Stale synchronous (thesis 2.2): clock t reads version t - slack or newer; slack >= 1."""

    slack: int
    applies_on_arrival: bool = False
    keeps_previous: bool = False

    def read(self, clock: int, version: int, *, has_previous: bool) -> Read:
        if clock - self.slack > version:
            return Read.WAIT
        # While clock t is open at some partition others may have t + slack complete: all that waits for t there
        # is applied at once with the last bundle of t. So versions differ by up to slack + 1.
        return Read.CURRENT if clock >= version - 1 - self.slack else Read.BEHIND


@dataclass(frozen=True)
class Asp:
    """Asynchronous: no worker waits; every contribution is applied when it arrives."""

    slack: None = None
    applies_on_arrival: bool = True
    keeps_previous: bool = False

    def read(self, clock: int, version: int, *, has_previous: bool) -> Read:
        # Clocks run apart without bound, but a worker goes on only when all partitions have what it did.
        return Read.CURRENT


@dataclass(frozen=True)
class Elastic:
    """ElasticBSP (Zhao et al., 2019): inside a superstep as ASP; at its end all workers meet.

    A superstep gives each worker between one minibatch and `range` of them, chosen by `objective`
    (`elasticbsp.zipline`). It ends at a position in the order of all minibatches, not at a clock, so the clock alone
    never makes a reader wait.
    """

    range: int = 15
    objective: Objective = "rate"
    slack: None = None
    applies_on_arrival: bool = True
    keeps_previous: bool = False

    def read(self, clock: int, version: int, *, has_previous: bool) -> Read:
        return Read.CURRENT


def consistency(kind: str, slack: int = 0) -> Consistency:
    """Build the policy a config names: `bsp`, `ssp` with its slack, or `asp`. SSP of slack 0 is BSP."""
    if kind == "bsp" or (kind == "ssp" and slack == 0):
        return Bsp()
    if kind == "ssp" and slack > 0:
        return Ssp(slack)
    if kind == "asp":
        return Asp()
    raise ValueError(f"consistency {kind!r} with slack {slack} is none of bsp, ssp (slack >= 0), asp")
