"""The events that the controller receives: one class for each thing that happens, whichever source reports it."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.core.protocol.messages import Failure, Message
from agileml.core.protocol.view import CutId
from agileml.events.terms import Loss, Tier


@dataclass(frozen=True)
class NodeUp:
    """A machine's process runs. `admitted`: it may become a member as soon as it is ready. `capacity`: how much it can
    compute, relative to other machines: its cores, or its GPUs. `deadline_s`: of a preemption notice that came before
    this, while its process started, or to an earlier controller."""

    node: str
    tier: Tier
    admitted: bool
    capacity: float = 1.0
    deadline_s: float | None = None


@dataclass(frozen=True)
class NodeDown:
    """A machine's process is gone for good."""

    node: str
    loss: Loss
    detail: str = ""


@dataclass(frozen=True)
class NodeFailed:
    """A machine's process could not start. up: the machine that it would have been. failure: the reason."""

    up: NodeUp
    failure: Failure


@dataclass(frozen=True)
class NodeLost:
    """A machine does not answer: it is dead, frozen or cut off. It counts as alive again when it is seen."""

    node: str
    loss: Loss
    detail: str = ""


@dataclass(frozen=True)
class NodeSeen:
    """A machine answers on the connection to it, though it may be too busy to send its status."""

    node: str


@dataclass(frozen=True)
class Measured:
    """A machine reports its totals at `at_s` of its own clock: bytes received as parameters (`pulled`), updates
    (`pushed`) and parts of cuts (`cut`), seconds that its worker computed, waited for its pushes (`push_s`) and waited
    in all (`wait_s`: for parameters, pushes and sums), and units that it computed in `units_s` seconds. `compute_s` has
    also what is under way."""

    node: str
    at_s: float
    pulled: int
    pushed: int
    cut: int
    compute_s: float
    push_s: float
    wait_s: float = 0.0
    units: int = 0
    units_s: float = 0.0


@dataclass(frozen=True)
class Admit:
    """A machine may become a member: its market, or the plan, has admitted it. `capacity`: as `NodeUp` has it, if that
    is known better by now."""

    node: str
    capacity: float | None = None


@dataclass(frozen=True)
class Notice:
    """A preemption notice: this machine will be taken away at `deadline_s`. It is final: no cloud withdraws one, nor
    does Ray undo a drain. A repeat changes nothing unless its deadline is sooner."""

    node: str
    deadline_s: float


@dataclass(frozen=True)
class Received:
    """A node sent a message."""

    sender: str
    message: Message


@dataclass(frozen=True)
class Persisted:
    """The record with this number is durable."""

    number: int


@dataclass(frozen=True)
class Superseded:
    """Another controller wrote the record with this number first."""

    number: int


@dataclass(frozen=True)
class Sealed:
    """The manifest of the checkpoint is written, so a restart will find it."""

    name: CutId


@dataclass(frozen=True)
class SealFailed:
    """The checkpoint's manifest could not be written."""

    name: CutId
    reason: str


@dataclass(frozen=True)
class StepsWritten:
    """The driver has written to the log the first `steps` steps of a partition on this timeline."""

    partition: int
    timeline: int
    steps: int


@dataclass(frozen=True)
class Stop:
    """End the run before its last clock: with the next cut, or at `deadline_s` with the newest committed one."""

    deadline_s: float | None = None

    def sooner(self, other: Stop) -> Stop:
        """The same with the earlier of both deadlines."""
        there = [each for each in (self.deadline_s, other.deadline_s) if each is not None]
        return Stop(min(there, default=None))


@dataclass(frozen=True)
class CutJudged:
    """The held cut at `clock` is kept elsewhere, or not worth it: the next one may be named. May be repeated."""

    clock: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


ControllerInput = (
    NodeUp
    | NodeDown
    | NodeFailed
    | NodeLost
    | NodeSeen
    | Measured
    | Admit
    | Notice
    | Received
    | Persisted
    | Superseded
    | Sealed
    | SealFailed
    | StepsWritten
    | Stop
    | CutJudged
    | Tick
)
