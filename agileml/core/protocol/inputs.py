"""What the controller is told: one class for each thing, whatever its source."""

from __future__ import annotations

from dataclasses import dataclass

from agileml.core.protocol.messages import Message
from agileml.core.protocol.view import CutId
from agileml.events.terms import Loss, Tier


@dataclass(frozen=True)
class NodeUp:
    """A machine's process runs. `admitted`: it may become a member as soon as it is ready."""

    node: str
    tier: Tier
    allocation: str
    admitted: bool


@dataclass(frozen=True)
class NodeDown:
    """A machine's process is gone for good: its connection closed, or its host said so."""

    node: str
    loss: Loss
    detail: str = ""


@dataclass(frozen=True)
class NodeLost:
    """A machine does not answer. It may be dead or frozen, or cut off: should it speak again, it is back."""

    node: str
    loss: Loss
    detail: str = ""


@dataclass(frozen=True)
class NodeSeen:
    """A machine is there, though it may be too busy to send its status."""

    node: str


@dataclass(frozen=True)
class Measured:
    """A machine is there; by its clock `at_s` it had received so many bytes of parameters, updates and parts of cuts,
    and its worker had computed, and waited for its pushes, for so many seconds."""

    node: str
    at_s: float
    pulled: int
    pushed: int
    cut: int
    compute_s: float
    push_s: float


@dataclass(frozen=True)
class Admit:
    """This machine may become a member."""

    node: str


@dataclass(frozen=True)
class Notice:
    """This machine will be taken away at `deadline_s`. A second copy is a no-op, a sooner deadline is not."""

    node: str
    deadline_s: float


@dataclass(frozen=True)
class NoticeCancelled:
    """It will not be taken away after all."""

    node: str


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
    """The checkpoint is whole and will be found."""

    name: CutId


@dataclass(frozen=True)
class SealFailed:
    """The checkpoint's manifest could not be written."""

    name: CutId
    reason: str


@dataclass(frozen=True)
class Stop:
    """The run is to end before its last clock: with the next cut, or at `deadline_s` with the one that there is."""

    deadline_s: float | None = None


@dataclass(frozen=True)
class Tick:
    """Nothing but time has passed."""


ControllerInput = (
    NodeUp
    | NodeDown
    | NodeLost
    | NodeSeen
    | Measured
    | Admit
    | Notice
    | NoticeCancelled
    | Received
    | Persisted
    | Superseded
    | Sealed
    | SealFailed
    | Stop
    | Tick
)
