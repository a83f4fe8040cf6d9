"""The steps of a membership change: claim an epoch, prepare, install, commit, announce.

`change.change_plan` computes the next view and `change.run` tracks progress; this module sends the requests and
writes the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agileml.core.change.change_plan import Change, LostError, plan_change
from agileml.core.change.run import ChangePhase, ChangeRun
from agileml.core.change.silence import awaited
from agileml.core.change.triggers import why_change, why_start
from agileml.core.controller.control import Control
from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.controller.notices import NoticeHandler
from agileml.core.controller.recutting import Recutting
from agileml.core.controller.stage_chooser import StageChooser
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.messages import Installed, Prepare, Promise
from agileml.core.protocol.view import View
from agileml.core.stage.placement import Machines
from agileml.events.run import (
    GaveUpWaiting,
    MachinesJoined,
    MembershipChanged,
    StagesArranged,
    WaitingForSilent,
)
from agileml.events.terms import Cause, Tier, Trigger


class MembershipChanges:
    """Begins a change when there is a trigger, and drives it until the new view is announced."""

    def __init__(self, control: Control, cuts: CutKeeper, stages: StageChooser) -> None:
        self._control = control
        self._cuts = cuts
        self._stages = stages
        self.gate = control.job.exchange.gate(control)
        self._notices = NoticeHandler(control, cuts)
        self._recutting = Recutting(control)
        self._listen_until_s: float | None = None
        self._has_noted_stages = False

    # -- before ---------------------------------------------------------------------------------------------

    def is_listening(self) -> bool:
        """True after a restart, until every member has reported or is gone, or `restart_wait_s` has passed."""
        control = self._control
        if not control.is_restarted:
            return False
        if self._listen_until_s is None:
            self._listen_until_s = control.now_s + control.settings.restart_wait_s
        nodes = control.members.nodes
        members = control.durable.members
        known = [node for node in members if node in nodes and (nodes[node].status or nodes[node].is_gone)]
        return len(known) < len(members) and control.now_s < self._listen_until_s

    def begin(self) -> bool:
        """Claim the next epoch if a change is due. True if so."""
        next_epoch = self._control.record.claimed + 1

        def plan(promises: Mapping[str, Promise]) -> Change:
            return self._plan_from(next_epoch, promises)

        trigger = self.gate.settle(self._trigger(), lambda: self._notices.move_s(plan))
        if trigger is not None and self._notices.waits(plan):
            trigger = None
        if trigger is not None:
            self._claim(trigger)
        return trigger is not None

    def _trigger(self) -> Trigger | None:
        """The reason for a change, if there is one."""
        control, settings = self._control, self._control.settings
        if control.view is None:
            return why_start(control.members, settings.expected)
        if control.is_restarted:
            return Trigger(Cause.RESTART)
        why = why_change(
            control.view,
            control.members,
            control.rule,
            control.now_s,
            settings.join_wait_s,
            control.completed,
        )
        return why or self._recutting.trigger(control.view)

    def _claim(self, trigger: Trigger) -> None:
        """Begin an attempt under the next epoch, which is written first: no other attempt may ever use it."""
        control = self._control
        epoch = control.record.claimed + 1
        control.begin_change(ChangeRun(epoch, trigger, control.now_s))
        control.persist(replace(control.record, claimed=epoch), self.claimed)

    # -- under way ------------------------------------------------------------------------------------------

    def claimed(self) -> None:
        """Go on to PREPARE, now that the claim is durable: `drive` asks all machines for their promises."""
        running = self._control.change
        assert running is not None
        running.phase = ChangePhase.PREPARE

    def promised(self, node: str, message: Promise) -> None:
        """Record that a machine has promised the epoch and frozen its shards."""
        if (running := self._control.change) is not None:
            running.promise(node, message)

    def installed(self, node: str, message: Installed) -> None:
        """Record that a machine is ready for a role in the next view."""
        if (running := self._control.change) is not None:
            running.installed(node, message)

    def drive(self, running: ChangeRun) -> None:
        """Take the steps that the answers so far allow."""
        control = self._control
        alive = [member.name for member in control.members.alive()]
        if running.phase is ChangePhase.PREPARE:
            for node in running.unasked(alive):  # including nodes that appeared meanwhile
                self._prepare(running, node)
            if not running.unpromised(self._needed()):
                self._install(running)
        if running.phase is ChangePhase.INSTALL and not control.is_halted:
            assert running.change is not None
            if not running.is_good(control.members):
                self._claim(running.trigger)
            elif not any(running.outstanding()):
                running.phase = ChangePhase.COMMIT
                change = running.change
                self._notices.copied(change, running.promises, running.installing_since_s)
                record = replace(control.record, view=change.view, committed=change.committed)
                before = control.view
                control.persist(record, lambda: self.committed(before))

    def _needed(self) -> list[str]:
        """The machines whose promises the plan waits for: those that may hold state, or may get some.

        The controller asks the others too, so that they can join once they have loaded their items. But a machine that
        is still loading may answer late or never.
        """
        members, view, machines = self._control.members, self._control.view, self._machines()
        known = {*machines.reliable, *machines.transient, *(view.members if view else ())}
        return [member.name for member in members.alive() if member.name in known or member.epoch > 0]

    def _install(self, running: ChangeRun) -> None:
        """Plan the change and send its fetches. Where state is lost, wait for silent machines first, or halt."""
        control, view = self._control, self._control.view
        try:
            change = self._plan(running)
        except LostError as error:
            # Before the first view nothing is lost: a reliable machine that is still loading may become ready.
            is_coming = view is None and bool(control.members.expected().reliable)
            if not is_coming and not self._waits_for_silent(running, str(error)):
                since_s = running.waiting_since_s
                waited = "" if since_s is None else f", and none came back in {control.now_s - since_s:.0f} s"
                control.halt(HaltKind.LOST, f"{error}{waited}")
            return
        is_given_up = view is not None and change.committed != control.record.committed
        is_worse = is_given_up and change.rolled_back and bool(control.record.committed.clock)
        if is_worse and self._waits_for_silent(running, change.reason):
            return
        if (is_worse or view is None) and (why := self._cuts.unread):
            start = "the run would begin at its start: this controller could not read the checkpoints when it began"
            control.halt(HaltKind.UNREAD, f"{start}: {why}")
            return
        running.change = change
        running.phase = ChangePhase.INSTALL
        running.installing_since_s = control.now_s
        for node, fetch in change.fetches:
            control.send(node, fetch)

    def _plan(self, running: ChangeRun) -> Change:
        """Plan the change from the promises of the machines that are alive. Raises LostError."""
        alive = {member.name for member in self._control.members.alive()}
        promises = {node: promise for node, promise in running.promises.items() if node in alive}
        return self._notices.choose(lambda some: self._plan_from(running.epoch, some), promises)

    def _plan_from(self, epoch: int, promises: Mapping[str, Promise]) -> Change:
        """Plan the change that these promises allow. Raises LostError."""
        control = self._control
        return plan_change(
            control.job,
            control.rule,
            epoch,
            control.view,
            control.record.committed,
            promises,
            replace(control.weighted(self._machines()), bytes_per_s=self._cuts.links.bytes_per_s),
            self._finishing(promises),
            self._cuts.newest,
        )

    def _machines(self) -> Machines:
        """The machines that may own, back up or compute something after the change."""
        members, view = self._control.members, self._control.view
        machines = members.machines(view.member_set if view else frozenset())
        if machines.reliable or (view is None and members.expected().reliable):
            return machines
        # A reliable machine with a notice stays until another can replace it; one still loading slices can hold
        # parameters.
        there = [m for m in members.alive() if m.tier is Tier.RELIABLE and m.admitted]
        best = [m for m in there if m.deadline_s is None] or there
        return replace(machines, reliable=tuple(m.name for m in best))

    def _finishing(self, promises: Mapping[str, Promise]) -> list[str]:
        """Members with a notice and time to finish their current clock, if finishing it is worth a further change."""
        control = self._control
        clock_s = control.log.clock_s
        if control.view is None or clock_s is None or control.job.elastic is not None:
            return []  # a change ends the superstep, so a leaver has no part of it to finish
        if control.job.draw_units is not None:
            return []  # others draw what a leaver has not pushed
        if control.job.exchange.has_replicas:
            return []  # the change has already waited for the clock to end
        versions = [state.version for promise in promises.values() for _, state in promise.shards]
        if min(versions, default=0) >= control.limit:
            return []  # nobody may begin the clock, for as long as the plan waits for machines or for this leaver
        machines = self._machines()  # with the last reliable ones, which stay in spite of a notice
        staying = {*machines.reliable, *machines.transient}
        return [
            node
            for node in control.view.members
            if node not in staying
            and control.members.is_alive(node)
            and (deadline_s := control.members.nodes[node].deadline_s) is not None
            and deadline_s - control.now_s > 2 * clock_s
            and self._computes_s(node, clock_s) >= control.settings.worth_finishing_s
        ]

    def _computes_s(self, node: str, clock_s: float) -> float:
        """Seconds of each clock that a machine spends computing; all of `clock_s` if unknown."""
        share = self._control.members.nodes[node].computing
        return clock_s if share is None else share * clock_s

    def _waits_for_silent(self, running: ChangeRun, reason: str) -> bool:
        """Return True while a silent machine may still bring back state that no responding machine has."""
        control, limit_s = self._control, self._control.settings.silent_limit_s
        is_first = running.waiting_since_s is None
        since_s = control.now_s if running.waiting_since_s is None else running.waiting_since_s
        names = awaited(control.members, control.view, since_s, limit_s)
        if names and is_first:
            running.waiting_since_s = since_s
            control.note(WaitingForSilent(tuple(names), reason, limit_s))
        elif not names and not is_first:
            control.note(GaveUpWaiting(control.now_s - since_s, reason))
        return bool(names)

    def _prepare(self, running: ChangeRun, node: str) -> None:
        """Ask a machine to promise the epoch and freeze its shards."""
        control = self._control
        tag = control.view.epoch if control.view else 0
        control.send(node, Prepare(running.epoch, tag, control.record.committed))

    def resend(self, running: ChangeRun) -> None:
        """Repeat unanswered requests."""
        if running.phase is ChangePhase.PREPARE:
            for node in running.unpromised(member.name for member in self._control.members.alive()):
                self._prepare(running, node)
        elif running.phase is ChangePhase.INSTALL:
            for node, fetch in running.outstanding():
                self._control.send(node, fetch)

    # -- after ----------------------------------------------------------------------------------------------

    def committed(self, before: View | None) -> None:
        """Announce the view, which is durable now, and log the change."""
        control = self._control
        running, view = control.change, control.durable
        assert running is not None and running.change is not None
        known = control.reached
        completed = min(control.version(p) or 0 for p in range(control.job.layout.partitions))
        control.end_change()
        self._cuts.begin_epoch(is_torn=bool(running.change.lacking))
        if running.change.rolled_back:
            control.steps.roll_back()
        is_back = running.change.rolled_back or completed > view.base
        redone = control.log.roll_back(known, view.base) if is_back else 0
        old = before.member_set if before else frozenset()
        if joined := [node for node in view.members if node not in old]:
            control.note(MachinesJoined({node: control.tier(node) for node in joined}))
        tiers = [control.tier(node) for node in view.members]
        seconds = control.now_s - running.started_s
        control.note(
            MembershipChanged(
                epoch=view.epoch,
                trigger=running.trigger,
                reason=running.change.reason,
                seconds=seconds,
                stage=view.stage,
                reliable=tiers.count(Tier.RELIABLE),
                transient=tiers.count(Tier.TRANSIENT),
                owners=tuple(sorted(set(view.owner))),
                workers=tuple(view.workers()),
                base=view.base,
                redone=redone,
                rolled_back=running.change.rolled_back,
            )
        )
        self._note_stages(view)
        for member in control.members.alive():
            control.announce_to(member.name)
        self._cuts.send_save()  # other machines may have the parts now
        for name in control.members.forget(view.member_set | control.plan.concerned):
            self._cuts.links.forget(name)
        self._stages.changed(seconds)
        if before is not None:  # the first view waits for machines to load
            self._recutting.changed(seconds)

    def _note_stages(self, view: View) -> None:
        """Log the stages of a pipeline without a flush.

        The first call logs all of them, because an earlier controller may have died before it logged them.
        """
        for each in view.stages[-1:] if self._has_noted_stages else view.stages:
            self._control.note(StagesArranged(view.epoch, each.clock, each.ends, each.overlapping))
        self._has_noted_stages = True
