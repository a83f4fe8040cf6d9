"""The planned events of a run: fire the one that is due, and hold training at the clock of the next one."""

from __future__ import annotations

from collections.abc import Iterator

from agileml.core.controller.control import Control
from agileml.core.protocol.inputs import Admit, Notice
from agileml.core.protocol.plan import Fired, PlannedJoin, Strike
from agileml.events.run import FaultFired, PlanFinished, PlanFired, Warned
from agileml.events.terms import Fault, Tier


class PlannedEvents:
    """Fires planned events one at a time."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def fire(self) -> Iterator[Admit | Notice]:
        """The joins and notices that are due; faults go straight to the shell."""
        control, plan = self._control, self._control.plan
        if control.view is None or control.is_restarted or plan.is_over:
            return
        self._settle()
        before = control.limit
        fired = plan.fire(control.completed, control.members.waiting(), self._staying(), control.now_s)
        if fired is None:
            return
        control.note(PlanFired(fired.index, str(fired.event)))
        if isinstance(fired.event, PlannedJoin) and len(fired.actions) < fired.event.count:
            control.note(Warned(self._lacking(fired)))
        for action in fired.actions:
            if isinstance(action, Strike):
                self._strike(action)
            else:
                yield action
        if control.limit != before:
            control.send_limit()

    def _lacking(self, fired: Fired) -> str:
        """The sentence about a join that has not found as many machines as it asks for."""
        return (
            f"plan: {fired.event}: found {len(fired.actions)} machines that wait to join after "
            f"{self._control.settings.ready_limit_s:g} s (machines.wait_s); the run goes on with those"
        )

    def _settle(self) -> None:
        """Log the end of the event that fired last."""
        control = self._control
        gone = [m.name for m in control.members.nodes.values() if m.is_gone]
        members = control.durable.members
        done = control.plan.settle(members, gone, control.now_s, is_quiet=control.is_quiet)
        if done is not None:
            control.note(PlanFinished(done[0], str(done[1])))

    def _staying(self) -> dict[Tier, list[str]]:
        """Live members without a notice, by tier."""
        members = self._control.members
        stay: dict[Tier, list[str]] = {tier: [] for tier in Tier}
        for name in self._control.durable.members:
            if (member := members.nodes.get(name)) is not None and members.may_hold(member):
                stay[member.tier].append(name)
        return stay

    def _strike(self, strike: Strike) -> None:
        control = self._control
        control.note(FaultFired(strike.kind, strike.nodes, strike.seconds))
        if strike.kind is Fault.KILL_CONTROLLER:
            # The record counts the event as fired before it fires, so that it does not fire again after the restart.
            control.persist(control.record, lambda: control.ask(strike))
        else:
            control.ask(strike)
