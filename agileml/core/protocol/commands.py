"""What the pure parts ask of their shells, and what the shells tell them besides messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agileml.application import Array
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.messages import Cut, Message, Saved, SaveFailed
from agileml.core.protocol.plan import Strike
from agileml.core.protocol.view import CutId
from agileml.events.run import ControllerEvent
from straggler.coverage import Units

# -- asked of a node's shell --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a message; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True)
class Begin:
    """Load what is missing for these bundles of a clock, find out which rows they read: answer `Begun`."""

    timeline: int
    clock: int
    bundles: tuple[Units, ...]


@dataclass(frozen=True)
class Compute:
    """Compute these bundles from the pulled blocks of every partition: answer `Computed` for each."""

    timeline: int
    clock: int
    bundles: tuple[Units, ...]
    parts: tuple[tuple[Array, ...], ...]


@dataclass(frozen=True)
class LoadSlices:
    """Have exactly these slices loaded: answer `Loaded`."""

    slices: Units


@dataclass(frozen=True)
class SavePart:
    """Write a part of a committed cut to the checkpoint store: answer `PartSaved`."""

    name: CutId
    partition: int
    cut: Cut


@dataclass(frozen=True)
class Form:
    """Meet the machines of an epoch's group, to add up with them: `Met` says what they must know of this one."""

    epoch: int
    group: tuple[str, ...]


@dataclass(frozen=True)
class Introduce:
    """What the shell of another machine of a group said in a `Met`. May come before `Form`, and more than once."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Reduce:
    """Add these blocks of a partition up over the group, in place, after what was asked before: answer `Reduced`.

    `pause` is true in everybody's answer if it is in anybody's question.
    """

    epoch: int
    clock: int
    partition: int
    blocks: tuple[Array, ...]
    loss: float
    examples: int
    pause: bool


@dataclass(frozen=True)
class Abandon:
    """Give the group up; what it adds is not wanted any more."""


@dataclass(frozen=True)
class Leave:
    """This node holds nothing any more: end."""


# -- told by a node's shell ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """Ready to compute. rows[p][table]: local rows to pull of each partition, None = the whole block."""

    begin: Begin
    rows: tuple[tuple[Array | None, ...], ...]


@dataclass(frozen=True)
class Computed:
    """A bundle's contributions to some partitions; they come in any order, each partition's once."""

    timeline: int
    clock: int
    bundle: Units
    contributions: tuple[tuple[int, Contribution], ...]


@dataclass(frozen=True)
class Loaded:
    """These slices are loaded."""

    slices: Units


@dataclass(frozen=True)
class PartSaved:
    """A part is written, or could not be."""

    outcome: Saved | SaveFailed


@dataclass(frozen=True)
class Met:
    """What the others of a group must know of this machine."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Reduced:
    """The sums over the group; answers come in the order of the questions."""

    epoch: int
    clock: int
    partition: int
    blocks: tuple[Array, ...]
    loss: float
    examples: int
    pause: bool


@dataclass(frozen=True)
class Broken:
    """The group of an epoch could not be formed, or could not add up: a sentence says why."""

    epoch: int
    reason: str


NodeCommand = Send | Begin | Compute | LoadSlices | SavePart | Form | Introduce | Reduce | Abandon | Leave
NodeEvent = Begun | Computed | Loaded | PartSaved | Met | Reduced | Broken

# -- asked of the controller's shell ------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Write a record, create-if-absent: answer `Persisted`, or `Superseded` when its number is taken."""

    number: int
    text: str


@dataclass(frozen=True)
class Happened:
    """For the event log and the screen: an event of the run, and when it happened (Unix time)."""

    event: ControllerEvent
    at_s: float


@dataclass(frozen=True)
class Seal:
    """All parts of a checkpoint are written: write its manifest. Answer `Sealed` or `SealFailed`."""

    name: CutId
    parts: tuple[Saved, ...]


@dataclass(frozen=True)
class Finished:
    """The result is durable: cut `clock` whole at backup[p] for every partition p."""

    clock: int
    backup: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """This machine may be given back."""

    node: str


class HaltKind(Enum):
    """Why a controller stops."""

    REPLACED = "replaced"  # another controller acts now
    LOST = "lost"  # something that the run needs is nowhere any more
    USER_CODE = "user code"  # the application or its data failed


@dataclass(frozen=True)
class Halt:
    """This controller stops: the sentence says why. `trace` is that of the user's code.

    `kept`: the committed cut, if there is one and the machines can be asked for it.
    """

    kind: HaltKind
    reason: str
    trace: str = ""
    kept: Finished | None = None


ControllerCommand = Send | Persist | Happened | Strike | Seal | Finished | Released | Halt
