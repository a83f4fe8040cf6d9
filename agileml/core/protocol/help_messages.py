"""The messages of workers that help each other, to each other and to servers (`agileml.core.node.help.helping`)."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.application import Array
from straggler.flexrr.protocol import (
    BegunHelping,
    CancelAck,
    CancelHelp,
    DoThis,
    HelpCompleted,
    ProgressReport,
)


@dataclass(frozen=True)
class HelpMessage:
    """Between workers: the progress of a worker, and the units that it computes for another. Workers are numbered in
    the order of the view's share."""

    epoch: int
    body: ProgressReport | DoThis | BegunHelping | HelpCompleted | CancelHelp | CancelAck


@dataclass(frozen=True)
class HelpPull:
    """As `Pull`, for units that a worker has given away: sent by the helper, or by the worker that takes them back.
    `task` is a number of the sender's."""

    epoch: int
    partition: int
    clock: int
    rows: tuple[Array | None, ...]
    task: int


@dataclass(frozen=True)
class HelpParams:
    """Server to worker: the blocks that a `HelpPull` asked for."""

    epoch: int
    partition: int
    clock: int
    task: int
    blocks: tuple[Array, ...]


@dataclass(frozen=True)
class HelpOver:
    """Server to worker: the clock of a `HelpPull` is done everywhere."""

    epoch: int
    partition: int
    clock: int
    task: int
