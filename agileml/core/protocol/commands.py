"""The commands that the pure parts give to their shells, and the events with which the shells answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agileml.application import Array, DeviceVector
from agileml.core.compute.cursor import Cursor
from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.messages import Crossing, Cut, Message, Saved, SaveFailed
from agileml.core.protocol.plan import Strike
from agileml.core.protocol.view import CutId, StageGroup
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
    """Load the slices that these bundles of a clock need, and find out which rows they read. Answered by `Begun`.

    `is_help`: as in `Compute`.
    """

    timeline: int
    clock: int
    bundles: tuple[Units, ...]
    is_help: bool = False


@dataclass(frozen=True)
class Compute:
    """Compute these bundles from the pulled blocks of every partition. Answered by `Computed` for each bundle, or for
    as much of them as the cursor leaves.

    Where a partition's blocks are None, a `Deliver` brings them. The computation waits where it needs them, and answers
    only when all are there. At most one computation lacks blocks, the one asked for last.
    `is_help`: compute them before all other work, which goes on afterwards, with separate memory for inputs. `begins`:
    False at the first stage of a pipeline without a flush when it begins no other clock: the units in flight run
    through.
    """

    timeline: int
    clock: int
    bundles: tuple[Units, ...]
    parts: tuple[tuple[Array, ...] | None, ...]
    cursor: Cursor
    is_help: bool = False
    begins: bool = True


@dataclass(frozen=True)
class Deliver:
    """The blocks of a partition for the computation that lacks them."""

    timeline: int
    clock: int
    partition: int
    blocks: tuple[Array, ...]


@dataclass(frozen=True)
class Abort:
    """Give up the computation that lacks blocks: no more will come, and the worker wants no answer."""

    timeline: int
    clock: int


@dataclass(frozen=True)
class LoadSlices:
    """Load this set of slices, and no others. Answered by `Loaded`.

    `ahead`: how many more are to follow, where one is added to help others; None: the machine needs them for its share.
    `is_needed`: if they do not fit, the run fails; otherwise the answer says so.
    """

    slices: Units
    ahead: int | None = None
    is_needed: bool = True


@dataclass(frozen=True)
class SavePart:
    """Write a part of a committed cut to the checkpoint store. Answered by `PartSaved`."""

    name: CutId
    partition: int
    cut: Cut


@dataclass(frozen=True)
class Form:
    """Open an all-reduce group with these machines. Answered by `Met`: rendezvous entries of this machine."""

    epoch: int
    group: tuple[str, ...]


@dataclass(frozen=True)
class Introduce:
    """The content of a `Met` of another machine of the group. May come before `Form`, and more than once."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Reduce:
    """Add the blocks of a partition up over the group, in place and in the order of these commands. Answered by
    `Reduced`.

    If one machine of the group sets `pause`, every machine's answer has it set. `compute_s`: the seconds that this
    machine computed for the clock, which all machines are to know; None: they need not. `expected`: the units per
    second that it expects of the next clock, which goes with them.
    """

    epoch: int
    clock: int
    partition: int
    blocks: tuple[Array | DeviceVector, ...]
    loss: float
    examples: int
    pause: bool
    compute_s: float | None = None
    expected: float = 0.0
    metrics: tuple[float, ...] = ()


@dataclass(frozen=True)
class Gather:
    """Send arrays from their machines to all others of the group, in place and in the order of these commands. Answered
    by `Gathered`. parts: by machine, the arrays in which it has values and the others take them."""

    epoch: int
    clock: int
    parts: tuple[tuple[str, tuple[Array | DeviceVector, ...]], ...]


@dataclass(frozen=True)
class Abandon:
    """Close the group and drop the sums that are under way."""


@dataclass(frozen=True)
class Arrange:
    """The stages of an epoch, in order. `open`: of clocks that were begun before, the units that go through them.
    Computations of older epochs end."""

    epoch: int
    stages: tuple[StageGroup, ...]
    open: tuple[tuple[int, Units], ...] = ()

    def units(self, clock: int) -> Units:
        """The units of a clock that go through the stages."""
        return dict(self.open).get(clock, self.stages[0].all_units)


@dataclass(frozen=True)
class PassOn:
    """A message of another stage, for the computation that waits for it. May come before its `Arrange`, and twice."""

    crossing: Crossing


@dataclass(frozen=True)
class Leave:
    """This node holds nothing any more: end its process."""


# -- told by a node's shell ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """The bundles can be computed once `rows[p][table]` of each partition p is pulled; None: the whole block."""

    begin: Begin
    rows: tuple[tuple[Array | None, ...], ...]


@dataclass(frozen=True)
class Computed:
    """Contributions of a bundle to some partitions. Each partition comes once, in any order.

    `compute_s`: seconds since the computation of the bundle began, without `waited_s`; 0: not known. `waited_s`:
    seconds that it waited for blocks since the answer before. `needed_s`: in the first answer of a computation that
    lacked blocks, the seconds that it had computed when it first needed each partition.
    """

    timeline: int
    clock: int
    bundle: Units
    contributions: tuple[tuple[int, Contribution], ...]
    compute_s: float = 0.0
    waited_s: float = 0.0
    needed_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class MarkPassed:
    """The cursor of the computation of a clock has passed its mark."""

    timeline: int
    clock: int


@dataclass(frozen=True)
class CoresSplit:
    """From `clock` on this machine computes with `workers` processes of `threads` threads; `reason` says why."""

    clock: int
    workers: int
    threads: int
    reason: str


@dataclass(frozen=True)
class Crossed:
    """A computation has something for a neighbouring stage."""

    to: str
    crossing: Crossing


@dataclass(frozen=True)
class Loaded:
    """These slices are loaded. `too_large`: why those that are to follow do not fit."""

    slices: Units
    too_large: str | None = None


@dataclass(frozen=True)
class PartSaved:
    """A part was written to the checkpoint store, or could not be."""

    outcome: Saved | SaveFailed


@dataclass(frozen=True)
class Met:
    """An entry of the group's rendezvous, for its other machines."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Reduced:
    """The sum of a partition over the group. Answers come in the order of the commands. `compute_s`: of each machine of
    the group, in its order, and `expected` likewise; empty when they did not say."""

    epoch: int
    clock: int
    partition: int
    blocks: tuple[Array | DeviceVector, ...]
    loss: float
    examples: int
    pause: bool
    compute_s: tuple[float, ...] = ()
    expected: tuple[float, ...] = ()
    metrics: tuple[float, ...] = ()


@dataclass(frozen=True)
class Gathered:
    """The arrays of the clock's `Gather` have the values of the machines that they are of."""

    epoch: int
    clock: int


@dataclass(frozen=True)
class Broken:
    """The group of an epoch could not be opened, or could not add up. `reason` is a sentence."""

    epoch: int
    reason: str


NodeCommand = (
    Send
    | Begin
    | Compute
    | Deliver
    | Abort
    | LoadSlices
    | SavePart
    | Form
    | Introduce
    | Reduce
    | Gather
    | Abandon
    | Arrange
    | PassOn
    | Leave
)
NodeEvent = (
    Begun
    | Computed
    | CoresSplit
    | Crossed
    | MarkPassed
    | Loaded
    | PartSaved
    | Met
    | Reduced
    | Gathered
    | Broken
)

# -- asked of the controller's shell ------------------------------------------------------------------------


@dataclass(frozen=True)
class Persist:
    """Create the record `number`. Answered by `Persisted`, or by `Superseded` when the number is taken."""

    number: int
    text: str


@dataclass(frozen=True)
class Happened:
    """For the event log and the screen: an event of the run, and when it happened (Unix time)."""

    event: ControllerEvent
    at_s: float


@dataclass(frozen=True)
class Seal:
    """All parts of a checkpoint are written: write its manifest. Answered by `Sealed` or `SealFailed`."""

    name: CutId
    parts: tuple[Saved, ...]


@dataclass(frozen=True)
class Finished:
    """A whole cut that stays: `backup[p]` has partition p of the cut at `clock`. As a command: it is the result."""

    clock: int
    backup: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """A machine holds nothing any more and may be given back."""

    node: str


class HaltKind(Enum):
    """Why a controller stops."""

    REPLACED = "replaced"  # another controller acts now
    LOST = "lost"  # no machine holds a part of the state any more
    UNREAD = "unread"  # only a checkpoint holds a part of the state, and it cannot be read just now
    BROKEN = "broken"  # the machines or the controller cannot do their work
    USER_CODE = "user code"  # the application or its data failed


@dataclass(frozen=True)
class Halt:
    """This controller stops. `reason` is a sentence, `trace` the traceback of user code, if any.

    `kept`: the committed cut, where there is one and the machines still have it.
    """

    kind: HaltKind
    reason: str
    trace: str = ""
    kept: Finished | None = None


ControllerCommand = Send | Persist | Happened | Strike | Seal | Finished | Released | Halt
