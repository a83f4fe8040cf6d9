"""The elasticity controller: events in, commands out. Its only durable state is one record; a new controller learns
the rest from the machines' reports.

up -> admitted -> ready -> MEMBER -> notice -> (change) -> released
                              |                              ^
                              +-> dead ----------------------+

A membership change, whatever its trigger (join, notice, failure, another stage, restart of the controller):

CLAIM --durable--> PREPARE --all live nodes promised--> INSTALL --all installed--> COMMIT --durable--> announce
  ^                   |                                    |                          |
  +-------------------+---- a death or a notice: the next epoch starts over -----------+ (then the next change)

Stage 1: reliable machines own the partitions (the thesis' ParamServs), and all machines compute.
Stage 2: transient machines own them (ActivePSs), reliable ones back them up (BackupPSs), and all compute.
Stage 3: as 2, but reliable machines do not compute.
Stages 1 -> 2: transient machines get the shards, and reliable ones keep their committed cut as backups. 2 -> 1: the
owners hand over their shards, the open clock included. 2 <-> 3: only slices move. All are the same change with
different placements (thesis 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agileml.core.change.membership import Member
from agileml.core.change.triggers import slices_for
from agileml.core.controller.changes import MembershipChanges
from agileml.core.controller.choices import Choice, event_of
from agileml.core.controller.control import Control, ControllerSettings
from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.controller.link_watch import LinkWatch
from agileml.core.controller.planned_events import PlannedEvents
from agileml.core.controller.progress_log import ProgressLog
from agileml.core.controller.quarantine import Quarantine
from agileml.core.controller.run_finish import RunFinish
from agileml.core.controller.stage_chooser import StageChooser
from agileml.core.cuts.checkpoint import Checkpoint, Unreadable
from agileml.core.protocol.commands import ControllerCommand, Finished, HaltKind, Released
from agileml.core.protocol.inputs import (
    Admit,
    ControllerInput,
    CutJudged,
    Measured,
    NodeDown,
    NodeFailed,
    NodeLost,
    NodeSeen,
    NodeUp,
    Notice,
    Persisted,
    Received,
    Sealed,
    SealFailed,
    StepsWritten,
    Stop,
    Superseded,
    Tick,
)
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import (
    Failure,
    GroupFailed,
    Installed,
    Limit,
    Load,
    Message,
    Missed,
    Promise,
    Release,
    ReportsReceived,
    Saved,
    SaveFailed,
    Status,
    Stored,
    Unreachable,
)
from agileml.core.protocol.plan import PlannedEvent
from agileml.core.protocol.record import Record
from agileml.core.protocol.superstep_messages import StepsTaken, SuperstepChosen
from agileml.core.protocol.view import View
from agileml.events.run import MachineLost, MachineNoticed, MachineReleased, StopAsked
from agileml.events.terms import Tier

__all__ = ["Controller", "ControllerSettings"]


class Controller:
    """The state machine of one controller process. `name`: of the process, unique in the run.

    `record` is the newest durable record (None: the run is new), `checkpoint` the newest whole checkpoint (None: there
    is none), from which a new run resumes.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        settings: ControllerSettings,
        plan: Sequence[PlannedEvent] = (),
        record: Record | None = None,
        checkpoint: Checkpoint | Unreadable | None = None,
    ) -> None:
        record = record or Record(0, name)
        log = ProgressLog(None if record.view is not None or checkpoint else 0, job.metrics)
        self._control = Control(name, job, settings, plan, record, log)
        self._cuts = CutKeeper(self._control, checkpoint)
        self._stages = StageChooser(self._control, settings.auto_stage)
        self._changes = MembershipChanges(self._control, self._cuts, self._stages)
        self._planned = PlannedEvents(self._control)
        self._resend_due_s = 0.0
        self._quarantine = Quarantine(self._control)
        self._links = LinkWatch(self._control)
        self._takeover = record.number > 0
        self._finish = RunFinish(self._control, self._cuts)

    # -- queries --------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        """The durable record."""
        return self._control.record

    @property
    def view(self) -> View | None:
        """The durable view."""
        return self._control.view

    @property
    def completed(self) -> int:
        """Clocks that every partition has applied, as far as is known; before the first view those of a checkpoint."""
        newest = self._cuts.newest
        return newest.name.clock if self.view is None and newest else self._control.completed

    @property
    def limit(self) -> int:
        """Clocks >= the limit may not start yet."""
        return self._control.limit

    @property
    def held(self) -> Finished | None:
        """The committed cut, while it is held."""
        return self._cuts.held_cut

    @property
    def is_changing(self) -> bool:
        """True while a change is under way."""
        return self._control.change is not None

    @property
    def reported(self) -> int:
        """The reports of all clocks before this one have come, to this controller or to an earlier one."""
        return self._control.log.reported

    def count_members(self) -> tuple[int, int]:
        """Count the reliable and transient members that reported: of others a restarted controller knows no tier."""
        nodes = self._control.members.nodes
        tiers = [nodes[node].tier for node in (self.view.members if self.view else ()) if node in nodes]
        return tiers.count(Tier.RELIABLE), tiers.count(Tier.TRANSIENT)

    def handle(self, event: ControllerInput, now_s: float, *, acts: bool = True) -> list[ControllerCommand]:
        """Take an event, begin the next step that it allows, and return the commands for the shell. Without `acts`
        another event follows at once that begins it: to look for the next step is to look at every machine."""
        control = self._control
        control.begin_event(now_s)
        if control.is_halted:
            return []
        match event:
            case NodeUp():
                admitted = event.admitted or (self.view is not None and event.node in self.view.members)
                control.members.up(replace(event, admitted=admitted), now_s)
                if event.deadline_s is not None:
                    self._notice(event.node, event.deadline_s)
            case NodeSeen():
                control.members.seen(event.node, now_s)
                return []  # heartbeats are frequent, and the next tick is soon enough to act
            case Measured():
                if (member := control.members.record_message(event.node, now_s)) is not None:
                    member.measure(event, control.unit_cost(event.node))
                self._stages.measured(event)
                self._cuts.links.measured(event, now_s)
            case NodeFailed(up, failure):
                control.members.up(up, now_s)
                self._quarantine.failed(up.node, failure)
            case NodeDown():
                if control.members.gone(event.node):
                    control.note(MachineLost(event.node, event.loss, event.detail))
            case NodeLost():
                if control.members.lost(event.node, now_s):
                    control.note(MachineLost(event.node, event.loss, event.detail))
            case Admit():
                control.members.admit(event.node, event.capacity)
            case Notice():
                self._notice(event.node, event.deadline_s)
            case Received():
                self._received(event.sender, event.message)
            case Persisted():
                control.persisted(event.number)
            case Superseded():
                control.halt(HaltKind.REPLACED, f"another controller wrote record {event.number}")
            case Sealed() | SealFailed() | CutJudged():
                self._cuts.on_event(event)
            case StepsWritten():
                control.steps_written(event)
            case Stop():
                self._stop(event)
            case Tick():
                self._tick()
        if acts:
            self._advance()
        return control.take_commands()

    # -- machines -------------------------------------------------------------------------------------------

    def _notice(self, node: str, deadline_s: float) -> None:
        """Record a preemption notice, and report it unless it is a repeat."""
        control = self._control
        if control.members.notice(node, deadline_s):
            control.note(MachineNoticed(node, deadline_s - control.now_s))

    def _stop(self, event: Stop) -> None:
        if self._cuts.ending.stop(self.record.committed, event.deadline_s):
            self._control.note(StopAsked(self.completed))
            self._control.plan.drop()
            self._control.send_limit()

    def _tick(self) -> None:
        control = self._control
        for member in control.members.check(control.now_s):
            detail = "" if member.is_doubted else f"for {control.settings.timeout_s:g} s"
            control.note(MachineLost(member.name, member.loss, detail))
        self._links.judge()
        self._quarantine.give_up_late()
        self._quarantine.end_without_reliable()
        if control.now_s >= self._resend_due_s:
            self._resend_due_s = control.now_s + control.settings.retry_s
            self._resend()

    # -- messages -------------------------------------------------------------------------------------------

    def _received(self, sender: str, message: Message) -> None:
        control = self._control
        member = control.members.record_message(sender, control.now_s)
        if member is None:
            self._send_away(sender)
            return
        match message:
            case Status():
                self._status(member, message)
            case Promise():
                self._changes.promised(sender, message)
            case Installed():
                self._changes.installed(sender, message)
            case GroupFailed() if control.is_current(message.epoch):
                self._changes.gate.failed(sender, message)
            case _ if isinstance(message, Choice):
                if control.is_current(message.epoch):
                    control.note(event_of(sender, message))
            case SuperstepChosen() if control.is_current(message.epoch):
                control.note(control.steps.chosen(message))
            case StepsTaken() if control.is_current(message.epoch):
                control.steps_taken(sender, message)
            case Stored() if control.is_current(message.epoch):
                self._cuts.stored(message)
            case Missed() if control.is_current(message.epoch):
                self._cuts.missed(message)
            case Saved():
                self._cuts.saved(message)
            case SaveFailed():
                self._cuts.save_failed(message.cut, message.reason)
            case Failure():
                self._quarantine.failed(sender, message)
            case Unreachable():
                self._links.report(sender, message)  # what is left is of another epoch

    def _send_away(self, sender: str) -> None:
        """Repeat the release of a machine that still sends messages."""
        member = self._control.members.nodes.get(sender)
        if member is not None and member.is_released and not member.is_gone:
            self._control.send(sender, Release(self.view.epoch if self.view else 0))

    def _status(self, member: Member, status: Status) -> None:
        control = self._control
        member.status = status
        if member.ready_since_s is None and self._is_loaded(member):
            member.ready_since_s = control.now_s
        if control.is_current(status.epoch):
            control.report_versions(status.versions)
            # Progress of an older epoch may belong to another timeline.
            done = list(control.log.add(status.progress))
            if self.view is not None and member.name == self.view.owner[0] and not status.progress:
                control.log.none_left(dict(status.versions).get(0, 0))
            for event, at_s in done:
                control.note(event, at_s)
            for noted, at_s in control.log.take_noted():
                control.note(noted, at_s)
            self._stages.clocks(event.seconds for event, _ in done)
        if status.progress and control.log.completed is not None:
            control.send(member.name, ReportsReceived(control.log.completed))
        if control.change is None and control.view is not None and status.epoch < control.view.epoch:
            control.announce_to(member.name)

    def _is_loaded(self, member: Member) -> bool:
        """True when a machine has loaded the slices that it would get if it joined now, or has those of its share."""
        control, view = self._control, self.view
        assert member.status is not None
        if view is not None and member.name in view.member_set:
            return True  # only a new controller asks; what the member would get now may be other slices
        wanted = slices_for(member, control.members, control.rule, control.job.slices)
        if lacks_some := bool(wanted & ~member.status.loaded):
            control.send(member.name, Load(wanted))
        return not lacks_some

    # -- the next step --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Begin the most urgent step that is possible now. At most one durable write is under way."""
        control = self._control
        if control.is_halted or control.is_writing:
            return
        if control.record.finished:
            self._finish.report_again()
            return
        if self._takeover:
            # The first write of a new controller makes the older one stop.
            self._takeover = False
            control.persist(replace(control.record, controller=control.name))
            return
        self._links.take_back_reliable()
        if self._finish.at_deadline() or self._changes.is_listening():
            return
        if control.change is not None:
            self._changes.drive(control.change)
            return
        self._release_leavers()
        self._play()
        if control.is_writing:
            return
        if self._changes.begin() or self._cuts.begin_save() or self._cuts.commit():
            return
        if self._stages.decide():
            return
        if not self._finish.in_order():
            self._cuts.name_next()

    def _play(self) -> None:
        """Carry out the joins and notices of the plan that are due."""
        for action in self._planned.fire():
            match action:
                case Admit():
                    self._control.members.admit(action.node)
                case Notice():
                    self._notice(action.node, action.deadline_s)

    def _release_leavers(self) -> None:
        """Release the machines with a notice that hold nothing under the durable view."""
        control, view = self._control, self.view
        if view is None:
            return
        for member in control.members.release_leavers(view.member_set):
            control.send(member.name, Release(view.epoch))
            control.ask(Released(member.name))
            control.note(MachineReleased(member.name))

    def _resend(self) -> None:
        """Send every request again that a machine has not answered."""
        control, view = self._control, self.view
        for member in control.members.alive():
            if member.ready_since_s is None and member.status is not None:
                self._is_loaded(member)
        if control.change is not None:
            self._changes.resend(control.change)
            self._cuts.send_save()  # the one that the run may end with
            return
        if view is None:
            return
        for member in control.members.alive():
            if member.epoch < view.epoch:
                control.announce_to(member.name)
            else:
                control.send(member.name, Limit(view.epoch, control.limit))
        self._changes.gate.resend()
        self._cuts.resend()
