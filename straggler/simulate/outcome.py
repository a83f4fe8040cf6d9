"""The inputs of a simulation besides its workers, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from straggler.flexrr.protocol import Bundle


@dataclass(frozen=True)
class Network:
    """Messages take `delay_s` (half to one and a half of it); peers' are lost with probability `loss`.

    Messages to and from the server are sent again after `resend_s` until they arrive.
    """

    delay_s: float = 0.001
    loss: float = 0.0
    resend_s: float = 0.05

    def __post_init__(self) -> None:
        if not (0 <= self.delay_s < math.inf and 0 <= self.loss < 1 and 0 < self.resend_s < math.inf):
            raise ValueError(
                f"{self}: expected a delay of at least 0, a loss below 1, and a positive resend_s"
            )


@dataclass(frozen=True)
class Departure:
    """A worker goes at a time: with notice it pushes what it has done, without it is missed `detect_s` later."""

    worker: int
    at_s: float
    notice: bool = False
    detect_s: float = 0.3


@dataclass(frozen=True)
class Counted:
    """A contribution that was counted: its worker, and the times of its read and of its arrival."""

    bundle: Bundle
    worker: int
    read_ns: int
    arrived_ns: int


@dataclass
class Outcome:
    """The cost of a run. Times in s; `waiting_s`: of all workers together, with nothing to compute."""

    total_s: float = 0.0
    units: int = 0
    moved_units: int = 0  # computed by a helper
    redone_units: int = 0  # dealt out anew after their owner left
    waiting_s: float = 0.0
    worker_s: float = 0.0  # of all workers, while they were there
    refused: int = 0  # contributions that were there already, or of workers that had left
    supersteps: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    log: list[Counted] = field(default_factory=list)
    completed_ns: list[int] = field(default_factory=list)  # of each clock

    @property
    def waiting_share(self) -> float:
        """Of the time of all workers that were there."""
        return self.waiting_s / self.worker_s

    @property
    def moved_share(self) -> float:
        """Of all units."""
        return self.moved_units / self.units
