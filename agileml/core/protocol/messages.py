"""The messages between nodes and the controller. All are frozen, and all but a few carry the epoch they belong to.

Neither the sender nor the receiver changes the arrays of a message, because within one machine they travel by
reference. The one exception: a shard adds into a contribution that came from another machine, whose arrays only it has.

Long because it is one list: the whole vocabulary of the engine, in the order in which a run uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agileml.application import Array, Wire
from agileml.core.parameters.fold import Contribution, FoldCopy
from agileml.core.parameters.gradient_norm import SquareSums
from agileml.core.parameters.loss_scale import LossScale
from agileml.core.protocol.help_messages import HelpMessage, HelpOver, HelpParams, HelpPull
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.superstep_messages import (
    NextSuperstep,
    StepsReceived,
    StepsTaken,
    StepTaken,
    SuperstepChosen,
    SuperstepFixed,
)
from agileml.core.protocol.view import ClockPlan, CutId, View
from agileml.events.terms import Task
from straggler.coverage import Units

CONTROLLER = "controller"

Pending = tuple[tuple[int, tuple[Units, ...]], ...]  # (clock, bundles), ascending
SquaresOfClocks = tuple[tuple[int, SquareSums], ...]  # (clock, sums of one partition), ascending


# -- state that travels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClockReport:
    """One applied clock, as partition 0 saw it. `loss` is a sum over `examples`; `at_s` is wall time in seconds.

    `metrics`: for each metric of the job its sum and weight, of the parameters that the clock began with. `loss_scale`:
    after the clock, in a job that has one.
    """

    clock: int
    loss: float
    examples: int
    at_s: float
    metrics: tuple[float, ...] = ()
    loss_scale: LossScale | None = None


@dataclass(frozen=True)
class Cut:
    """One partition at one clock: exactly the clocks < `clock` have been applied to it.

    `blocks` holds an array per table, `state` an array per table for each optimizer slot. `counted` is for consistency
    models that apply on arrival: the bundles of clocks >= `clock` that the parameters contain already.
    """

    clock: int
    blocks: tuple[Array, ...]
    state: tuple[tuple[Array, ...], ...]
    counted: Pending = ()
    progress: tuple[ClockReport, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in self.blocks) + sum(a.nbytes for slot in self.state for a in slot)


@dataclass(frozen=True)
class Rows:
    """Which rows of sparse tables the accompanying cut contains; None: the whole table.

    All other rows have the values that they have in the cut `base`.
    """

    base: CutId
    by_table: tuple[Array | None, ...]


@dataclass(frozen=True)
class Previous:
    """The version before the newest: whole blocks of dense tables, the old values of the changed rows of sparse
    tables."""

    blocks: tuple[Array | None, ...]
    rows: tuple[Array | None, ...]


@dataclass(frozen=True)
class ShardCopy:
    """A shard on its way to another server: a cut at the shard's version, and the contributions that are pending.

    `only`: the cut contains only the rows that changed since a cut that the receiver has. `changed`: the rows that
    changed since the committed cut, which the next cut needs. `squares`, `directions`: the sums of each kind, of its
    clocks that other partitions may wait for. `taken`: where minibatches are steps of their own, the last ones, which
    the log may lack. `losses`: of clocks that are applied on arrival and not complete, the loss, examples and metrics
    so far.
    """

    cut: Cut
    previous: Previous | None
    pending: tuple[tuple[int, FoldCopy], ...]
    only: Rows | None = None
    changed: Rows | None = None
    squares: SquaresOfClocks = ()
    directions: SquaresOfClocks = ()
    taken: tuple[StepTaken, ...] = ()
    losses: tuple[tuple[int, float, int, tuple[float, ...]], ...] = ()


# -- workers and servers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pull:
    """Worker to server: send the parameters of a clock. `rows`: local rows per table, None = the whole block."""

    epoch: int
    partition: int
    clock: int
    rows: tuple[Array | None, ...]


@dataclass(frozen=True)
class Params:
    """Server to worker: the blocks of a partition at `version`."""

    epoch: int
    partition: int
    clock: int
    version: int
    blocks: tuple[Array, ...]


@dataclass(frozen=True)
class PlannedParams(Params):
    """`Params` of partition 0 with a plan: of their clock, or of the next one where the rows to pull depend on it."""

    plan: ClockPlan


@dataclass(frozen=True)
class LastParams(Params):
    """`Params` of partition 0 in a pipeline without a flush that runs empty: it begins no clock from `end` on."""

    end: int


@dataclass(frozen=True)
class MinibatchPull(Pull):
    """A `Pull` for one unit, of the newest parameters; with a pool for the bundle that begins with it."""

    unit: int


@dataclass(frozen=True)
class MinibatchParams(Params):
    """The answer to a `MinibatchPull`. With supersteps `version` is how many steps the partition has taken."""

    unit: int


@dataclass(frozen=True)
class Behind:
    """Server to worker: that clock is done everywhere, go on to the next."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class Push:
    """Worker to server: the contribution of a bundle to one partition.

    `pulls_next`: also a `Pull` of the partition's whole blocks for the next clock.
    """

    epoch: int
    partition: int
    clock: int
    bundle: Units
    contribution: Contribution
    pulls_next: bool = False


@dataclass(frozen=True)
class TimedPush(Push):
    """A `Push` to partition 0 with the seconds that the worker computed for the bundle; 0: not known.

    `expected`: the units per second that the worker expects of its next clock; 0: it does not predict.
    """

    compute_s: float = 0.0
    expected: float = 0.0


@dataclass(frozen=True)
class MinibatchPush(Push):
    """A `Push` of one unit that is a step of its own. `reads`: for each partition, the steps in what was read of it."""

    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class HelpPush(Push):
    """The push of a helper, of units that another worker gave away."""


@dataclass(frozen=True)
class Crossing:
    """Between neighbouring stages: a unit's activations (`is_forward`), or gradients on the way back.

    With gradients comes the unit's loss, a sum over `examples`. Answered by `CrossingAck`; sent again until then.
    `ends`: in a pipeline without a flush, no activations: the first stage has not begun this clock, and will not.
    """

    epoch: int
    clock: int
    unit: int
    is_forward: bool
    tensors: tuple[Wire | None, ...]
    loss: float = 0.0
    examples: int = 0
    ends: bool = False


@dataclass(frozen=True)
class CrossingAck:
    """The answer to a `Crossing`: the neighbour has it."""

    epoch: int
    clock: int
    unit: int
    is_forward: bool


@dataclass(frozen=True)
class Meet:
    """Between machines of a group: an entry of the sender's for the rendezvous."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Pause:
    """Controller to a group: stop between two clocks, all after the same one, because a membership change is to
    come."""

    epoch: int


@dataclass(frozen=True)
class GroupFailed:
    """Node to controller: the group of this epoch cannot add up any more. `reason` is a sentence."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Replanned:
    """Owner of partition 0 to controller, for the log: `clock` has another plan than was told last."""

    epoch: int
    clock: int
    units: tuple[tuple[str, int], ...]
    predicted_s: float
    reason: str


@dataclass(frozen=True)
class RemedyChosen:
    """Owner of partition 0 to controller, for the log: from `clock` on work is shared out in another way, or it is
    decided that it stays as it is. `remedy`: a value of `Remedy`."""

    epoch: int
    clock: int
    remedy: str
    reason: str


@dataclass(frozen=True)
class HelpDeclined:
    """Node to controller, for the log: this machine helps no other, because of `reason`."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class SplitChosen:
    """Node to controller, for the log: from `clock` on this machine computes with `workers` processes of `threads`."""

    epoch: int
    clock: int
    workers: int
    threads: int
    reason: str


@dataclass(frozen=True)
class OverlapChosen:
    """Node to controller, for the log: from `clock` on this machine pulls while it computes, or does not."""

    epoch: int
    clock: int
    overlaps: bool
    reason: str


@dataclass(frozen=True)
class Ack:
    """Server to worker: the bundle is counted. `Params` of a later version imply it."""

    epoch: int
    partition: int
    clock: int
    bundle: Units


class SumsOf(Enum):
    """The arrays whose elements are squared and added up."""

    GRADIENT = "gradient"
    DIRECTION = (
        "direction"  # of a layer, and of its parameters: for LAMB, when the norm of the gradient is known
    )


@dataclass(frozen=True)
class Squares:
    """Owner to owner, where a step needs norms of more than its partition: the square sums of a partition at a clock.

    `asks`: the sender waits for the sums of the receiver's partitions.
    """

    epoch: int
    partition: int
    clock: int
    of: SumsOf
    sums: SquareSums
    asks: bool = False


# -- backups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Owner to backup: a partition's part of the open cut. `only`: just the rows that changed since the committed
    cut. `is_finite`: the owner found no NaN and no infinity in the resident tables; otherwise the backup looks."""

    epoch: int
    partition: int
    committed: CutId
    cut: Cut
    only: Rows | None = None
    is_finite: bool = False


@dataclass(frozen=True)
class PartAck:
    """Backup to owner: the part is here."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class PartRefused:
    """Backup to owner: the cut that the part's rows build on is not here, send the whole part."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class Stored:
    """Backup to controller: this part of the open cut is here. `is_finite` False: the training has diverged."""

    epoch: int
    partition: int
    clock: int
    is_finite: bool = True
    size_bytes: int = 0


@dataclass(frozen=True)
class NameCut:
    """Controller to members: the cut `committed` is durable; take the next cut at clock `next` (None: not named
    yet)."""

    epoch: int
    committed: CutId
    next: int | None


@dataclass(frozen=True)
class Missed:
    """Owner to controller: the shard was at `version`, past `clock`, when it learned of the cut at `clock`."""

    epoch: int
    partition: int
    clock: int
    version: int


# -- changes of members -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Controller to node: promise to obey nothing older than `epoch`, and freeze the shards. `tag`: the durable view's
    epoch."""

    epoch: int
    tag: int
    committed: CutId


@dataclass(frozen=True)
class ShardState:
    """The version of a shard, and the bundles that are pending in it."""

    version: int
    pending: Pending


@dataclass(frozen=True)
class Promise:
    """Node to controller: the epoch is promised. Lists what the node holds, as (partition, state) pairs.

    `shards`: those of the durable view, now frozen. `own_cuts`: the committed cut, as kept by its owner. `backups`: the
    committed cut, as stored for another owner. The state of a cut is its clock and coverage. `plans`: those that
    partition 0 has fixed under the durable view, for clocks that may be open.
    """

    epoch: int
    shards: tuple[tuple[int, ShardState], ...]
    own_cuts: tuple[tuple[int, ShardState], ...]
    backups: tuple[tuple[int, ShardState], ...]
    plans: tuple[ClockPlan, ...] = ()


class SourceKind(Enum):
    """The kinds of sources of a shard or a backup."""

    SHARD = "shard"  # the frozen shard of the durable view
    OWN_CUT = "own cut"  # an owner's own copy of the committed cut
    BACKUP = "backup"  # a backup's committed cut
    INITIAL = "initial"  # the application's initial values: the cut at clock 0
    CHECKPOINT = "checkpoint"  # a cut in the checkpoint store


class Role(Enum):
    """The role that a node takes for a partition."""

    OWNER = "owner"
    REPLICA = "replica"  # has the parameters, and nothing of the optimizer's state that its owner has
    BACKUP = "backup"


@dataclass(frozen=True)
class Source:
    """The thing to copy, and the node that has it (NOBODY: the stores). `checkpoint` names the cut for CHECKPOINT."""

    kind: SourceKind
    node: str
    checkpoint: CutId | None = None


@dataclass(frozen=True)
class Fetch:
    """Controller to node: get ready to be `role` for a partition in `epoch`. `committed`: the committed cut in that
    epoch."""

    epoch: int
    partition: int
    role: Role
    committed: CutId
    source: Source


@dataclass(frozen=True)
class Get:
    """Node to source: send the shard or cut. `have`: the cut here; the rows of a shard that changed since then
    suffice."""

    epoch: int
    partition: int
    role: Role
    source: Source
    have: CutId | None = None


@dataclass(frozen=True)
class Copy:
    """Source to node: the requested shard or cut."""

    epoch: int
    partition: int
    role: Role
    copy: ShardCopy


@dataclass(frozen=True)
class Installed:
    """Node to controller: ready to be `role` for this partition in `epoch`."""

    epoch: int
    partition: int
    role: Role


@dataclass(frozen=True)
class Announce:
    """Controller to all: the view is durable, work under it. No clock >= `limit` may start yet."""

    view: View
    limit: int


@dataclass(frozen=True)
class Limit:
    """Controller to all: clocks < `limit` may start."""

    epoch: int
    limit: int


@dataclass(frozen=True)
class Load:
    """Controller to node: load this set of slices."""

    slices: Units


@dataclass(frozen=True)
class Status:
    """Node to controller: the heartbeat. `epoch`: of the node's view, 0 without one. `versions`: (partition, version)
    of its shards. `progress`: reports of applied clocks that the controller may lack. `is_paused`: its group has
    stopped."""

    epoch: int
    versions: tuple[tuple[int, int], ...]
    loaded: Units
    progress: tuple[ClockReport, ...]
    is_paused: bool = False


@dataclass(frozen=True)
class Save:
    """Controller to backups: write your parts of the committed cut to the checkpoint store."""

    cut: CutId


@dataclass(frozen=True)
class Saved:
    """Backup to controller: a part is in the checkpoint store. `counted` is the cut's coverage."""

    cut: CutId
    partition: int
    size_bytes: int
    sha256: str
    counted: Pending


@dataclass(frozen=True)
class SaveFailed:
    """Backup to controller: a part could not be written, or is no longer here. `reason` is a sentence."""

    cut: CutId
    partition: int
    reason: str


@dataclass(frozen=True)
class Failure:
    """Node to controller: user code, data or the machine failed here. `trace` may be empty.

    `units`: the slices that it was loading, or the units of `clock` that it was computing.
    """

    problem: str
    trace: str
    work: Task = Task.RUN
    clock: int = -1
    units: Units = 0


@dataclass(frozen=True)
class Unreachable:
    """Node to controller, with each heartbeat while it lasts: these machines do not answer this one.

    It has no epoch: a link is down whatever view the machine works under.
    """

    names: tuple[str, ...]


@dataclass(frozen=True)
class ReportsReceived:
    """Controller to node: the reports of clocks < `clock` have arrived."""

    clock: int


@dataclass(frozen=True)
class Release:
    """Controller to node: you hold nothing under the durable view, so you may leave."""

    epoch: int


Message = (
    Pull
    | Params
    | PlannedParams
    | LastParams
    | Behind
    | Push
    | TimedPush
    | Ack
    | Squares
    | HelpMessage
    | HelpPull
    | HelpParams
    | HelpOver
    | HelpPush
    | MinibatchPull
    | MinibatchParams
    | MinibatchPush
    | NextSuperstep
    | SuperstepFixed
    | DrawBundle
    | BundleDrawn
    | SuperstepChosen
    | StepsTaken
    | StepsReceived
    | Crossing
    | CrossingAck
    | Meet
    | Pause
    | GroupFailed
    | Replanned
    | RemedyChosen
    | HelpDeclined
    | OverlapChosen
    | SplitChosen
    | Part
    | PartAck
    | PartRefused
    | Stored
    | NameCut
    | Missed
    | Prepare
    | Promise
    | Fetch
    | Get
    | Copy
    | Installed
    | Announce
    | Limit
    | Load
    | Status
    | Save
    | Saved
    | SaveFailed
    | Failure
    | Unreachable
    | ReportsReceived
    | Release
)
