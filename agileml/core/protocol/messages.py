"""Everything that nodes and the controller say to each other. All are frozen; all carry the epoch they belong to.

Arrays in a message are never changed by whoever sends or gets it: on one machine they travel by reference. Only a
shard adds into what was pushed to it from another machine: nobody else has that copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from agileml.application import Array
from agileml.core.parameters.fold import Contribution, FoldCopy
from agileml.core.protocol.view import CutId, View
from straggler.coverage import Units

CONTROLLER = "controller"

Pending = tuple[tuple[int, tuple[Units, ...]], ...]  # (clock, bundles), ascending


# -- state that travels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClockReport:
    """A clock that was applied, as partition 0 saw it. `loss` is a sum over `examples`; `at_s` is wall time."""

    clock: int
    loss: float
    examples: int
    at_s: float


@dataclass(frozen=True)
class Cut:
    """One partition at one clock, whole: exactly the clocks < `clock` are in it.

    `blocks` and, per optimizer slot, `state` hold an array per table. `counted` is for models that apply on
    arrival: the bundles of clocks >= `clock` that are in the parameters already.
    """

    clock: int
    blocks: tuple[Array, ...]
    state: tuple[tuple[Array, ...], ...]
    counted: Pending = ()
    progress: tuple[ClockReport, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of its arrays."""
        return sum(a.nbytes for a in self.blocks) + sum(a.nbytes for slot in self.state for a in slot)


@dataclass(frozen=True)
class Rows:
    """A cut that goes with this has of sparse tables only these rows (None: the whole table), as they are in it.

    All others are as in the cut `base`.
    """

    base: CutId
    by_table: tuple[Array | None, ...]


@dataclass(frozen=True)
class Previous:
    """The version before the newest: whole blocks of dense tables, old values of changed rows of sparse ones."""

    blocks: tuple[Array | None, ...]
    rows: tuple[Array | None, ...]


@dataclass(frozen=True)
class ShardCopy:
    """A shard on its way to another server: a cut at its own version, and what is open.

    `only`: the cut has but the rows that changed since one that the other has. `changed`: what changed since the
    committed cut, for the next one.
    """

    cut: Cut
    previous: Previous | None
    pending: tuple[tuple[int, FoldCopy], ...]
    only: Rows | None = None
    changed: Rows | None = None


# -- workers and servers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pull:
    """A worker wants the parameters of a clock: per table the local rows, None = the whole block."""

    epoch: int
    partition: int
    clock: int
    rows: tuple[Array | None, ...]


@dataclass(frozen=True)
class Params:
    """The answer: `blocks` of version `version`."""

    epoch: int
    partition: int
    clock: int
    version: int
    blocks: tuple[Array, ...]


@dataclass(frozen=True)
class Behind:
    """The answer when that clock is done everywhere."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class Push:
    """What a worker computed of a bundle, for one partition.

    `pulls_next`: it wants the partition's whole blocks of the next clock as well, as a `Pull` would say.
    """

    epoch: int
    partition: int
    clock: int
    bundle: Units
    contribution: Contribution
    pulls_next: bool = False


@dataclass(frozen=True)
class Meet:
    """Machine to machine of a group: what the others must know before they can add up together."""

    epoch: int
    key: str
    value: bytes


@dataclass(frozen=True)
class Pause:
    """Controller to a group: stop between two clocks, all after the same one; a change is to come."""

    epoch: int


@dataclass(frozen=True)
class GroupFailed:
    """Node to controller: the group of this epoch cannot add up any more; the sentence says why."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Ack:
    """The bundle is counted (or was before). Parameters of a later version say so too."""

    epoch: int
    partition: int
    clock: int
    bundle: Units


# -- backups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A partition's part of the open cut, for its backup; `only`: what changed since the one that the backup has."""

    epoch: int
    partition: int
    committed: CutId
    cut: Cut
    only: Rows | None = None


@dataclass(frozen=True)
class PartAck:
    """The backup has it."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class PartRefused:
    """The backup has not what the part's rows are relative to: send the whole."""

    epoch: int
    partition: int
    clock: int


@dataclass(frozen=True)
class Stored:
    """Backup to controller: this part of the open cut is here, and so large. Not finite: the training has diverged."""

    epoch: int
    partition: int
    clock: int
    is_finite: bool = True
    size_bytes: int = 0


@dataclass(frozen=True)
class NameCut:
    """Controller to all: `committed` is durable; take the next cut at clock `next` (None: not yet)."""

    epoch: int
    committed: CutId
    next: int | None


@dataclass(frozen=True)
class Missed:
    """Owner to controller: version `version` was reached before cut `clock` was named."""

    epoch: int
    partition: int
    clock: int
    version: int


# -- changes of members -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """Promise `epoch`: obey nothing older, freeze the shards. `tag` is the durable view's epoch."""

    epoch: int
    tag: int
    committed: CutId


@dataclass(frozen=True)
class ShardState:
    """What a node says of a shard it holds: how far it is and which bundles wait in it."""

    version: int
    pending: Pending


@dataclass(frozen=True)
class Promise:
    """The answer: shards tagged with the durable view's epoch, and the parts of the committed cut that are here.

    Each is (partition, state): of a cut, what its coverage says.
    """

    epoch: int
    shards: tuple[tuple[int, ShardState], ...]
    own_cuts: tuple[tuple[int, ShardState], ...]
    backups: tuple[tuple[int, ShardState], ...]


class SourceKind(Enum):
    """Where a shard or a backup comes from."""

    SHARD = "shard"  # the frozen shard of the durable view
    OWN_CUT = "own cut"  # an owner's own copy of the committed cut
    BACKUP = "backup"  # a backup's committed cut
    INITIAL = "initial"  # the application's initial values: the cut at clock 0
    CHECKPOINT = "checkpoint"  # a cut that was saved outside of the machines


class Role(Enum):
    """What a node becomes for a partition."""

    OWNER = "owner"
    BACKUP = "backup"


@dataclass(frozen=True)
class Source:
    """`kind` at `node`: a shard of the durable view, the committed cut, or the one saved as `checkpoint`."""

    kind: SourceKind
    node: str
    checkpoint: CutId | None = None


@dataclass(frozen=True)
class Fetch:
    """Controller to a node: get ready to be `role` for a partition in `epoch`; `committed` is the cut then."""

    epoch: int
    partition: int
    role: Role
    committed: CutId
    source: Source


@dataclass(frozen=True)
class Get:
    """Node to source: send me that. `have`: of a shard only what changed since this cut, if that is known."""

    epoch: int
    partition: int
    role: Role
    source: Source
    have: CutId | None = None


@dataclass(frozen=True)
class Copy:
    """Source to node: here it is."""

    epoch: int
    partition: int
    role: Role
    copy: ShardCopy


@dataclass(frozen=True)
class Installed:
    """Node to controller: ready to be `role` for that partition in `epoch`."""

    epoch: int
    partition: int
    role: Role


@dataclass(frozen=True)
class Announce:
    """Controller to all: the view is durable, go. `limit`: no clock >= limit may start yet."""

    view: View
    limit: int


@dataclass(frozen=True)
class Limit:
    """Controller to all: clocks < `limit` may start."""

    epoch: int
    limit: int


@dataclass(frozen=True)
class Load:
    """Controller to a node that will work: load these slices (a set of slices)."""

    slices: Units


@dataclass(frozen=True)
class Status:
    """Heartbeat. `epoch` is that of the node's view (0: none); `progress` what the controller has not heard;
    `is_paused`: this machine's group has stopped between two clocks."""

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
    """Backup to controller: a part could not be written, or is here no more; the sentence says why."""

    cut: CutId
    partition: int
    reason: str


@dataclass(frozen=True)
class Failure:
    """Node to controller: the user's code or data failed here; the run cannot go on. `trace` may be empty."""

    problem: str
    trace: str


@dataclass(frozen=True)
class Heard:
    """Controller to a node: progress of clocks < `clock` is known."""

    clock: int


@dataclass(frozen=True)
class Release:
    """Controller to a node: you hold nothing any more, go."""

    epoch: int


Message = (
    Pull
    | Params
    | Behind
    | Push
    | Ack
    | Meet
    | Pause
    | GroupFailed
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
    | Heard
    | Release
)
