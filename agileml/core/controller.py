"""The elasticity controller: events in, commands out. It holds nothing that cannot be asked again but one record.

up -> admitted -> ready -> MEMBER -> notice -> (change) -> released
                              |                              ^
                              +-> dead ----------------------+

A change, for whatever reason (join, notice, failure, other stage, restart of the controller):

CLAIM --durable--> PREPARE --all live nodes promised--> INSTALL --all installed--> COMMIT --durable--> announce
  ^                   |                                    |                          |
  +-------------------+---- a death or a notice: the next epoch starts over -----------+ (then the next change)

Stage 1: ParamServs on reliable machines, workers on all.
Stage 2: ActivePSs on transient machines, BackupPSs on reliable ones, workers on all.
Stage 3: as 2, but no workers on reliable machines.
Stages 1 -> 2: actives get the shards, reliable machines keep their committed cut as backups. 2 -> 1: actives
hand over what they have, the open clock included. 2 <-> 3: only work moves. All are the same change with another
placement (thesis 4.2; PROTOCOL: CHANGE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agileml.core.change import LostError, plan_change
from agileml.core.change_run import ChangeRun, Phase
from agileml.core.commands import (
    ControllerCommand,
    Finished,
    Halt,
    HaltKind,
    Note,
    Persist,
    Released,
    Seal,
    Send,
)
from agileml.core.cutting import CutRule, OpenCut
from agileml.core.events import (
    Admit,
    ControllerEvent,
    NodeDown,
    NodeLost,
    NodeSeen,
    NodeUp,
    Notice,
    NoticeCancelled,
    Persisted,
    Received,
    Sealed,
    SealFailed,
    Superseded,
    Tick,
)
from agileml.core.job import Job
from agileml.core.membership import Member, Membership
from agileml.core.messages import (
    Announce,
    Failure,
    Heard,
    Installed,
    Limit,
    Load,
    Message,
    Missed,
    NameCut,
    Prepare,
    Promise,
    Release,
    Save,
    Saved,
    SaveFailed,
    Status,
    Stored,
)
from agileml.core.placement import StageRule
from agileml.core.plan import Fault, PlannedEvent, PlanRunner, Strike
from agileml.core.progress_log import ProgressLog
from agileml.core.record import Record
from agileml.core.saving import Checkpoint, OpenSave
from agileml.core.tier import Tier
from agileml.core.triggers import slices_for, why_change, why_start
from agileml.core.view import CutId, View


@dataclass(frozen=True)
class ControllerSettings:
    """`expected`: machines that must be there before the first view.

    `restart_wait_s`: how long a controller that took over waits for members that it has not heard.
    `worth_finishing_s`: in clocks longer than this a leaver ends its part of the open clock, if its notice allows.
    """

    rule: StageRule = field(default_factory=StageRule)
    cuts: CutRule = field(default_factory=CutRule)
    timeout_s: float = 1.0
    retry_s: float = 0.5
    join_wait_s: float = 1.0
    restart_wait_s: float = 10.0
    worth_finishing_s: float = 0.2
    expected: int = 1
    seed: int = 0
    checkpoint_every_s: float | None = None


class Controller:
    """One controller process.

    `record` is the newest durable record there was (None: the run is new), `checkpoint` the newest whole one (a new
    run goes on from it).
    """

    def __init__(
        self,
        name: str,
        job: Job,
        settings: ControllerSettings,
        plan: Sequence[PlannedEvent] = (),
        record: Record | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.name = name
        self.job = job
        self.settings = settings
        self.record = record or Record(0, name)
        self.members = Membership(settings.timeout_s)
        self.plan = PlanRunner(plan, settings.seed, self.record.plan_fired)
        self._out: list[ControllerCommand] = []
        self._now_s = 0.0
        self._writing: Record | None = None
        self._running: ChangeRun | None = None
        self._halted = False
        self._restarted = self.record.view is not None
        self._listen_until_s: float | None = None
        self._versions: dict[int, int] = {}
        self._cut = OpenCut(job.layout.partitions)
        self._log = ProgressLog(None if self._restarted or checkpoint else 0)
        self._save = OpenSave(settings.checkpoint_every_s, job.layout.partitions, checkpoint)
        self._resend_due_s = 0.0
        self._strike_when_durable: Strike | None = None
        self._takeover = self.record.number > 0

    # -- what others may ask --------------------------------------------------------------------------------

    @property
    def view(self) -> View | None:
        """The durable view."""
        return self.record.view

    @property
    def completed(self) -> int:
        """Clocks that every partition has applied, as far as is known."""
        if self.view is None:
            return 0
        known = [self._versions.get(p, self.view.base) for p in range(self.job.layout.partitions)]
        return min(known)

    @property
    def limit(self) -> int:
        """Clocks >= the limit may not start yet."""
        return self.plan.limit(self.job.clocks)

    def count_members(self) -> tuple[int, int]:
        """(reliable, transient) members of the durable view."""
        members = self.view.members if self.view else ()
        transient = sum(node in self.members.nodes and self._is_transient(node) for node in members)
        return len(members) - transient, transient

    @property
    def is_quiet(self) -> bool:
        """True when no change is under way and every member works under the durable view."""
        view = self.view
        return (
            view is not None
            and self._running is None
            and self._writing is None
            and all(self.members.epoch(node) == view.epoch for node in view.members)
        )

    # -- the entrance ---------------------------------------------------------------------------------------

    def handle(self, event: ControllerEvent, now_s: float) -> list[ControllerCommand]:
        """Something happened; what is to be done about it."""
        self._now_s = now_s
        if self._halted:
            return []
        match event:
            case NodeUp():
                admitted = event.admitted or (self.view is not None and event.node in self.view.members)
                self.members.up(event.node, event.tier, event.allocation, admitted, now_s)
            case NodeSeen():
                self.members.heard(event.node, now_s)
            case NodeDown():
                self._down(event.node, event.reason)
            case NodeLost():
                self._lost(event.node, event.reason)
            case Admit():
                self._admit(event.node)
            case Notice():
                self._notice(event)
            case NoticeCancelled():
                if (member := self.members.nodes.get(event.node)) and not member.is_released:
                    member.deadline_s = None
            case Received():
                self._received(event.sender, event.message)
            case Persisted():
                self._persisted(event.number)
            case Superseded():
                self._halt(HaltKind.REPLACED, f"another controller wrote record {event.number}")
            case Sealed():
                self._save.sealed(event.name)
                self._note("checkpoint", clock=event.name.clock)
            case SealFailed():
                self._save_failed(event.name, event.reason)
            case Tick():
                self._tick()
        self._advance()
        out, self._out = self._out, []
        return out

    def _send(self, to: str, message: Message) -> None:
        self._out.append(Send(to, message))

    def _note(self, kind: str, **fields: Any) -> None:
        self._out.append(Note(kind, fields))

    def _halt(self, kind: HaltKind, reason: str, trace: str = "") -> None:
        self._halted = True
        self._out.append(Halt(kind, reason, trace))

    # -- machines -------------------------------------------------------------------------------------------

    def _down(self, node: str, reason: str) -> None:
        member = self.members.nodes.get(node)
        if member is None or member.is_gone:
            return
        member.is_gone = True
        if not member.is_released:
            self._note("lost", machines=[node], reason=reason)

    def _lost(self, node: str, reason: str) -> None:
        member = self.members.nodes.get(node)
        if member is not None and member.is_alive:
            member.is_silent = True
            self._note("lost", machines=[node], reason=reason)

    def _admit(self, node: str) -> None:
        member = self.members.nodes.get(node)
        if member is not None and not member.admitted:
            member.admitted = True

    def _notice(self, event: Notice) -> None:
        member = self.members.nodes.get(event.node)
        if member is None or member.is_gone or member.is_released or member.deadline_s is not None:
            return  # one that is only silent may come back, and must not get work again
        member.deadline_s = event.deadline_s
        self._note("notice", machines=[event.node], warning_s=event.deadline_s - self._now_s)

    def _tick(self) -> None:
        for member in self.members.check(self._now_s):
            reason = f"silent for {self.settings.timeout_s:g} s"
            self._note("lost", machines=[member.name], reason=reason)
        if self._now_s >= self._resend_due_s:
            self._resend_due_s = self._now_s + self.settings.retry_s
            self._resend()

    # -- messages -------------------------------------------------------------------------------------------

    def _received(self, sender: str, message: Message) -> None:
        member = self.members.heard(sender, self._now_s)
        if member is None:
            return
        match message:
            case Status():
                self._status(member, message)
            case Promise() if self._running:
                self._running.promise(sender, message)
            case Installed() if self._running:
                self._running.installed(message)
            case Stored() if self._is_current(message.epoch):
                self._cut.stored(message.partition, message.clock)
            case Missed() if self._is_current(message.epoch) and self._cut.is_open_at(message.clock):
                self._cut.missed(message.version, self._interval(), self.job.clocks)
                self._send_cut()
            case Saved():
                if (parts := self._save.saved(message)) is not None:
                    self._out.append(Seal(message.cut, tuple(parts)))
            case SaveFailed():
                self._save_failed(message.cut, message.reason)
            case Failure():
                problem = f"machine {sender}: {message.problem}"
                self._note("error", machine=sender, problem=message.problem, trace=message.trace)
                self._halt(HaltKind.USER_CODE, problem, message.trace)
            case _:
                pass  # of another epoch

    def _save_failed(self, name: CutId, reason: str) -> None:
        if self._save.failed(name):
            self._note("checkpoint_failed", clock=name.clock, reason=reason)

    def _is_current(self, epoch: int) -> bool:
        return self.view is not None and self._running is None and epoch == self.view.epoch

    def _status(self, member: Member, status: Status) -> None:
        member.status = status
        if member.ready_since_s is None and self._is_loaded(member):
            member.ready_since_s = self._now_s
        if self.view is not None and self._running is None and status.epoch == self.view.epoch:
            for partition, version in status.versions:
                self._versions[partition] = max(version, self._versions.get(partition, 0))
            self._out.extend(self._log.add(status.progress))  # of this timeline: a late one may be of another
        if status.progress and self._log.heard is not None:
            self._send(member.name, Heard(self._log.heard))
        if self._running is None and self.view is not None and status.epoch < self.view.epoch:
            self._announce_to(member.name)

    def _is_loaded(self, member: Member) -> bool:
        """A machine is ready when it has the slices it would get if it joined now."""
        assert member.status is not None
        wanted = slices_for(member, self.members, self.settings.rule, self.job.slices)
        if wanted & ~member.status.loaded:
            self._send(member.name, Load(wanted))
            return False
        return True

    # -- changes --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do whatever can be done now. At most one durable write is under way at a time."""
        if self._halted or self._writing is not None or self.record.finished:
            return
        if self._takeover:
            # The first write of a new controller is what makes the older one stop.
            self._takeover = False
            self._persist(replace(self.record, controller=self.name))
            return
        if self._restarted and self._is_listening():
            return
        if self._running is not None:
            self._drive(self._running)
            return
        self._release_leavers()
        self._fire_plan()
        if self._writing is not None:
            return
        if (trigger := self._trigger()) is not None:
            self._claim(trigger)
        elif self._begin_save():
            self._send_save()
        elif self._cut.is_whole:
            assert self.view is not None
            assert self._cut.next is not None
            self._persist(replace(self.record, committed=CutId(self._cut.next, self.view.epoch)))
        elif self._is_done():
            self._persist(replace(self.record, finished=True))
        elif (
            self.view is not None and self._cut.next is None and self.record.committed.clock < self.job.clocks
        ):
            version = max([self.view.base, self.record.committed.clock, *self._versions.values()])
            self._cut.name(version, self._interval(), self.job.clocks)
            self._send_cut()

    def _is_listening(self) -> bool:
        """True after a restart until every member of the view was heard, or did not speak for long enough."""
        assert self.view is not None
        if self._listen_until_s is None:
            self._listen_until_s = self._now_s + self.settings.restart_wait_s
        nodes = self.members.nodes
        heard = [node for node in self.view.members if node in nodes and nodes[node].status is not None]
        return len(heard) < len(self.view.members) and self._now_s < self._listen_until_s

    def _is_done(self) -> bool:
        is_last = self.record.committed.clock == self.job.clocks
        return is_last and self.plan.is_over and self.is_quiet and self._save.cut is None

    def _begin_save(self) -> bool:
        committed = self.record.committed
        is_last = committed.clock == self.job.clocks
        return self._save.begin(committed, self._now_s, is_last=is_last) is not None

    def _send_save(self) -> None:
        assert self.view is not None
        if self._save.cut is not None:
            for node in sorted(set(self.view.backup)):
                self._send(node, Save(self._save.cut))

    def _trigger(self) -> str | None:
        """Why the arrangement must change, if it must."""
        settings = self.settings
        if self.view is None:
            return why_start(self.members, settings.expected)
        if self._restarted:
            return "restart of the controller"
        return why_change(
            self.view, self.members, settings.rule, self._now_s, settings.join_wait_s, self.completed
        )

    def _claim(self, trigger: str) -> None:
        epoch = self.record.claimed + 1
        self._running = ChangeRun(epoch, trigger, self._now_s)
        self._persist(replace(self.record, claimed=epoch))

    def _drive(self, running: ChangeRun) -> None:
        alive = [member.name for member in self.members.alive()]
        if running.phase is Phase.PREPARE and not running.unpromised(alive):
            self._plan_and_install(running)
        if running.phase is Phase.INSTALL and not self._halted:
            assert running.change is not None
            if not running.is_good(self.members):
                self._claim(running.trigger)
            elif not any(running.outstanding()):
                running.phase = Phase.COMMIT
                change = running.change
                self._persist(replace(self.record, view=change.view, committed=change.committed))

    def _plan_and_install(self, running: ChangeRun) -> None:
        view = self.view
        machines = self.members.machines(view.member_set if view else frozenset())
        if not machines.reliable and view is not None:
            # A reliable machine that is told to go stays until there is another, and one that has not loaded its
            # slices yet can hold parameters all the same.
            there = [m for m in self.members.alive() if m.tier is Tier.RELIABLE and m.admitted]
            best = [m for m in there if m.deadline_s is None] or there
            machines = replace(machines, reliable=tuple(m.name for m in best))
        alive = {member.name for member in self.members.alive()}
        promises = {node: promise for node, promise in running.promises.items() if node in alive}
        try:
            change = plan_change(
                self.job,
                self.settings.rule,
                running.epoch,
                view,
                self.record.committed,
                promises,
                machines,
                self._finishing(),
                self._save.newest,
            )
        except LostError as error:
            if not self._waits_for_silent(running, str(error)):
                self._halt(HaltKind.LOST, str(error))
            return
        is_given_up = view is not None and change.committed != self.record.committed
        if is_given_up and self.record.committed.clock and self._waits_for_silent(running, change.reason):
            return
        running.change = change
        running.phase = Phase.INSTALL
        for node, fetch in running.change.fetches:
            self._send(node, fetch)

    def _finishing(self) -> list[str]:
        """Members that must go but have time for the clock that they compute, where that pays for another change."""
        clock_s = self._log.clock_s
        if self.view is None or clock_s is None or clock_s < self.settings.worth_finishing_s:
            return []
        return [
            node
            for node in self.view.members
            if self.members.is_alive(node)
            and (deadline_s := self.members.nodes[node].deadline_s) is not None
            and deadline_s - self._now_s > 2 * clock_s
        ]

    def _waits_for_silent(self, running: ChangeRun, reason: str) -> bool:
        """Something is nowhere among the machines that answer. One that is only silent may still bring it back."""
        known = self.members.nodes
        silent = [m.name for m in known.values() if m.is_silent and not (m.is_gone or m.is_released)]
        silent += [node for node in (self.view.members if self.view else ()) if node not in known]
        if silent and not running.is_waiting:
            running.is_waiting = True
            self._note("waiting", machines=silent, reason=reason)
        return bool(silent)

    # -- durable writes -------------------------------------------------------------------------------------

    def _persist(self, record: Record) -> None:
        self._writing = replace(record, number=self.record.number + 1, plan_fired=self.plan.fired)
        self._out.append(Persist(self._writing.number, self._writing.to_text()))

    def _persisted(self, number: int) -> None:
        if self._writing is None or number != self._writing.number:
            return
        before, self.record, self._writing = self.record, self._writing, None
        if self._strike_when_durable is not None:
            self._out.append(self._strike_when_durable)
            self._strike_when_durable = None
            return
        if self.record.finished:
            assert self.view is not None
            self._out.append(Finished(self.record.committed.clock, self.view.backup))
        elif self.record.view is not before.view:
            self._committed_view(before)
        elif self.record.claimed != before.claimed:
            running = self._running
            assert running is not None
            running.phase = Phase.PREPARE
            for member in self.members.alive():
                self._prepare(member.name)
        elif self.record.committed != before.committed:
            self._note("cut", clock=self.record.committed.clock)
            self._cut.next = None
            self._send_cut()

    def _committed_view(self, before: Record) -> None:
        running, view = self._running, self.view
        assert running is not None
        assert running.change is not None
        assert view is not None
        known = max(self._versions.values(), default=0)
        self._running = None
        self._restarted = False
        self._versions = {}
        self._cut = OpenCut(self.job.layout.partitions)
        redone = self._log.roll_back(known, view.base) if running.change.rolled_back else 0
        old = set(before.view.members) if before.view else set()
        if joined := [node for node in view.members if node not in old]:
            self._note("join", machines=joined, tiers=[self.members.nodes[n].tier.value for n in joined])
        tiers = [self.members.nodes[node].tier for node in view.members]
        self._note(
            "view",
            epoch=view.epoch,
            stage=view.stage,
            reliable=tiers.count(Tier.RELIABLE),
            transient=tiers.count(Tier.TRANSIENT),
            owners=sorted(set(view.owner)),
            workers=view.workers(),
            base=view.base,
            redone=redone,
            rolled_back=running.change.rolled_back,
            reason=f"{running.trigger}: {running.change.reason}",
        )
        self._note(
            "change", epoch=view.epoch, trigger=running.trigger, seconds=self._now_s - running.started_s
        )
        for member in self.members.alive():
            self._announce_to(member.name)

    def _release_leavers(self) -> None:
        """A machine that is told to go and holds nothing under the durable view may go."""
        view = self.view
        if view is None:
            return
        for member in self.members.alive():
            if member.deadline_s is not None and member.name not in view.member_set:
                member.is_released = True
                self._send(member.name, Release(view.epoch))
                self._out.append(Released(member.name))
                self._note("released", machines=[member.name])

    # -- telling, and telling again -------------------------------------------------------------------------

    def _prepare(self, node: str) -> None:
        assert self._running is not None
        tag = self.view.epoch if self.view else 0
        self._send(node, Prepare(self._running.epoch, tag, self.record.committed))

    def _announce_to(self, node: str) -> None:
        assert self.view is not None
        self._send(node, Announce(self.view, self.limit))

    def _interval(self) -> int:
        return self.settings.cuts.interval(self._log.clock_s)

    def _send_cut(self) -> None:
        assert self.view is not None
        for node in self.view.members:
            self._send(node, NameCut(self.view.epoch, self.record.committed, self._cut.next))

    def _resend(self) -> None:
        """Everything that has not been answered."""
        running, view = self._running, self.view
        for member in self.members.alive():
            if member.ready_since_s is None and member.status is not None:
                self._is_loaded(member)
        if running is not None:
            if running.phase is Phase.PREPARE:
                for node in running.unpromised(member.name for member in self.members.alive()):
                    self._prepare(node)
            elif running.phase is Phase.INSTALL:
                for node, fetch in running.outstanding():
                    self._send(node, fetch)
            return
        if view is None:
            return
        for member in self.members.alive():
            if member.epoch < view.epoch:
                self._announce_to(member.name)
            else:
                self._send(member.name, Limit(view.epoch, self.limit))
        if self.record.committed.clock < self.job.clocks or self._cut.next is not None:
            self._send_cut()
        self._send_save()

    def _is_transient(self, node: str) -> bool:
        return self.members.nodes[node].tier is Tier.TRANSIENT

    # -- the plan -------------------------------------------------------------------------------------------

    def _fire_plan(self) -> None:
        view = self.view
        if view is None or self._restarted or self.plan.is_over:
            return
        gone = [m.name for m in self.members.nodes.values() if m.is_gone]
        done = self.plan.settle(view.members, gone, self._now_s, is_quiet=self.is_quiet)
        if done is not None:
            self._note("plan", index=done[0], event=str(done[1]), status="finished")
        before = self.limit
        stay: dict[Tier, list[str]] = {tier: [] for tier in Tier}
        for name in view.members:
            if (member := self.members.nodes.get(name)) is not None and self.members.may_hold(member):
                stay[member.tier].append(name)
        fired = self.plan.fire(self.completed, self.members.waiting(), stay, self._now_s)
        if fired is None:
            return
        self._note("plan", index=fired.index, event=str(fired.event), status="fired")
        for action in fired.actions:
            match action:
                case Admit():
                    self._admit(action.node)
                case Notice():
                    self._notice(action)
                case Strike():
                    self._strike(action)
        if self.limit != before:
            for node in view.members:
                self._send(node, Limit(view.epoch, self.limit))

    def _strike(self, strike: Strike) -> None:
        self._note("fault", fault=strike.kind.value, machines=list(strike.nodes), seconds=strike.seconds)
        if strike.kind is Fault.KILL_CONTROLLER:
            # It must not strike again after the restart: that it did is durable before it does.
            self._strike_when_durable = strike
            self._persist(self.record)
        else:
            self._out.append(strike)
