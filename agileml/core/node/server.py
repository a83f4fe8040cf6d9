"""The shards that a node serves: pulls, pushes, cuts and moves.

The server keeps each copy of a shard under a tag, the epoch that the copy belongs to. It serves the copy tagged with
the promised epoch; a change starts from the copy tagged with the durable view's epoch. Both may be one object: between
the promise and the view it is frozen, because a node that has promised obeys no message of an older epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from agileml.application import Array, Replica
from agileml.core.node.clock_plans import ClockPlans
from agileml.core.node.cut_parts import CutParts
from agileml.core.node.overlap.piggyback import DelayedAcks
from agileml.core.node.shard.clock_sums import sums_of
from agileml.core.node.shard.norm_round import NormRound
from agileml.core.node.shard.resident_blocks import values_alone
from agileml.core.node.shard.shard import Shard
from agileml.core.node.sources.resident import ResidentTables
from agileml.core.node.sources.stores import Stores, stored_cut
from agileml.core.parameters.arena import Arena
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Behind,
    ClockReport,
    Cut,
    Fetch,
    Get,
    Installed,
    LastParams,
    Message,
    NameCut,
    Params,
    PartAck,
    PartRefused,
    Prepare,
    Pull,
    Push,
    RemedyChosen,
    Replanned,
    Role,
    ShardCopy,
    ShardState,
    SourceKind,
    Squares,
    TimedPush,
)
from agileml.core.protocol.view import ClockPlan, CutId, View
from straggler.consistency import Read
from straggler.coverage import Verdict

SendTo = Callable[[str, Message], None]
MOST_REPORTS = 256  # of clocks, in a heartbeat


class Server:
    """Serves partitions in one epoch at a time. Its node hands over messages of that epoch only."""

    shard_kind: type[Shard] = Shard

    def __init__(self, io: NodeIo, stores: Stores, replica: Replica | None = None) -> None:
        me, job = io.me, io.job
        self.me, self.job, self.stores = me, job, stores
        self.resident = ResidentTables(replica, job.layout) if replica is not None else None
        self._arena = Arena(job.layout) if job.exchange.has_replicas and replica is None else None
        self.limit = 0  # clocks >= limit may not start; only partition 0 enforces it
        # While a pipeline drains: `hold` limits clocks as `limit` does; without a flush `end` is the first not begun.
        self.hold: int | None = None
        self.end: int | None = None
        self.read_up_to = -1  # the newest clock for which partition 0 was read in this epoch
        self._send = io.send
        self._view: View | None = None
        self._copies: dict[int, dict[int, Shard]] = {}
        self._waiting: dict[int, dict[tuple[str, int], Pull]] = {}  # by partition, then (worker, clock)
        self._owed = DelayedAcks()
        self._norms = NormRound(me, job.exchange, io.send)
        self._parts = CutParts(me, io.send)
        self._plans: ClockPlans | None = None  # of the view, where partition 0 is here and the job has plans

    # -- for the heartbeat ----------------------------------------------------------------------------------

    def versions(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """(partition, version) of the shards served in `epoch`."""
        return tuple((p, shard.version) for p, shard in self._shards(epoch).items())

    def version(self, partition: int, epoch: int) -> int | None:
        """The version of a partition that is served in `epoch`."""
        shard = self.served(partition, epoch)
        return shard.version if shard else None

    def progress(self, epoch: int) -> tuple[ClockReport, ...]:
        """Applied clocks whose reports the controller may lack, if partition 0 is here."""
        shard = self.served(0, epoch)
        return tuple(shard.progress[:MOST_REPORTS]) if shard else ()

    def drop_reports(self, clock: int) -> None:
        """Drop the reports of clocks < `clock`: the controller has them."""
        for shard in self._copies.get(0, {}).values():
            shard.forget_progress(clock)

    def at_limit(self, epoch: int) -> bool:
        """True when the shards here have applied every clock that may start."""
        is_served = False
        for copies in self._copies.values():  # asked with every message: mostly the first says no
            if (shard := copies.get(epoch)) is not None:
                if shard.version < self.limit:
                    return False
                is_served = True
        return is_served

    def served(self, partition: int, epoch: int) -> Shard | None:
        """The shard of a partition that is served in `epoch`."""
        return self._copies.get(partition, {}).get(epoch)

    def _shards(self, epoch: int) -> dict[int, Shard]:
        return {p: copies[epoch] for p, copies in self._copies.items() if epoch in copies}

    # -- workers --------------------------------------------------------------------------------------------

    def pull(self, worker: str, message: Pull) -> None:
        """Answer a pull at once, or keep it until the shard reaches the version."""
        shard = self.served(message.partition, message.epoch)
        if shard is None:
            return
        waiting = self._waiting.setdefault(message.partition, {})
        key = (worker, message.clock)
        waiting.pop(key, None)
        is_held_back = message.partition == 0 and self._holds_back(message.clock)
        answer = Read.WAIT if is_held_back else shard.read(message.clock, message.rows)
        if answer is Read.WAIT:
            waiting[key] = message
        elif isinstance(answer, Read):
            for ack in self._owed.take(worker, message.partition):
                self._send(worker, ack)
            self._send(worker, Behind(message.epoch, message.partition, message.clock))
        else:
            version, blocks = answer
            if message.partition == 0:
                self.read_up_to = max(self.read_up_to, message.clock)
            self._owed.answered(worker, message.partition, message.clock, version)
            if (plans := self._plans_of(message.partition, message.epoch)) is not None:
                self._send(worker, plans.answer(message, version, blocks))
            else:
                self._send(worker, self._params(message, version, blocks))

    def _holds_back(self, clock: int) -> bool:
        return clock >= self.limit or (self.hold is not None and clock >= self.hold)

    def _params(self, message: Pull, version: int, blocks: tuple[Array, ...]) -> Params:
        answer = message.epoch, message.partition, message.clock, version, blocks
        if self.end is not None and message.partition == 0:
            return LastParams(*answer, end=self.end)
        return Params(*answer)

    def _plans_of(self, partition: int, epoch: int) -> ClockPlans | None:
        plans = self._plans
        return plans if plans is not None and partition == 0 and plans.epoch == epoch else None

    def push(self, worker: str, message: Push, now_s: float, *, given: bool) -> None:
        """Count a bundle, unless it is counted already, and acknowledge it. `given`: its arrays may be overwritten. The
        acknowledgement of a push that pulls the next clock is delayed, because the parameters imply it."""
        shard = self.served(message.partition, message.epoch)
        if shard is None:
            return
        before = shard.version
        verdict = shard.push(message.clock, message.bundle, message.contribution, now_s, given=given)
        if (plans := self._plans_of(message.partition, message.epoch)) is not None:
            if verdict is Verdict.COUNT and isinstance(message, TimedPush):
                plans.counted(worker, message, now_s)
            if shard.version != before:
                plans.advanced(shard.version, now_s)
        ack = Ack(message.epoch, message.partition, message.clock, message.bundle)
        if message.pulls_next:
            self._owed.owe(worker, ack, now_s)
            assert self.job.layout.whole_reads is not None, message
            rows = self.job.layout.whole_reads[message.partition]
            self.pull(worker, Pull(message.epoch, message.partition, message.clock + 1, rows))
        else:
            self._send(worker, ack)
        self._went_on(message.epoch, message.partition, shard, before, now_s)

    def _went_on(self, epoch: int, partition: int, shard: Shard, before: int, now_s: float) -> None:
        """Answer waiting pulls and send the cut's part, if a shard has gone on from version `before`."""
        if shard.version != before:
            if partition != 0:
                shard.progress.clear()  # partition 0 alone reports
            self._answer_waiting(partition)
            self._parts.stream(partition, shard)
        for squares in self._norms.send_new(self._view, epoch, partition, shard):
            self.take_squares(self.me, squares, now_s)

    def take_squares(self, owner: str, message: Squares, now_s: float) -> None:
        """Take the square sums of a partition's gradient for all shards here."""
        shards = self._shards(message.epoch)
        for partition, shard in shards.items():
            before = shard.version
            shard.take_sums(message.of, message.clock, message.partition, message.sums, now_s)
            if shard.version != before and (plans := self._plans_of(partition, message.epoch)) is not None:
                plans.advanced(shard.version, now_s)
            self._went_on(message.epoch, partition, shard, before, now_s)
        self._norms.answer(owner, message, shards)

    def _tell_plan(self, plan: Replanned | RemedyChosen) -> None:
        if self._parts.is_owner(0, plan.epoch):
            self._send(CONTROLLER, plan)

    def measured(
        self, epoch: int, clock: int, compute_s: Mapping[str, float], expected: Mapping[str, float]
    ) -> None:
        """Take the seconds that each machine of the group computed for a clock, and the units per second that it
        expects of the next one, with an all-reduce."""
        if (plans := self._plans_of(0, epoch)) is not None:
            plans.measured(clock, compute_s, expected)

    def acknowledge(self, now_s: float) -> None:
        """Send the acknowledgements that have waited long enough for parameters."""
        for worker, ack in self._owed.due(now_s):
            self._send(worker, ack)

    def _answer_waiting(self, partition: int) -> None:
        for (worker, _), pull in list(self._waiting.get(partition, {}).items()):
            self.pull(worker, pull)

    def raise_limit(self, limit: int, now_s: float) -> None:
        """Let clocks < `limit` start."""
        if limit > self.limit:
            self.limit = limit
            self._answer_waiting(0)

    # -- cuts -----------------------------------------------------------------------------------------------

    def name_cut(self, message: NameCut) -> None:
        """Record the committed cut and get ready for the next one."""
        self._parts.name(message, self._shards(message.epoch))

    @property
    def cut_begun(self) -> CutId | None:
        """The newest cut that is copied out of the replica here."""
        return self._parts.begun

    def send_copied(self) -> None:
        """Send the parts of the open cut that the replica has copied meanwhile."""
        self._parts.stream_copied()

    def part_acked(self, message: PartAck) -> None:
        """Send the part no more: the backup has it."""
        self._parts.acked(message, self.served(message.partition, message.epoch))

    def part_refused(self, message: PartRefused) -> None:
        """Send the whole part: the backup lacks the cut that the rows build on."""
        self._parts.refused(message, self.served(message.partition, message.epoch))

    def resend(self) -> None:
        """Send again the parts that no backup has acknowledged, and ask again for missing square sums."""
        self._parts.resend()
        if self._view:
            self._norms.ask(self._view, self._shards(self._view.epoch))

    # -- changes --------------------------------------------------------------------------------------------

    def prepare(self, message: Prepare) -> None:
        """Freeze the shards. Only copies of the durable view and the committed cut are kept."""
        self.limit = 0  # until the announcement of the view says otherwise
        self._waiting.clear()
        self._owed.clear()
        if self._arena is not None:
            # After a rollback the same versions come again, while the old arrays may still be read.
            self._arena = Arena(self.job.layout)
        self._copies = {p: {message.tag: shard} for p, shard in self._shards(message.tag).items()}
        self._parts.prepare(message.committed, self._shards(message.tag))

    def frozen(self, tag: int) -> tuple[tuple[int, ShardState], ...]:
        """The shards of the durable view that are here."""
        return tuple((p, shard.describe()) for p, shard in sorted(self._shards(tag).items()))

    def plans(self, tag: int) -> tuple[ClockPlan, ...]:
        """The plans of the durable view that partition 0 has fixed, if it is here."""
        plans = self._plans_of(0, tag)
        return plans.fixed if plans is not None else ()

    def own_cuts(self, tag: int) -> tuple[tuple[int, ShardState], ...]:
        """The partitions whose committed cut a shard here has."""
        return tuple(
            (p, ShardState(cut.clock, cut.counted))
            for p, shard in sorted(self._shards(tag).items())
            if (cut := shard.cuts.known.get(self._parts.committed))
        )

    def own_cut(self, partition: int, tag: int) -> Cut | None:
        """The committed cut of a partition, from the shard here."""
        shard = self.served(partition, tag)
        return shard.own_cut(self._parts.committed) if shard else None

    def shard_cut(self, partition: int, tag: int) -> Cut | None:
        """The frozen shard at its own version."""
        shard = self.served(partition, tag)
        return shard.copy().cut if shard else None

    def copy_for(self, message: Get, tag: int) -> ShardCopy | None:
        """The copy that a new owner requested, if it is here."""
        if message.source.kind is SourceKind.SHARD:
            shard = self.served(message.partition, tag)
            return shard.copy(message.have) if shard else None
        cut = self.own_cut(message.partition, tag)
        return ShardCopy(cut, None, ()) if cut else None

    def as_role(self, role: Role, copy: ShardCopy) -> ShardCopy:
        """Return what a machine in this role needs of a copy: a replica does not get what only the owner holds."""
        if role is not Role.REPLICA:
            return copy
        return replace(copy, cut=replace(copy.cut, blocks=values_alone(self.job.layout, copy.cut.blocks)))

    def install(self, message: Fetch, copy: ShardCopy) -> None:
        """Keep a copy of a shard under the epoch of the next view, and tell the controller."""
        shard = self.shard_kind.restored(self.job, self.as_role(message.role, copy))
        shard.optimizers = self.job.optimizers(message.partition)
        shard.sums = sums_of(self.job, message.partition, copy)
        if self._arena is not None:
            shard.room = partial(self._room, message.partition)
        is_cut = message.source.kind not in (SourceKind.SHARD, SourceKind.INITIAL)
        if is_cut and message.role is Role.OWNER:
            shard.begin_from(message.committed)
        self._copies.setdefault(message.partition, {})[message.epoch] = shard
        self._send(CONTROLLER, Installed(message.epoch, message.partition, message.role))

    def _room(self, partition: int, version: int) -> tuple[Array | None, ...]:
        """Memory for a replica's blocks of a version, next to those of the other partitions."""
        assert self._arena is not None
        return self._arena.blocks(partition, version)

    def fetch(self, message: Fetch, tag: int) -> bool:
        """Install a shard from data on this machine; False when another machine must be asked."""
        copies = self._copies.setdefault(message.partition, {})
        source = message.source
        if message.epoch in copies:
            self._send(CONTROLLER, Installed(message.epoch, message.partition, message.role))
        elif source.kind in (SourceKind.INITIAL, SourceKind.CHECKPOINT):
            stored = stored_cut(self.stores, self.job, message.partition, source)
            self.install(message, ShardCopy(stored, None, ()))
        elif source.kind is SourceKind.SHARD and source.node == self.me:
            copies[message.epoch] = copies[tag]  # not moved: the same shard under its new tag
            self._send(CONTROLLER, Installed(message.epoch, message.partition, message.role))
        elif source.kind is SourceKind.OWN_CUT and source.node == self.me:
            cut_here = self.own_cut(message.partition, tag)
            assert cut_here is not None, (message, self._parts.committed)
            self.install(message, ShardCopy(cut_here, None, ()))
        else:
            return False
        return True

    def adopt(self, view: View, now_s: float) -> None:
        """Serve the partitions that a durable view gives to this machine, and drop the others."""
        self.stores.release()
        self._view = view
        self.hold, self.end, self.read_up_to = None, None, -1
        held = self.job.exchange.held(view, self.me)
        self._copies = {p: {view.epoch: self._copies[p][view.epoch]} for p in held}
        if self.resident is not None:
            own = view.partitions_of(self.me) if self.job.exchange.shares_state else None
            self.resident.take(self._shards(view.epoch), own)
        has_plans = self.job.balancer is not None and 0 in held
        self._plans = ClockPlans(self.job, view, self._tell_plan) if has_plans else None
        self._parts.adopt(view, self._shards(view.epoch))
        for squares in self._norms.send_all(view, self._shards(view.epoch)):
            self.take_squares(self.me, squares, now_s)
        for partition, shard in self._shards(view.epoch).items():
            before = shard.version
            shard.pass_complete(now_s)
            if shard.version != before:
                self._went_on(view.epoch, partition, shard, before, now_s)
        # Workers that got the view earlier have already sent their only pull: answer them now.
        early, self._waiting = self._waiting, {}
        for pulls in early.values():
            for (worker, _), pull in pulls.items():
                if pull.epoch == view.epoch:
                    self.pull(worker, pull)
