"""The protocol of FlexRR's workers: parameters, messages, events, commands (thesis 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FlexRrParameters:
    """Table 3.1 and the text; shares are of one iteration's units."""

    group_size: int = 4
    initial: float = 0.025
    follow_up: float = 0.05
    checks: int = 100
    threshold: float = 0.20
    checkpoint: float = 0.75
    # The share of a helpee's items that its helpers hold: only the tail can be given away (3.4.5).
    replication: float = 1.0
    # Weight of the latest iteration in the average time per iteration (the thesis names none).
    average_weight: float = 0.5
    # Silence after which the helpee asks again about a range.
    resend_ns: int = 500_000_000

    def __post_init__(self) -> None:
        if self.group_size < 0 or self.checks < 1 or self.resend_ns < 1:
            raise ValueError(
                f"group_size {self.group_size}, checks {self.checks}, resend_ns {self.resend_ns}: "
                "expected at least 0, 1 and 1"
            )
        for name in ("initial", "follow_up", "threshold", "checkpoint", "replication", "average_weight"):
            value = getattr(self, name)
            if not 0 < value <= (1 if name != "threshold" else math.inf):
                raise ValueError(f"{name} is {value}; expected a share above 0 and at most 1")

    def first_replicated(self, units: int) -> int:
        """The first of a helpee's units whose items its helpers hold."""
        return math.ceil((1 - self.replication) * units - 1e-9)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Units [start, stop) of `owner`'s share of a clock: computed by one worker, counted as a whole."""

    clock: int
    owner: int
    start: int
    stop: int


# --- messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The sender's progress in iterations (4.75: three quarters of iteration 4) at `timer_ns`."""

    progress: float
    timer_ns: int


@dataclass(frozen=True, slots=True)
class DoThis:
    """Please compute this range; `timestamp` is unique and grows at its owner."""

    bundle: Bundle
    timestamp: int


@dataclass(frozen=True, slots=True)
class BegunHelping:
    """The helper started on it."""

    assignment: DoThis


@dataclass(frozen=True, slots=True)
class HelpCompleted:
    """The helper pushed its result."""

    assignment: DoThis


@dataclass(frozen=True, slots=True)
class CancelHelp:
    """Leave this assignment if it is not begun, and all others of mine up to `timestamp`."""

    assignment: DoThis
    timestamp: int


@dataclass(frozen=True, slots=True)
class CancelAck:
    """The answer: `begun` says that the helper is at work on it and will complete it."""

    assignment: DoThis
    begun: bool


Message = ProgressReport | DoThis | BegunHelping | HelpCompleted | CancelHelp | CancelAck

# --- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartClock:
    """The consistency policy lets this worker begin a clock, with `units` units of its own.

    `first`: the first of them in the clock, where ranges are to start at multiples of a power of two, so that the sums
    of a range are few; None: anywhere.
    """

    clock: int
    units: int
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A message check: `done` units of the present `Compute` are finished."""

    done: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The present `Compute` is finished."""


@dataclass(frozen=True, slots=True)
class AllCounted:
    """All units of all clocks up to this one are counted: nothing of them is left to compute or to ask about."""

    clock: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of a peer, taken up at a check (at once by a worker that computes nothing)."""

    sender: int
    message: Message


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer is gone; the rest of its share is dealt out anew (`Redo`)."""

    worker: int


@dataclass(frozen=True, slots=True)
class Redo:
    """Units of a worker that left, now this worker's to compute, before anything else."""

    bundles: tuple[Bundle, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of a `WakeAt` has come."""


Event = StartClock | Progress | TaskDone | AllCounted | Received | PeerLeft | Redo | Tick

# --- commands --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer."""

    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute these units now, instead of anything else; what was done of the latter stays done."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Cut:
    """The range being computed now ends earlier: its tail was given away."""

    stop: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Compute nothing: wait."""


@dataclass(frozen=True, slots=True)
class Push:
    """Contribute the result of this bundle."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Discard:
    """Throw away the results of this bundle: a helper computes it."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class ClockDone:
    """All units of this worker's share of the clock are pushed, by itself or by helpers."""

    clock: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Come back with a `Tick` at this time."""

    at_ns: int


Command = Send | Compute | Cut | Stop | Push | Discard | ClockDone | WakeAt
