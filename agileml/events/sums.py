"""Events of a run that sum up others, and its present state: the log of a long run consists of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class ClocksDone:
    """Clocks `first` to `clock`, counted from 1, are complete, as one line of a run that is no longer young.

    `loss`: the mean over the examples of all of them, over the clocks where they count no examples; `seconds`: they
    took so long together, the longest `longest_s`.
    """

    kind: ClassVar = "clocks"
    first: int
    clock: int
    loss: float
    examples: int
    seconds: float
    longest_s: float


@dataclass(frozen=True)
class CutsCommitted:
    """`count` cuts became durable, the last one that of `clock`; they took `travel_s` on average."""

    kind: ClassVar = "cuts"
    count: int
    clock: int
    travel_s: float


@dataclass(frozen=True)
class Standing:
    """The progress of the run: `clock` of `clocks` are complete; `spent_usd` null: no market."""

    kind: ClassVar = "standing"
    clock: int
    clocks: int
    loss: float | None
    stage: int
    reliable: int
    transient: int
    note: str
    spent_usd: float | None
