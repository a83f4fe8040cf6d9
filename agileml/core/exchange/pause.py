"""The pause before a membership change: with an all-reduce, the group first stops between two clocks.

A change closes the group and loses the sums under way. So before a join, a notice or a stage change, the controller
asks the group to pause. The sums themselves carry the request, so all machines pause after the same clock; then the
change begins, and no clock is computed again. A failure does not wait, nor does a notice that leaves no time.
"""

from __future__ import annotations

from agileml.core.controller.control import Control
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.messages import GroupFailed, Pause
from agileml.core.protocol.view import View
from agileml.events.run import ExchangeFailed
from agileml.events.terms import Cause, Trigger

SHORT_S = 0.5  # a notice with less time left does not wait, however short a clock is
MOST_FAILURES = 5  # groups in a row that may fail without a clock in between


class AllReducePause:
    """Decides when a change may begin, and ends the run when groups fail again and again."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._asked: tuple[int, Trigger] | None = None  # the epoch that is to pause, and why
        self._broken: tuple[int, Trigger] | None = None  # the epoch whose group failed, and why
        self._failures: list[int] = []  # clocks done at each failure since the last clock

    def settle(self, trigger: Trigger | None) -> Trigger | None:
        """The trigger of a change that may begin now; None if there is no trigger, or the group has not paused."""
        control, view = self._control, self._control.view
        if view is None or control.is_restarted:
            return trigger
        if self._broken and self._broken[0] == view.epoch:
            return trigger or self._broken[1]
        if self._asked and self._asked[0] == view.epoch:
            trigger = trigger or self._asked[1]  # machines that have paused go on only after a change
        if trigger is None or self._is_urgent(view) or self._has_stopped(view):
            return trigger
        if self._asked is None or self._asked[0] != view.epoch:
            self._asked = (view.epoch, trigger)
            self.resend()
        return None

    def _is_urgent(self, view: View) -> bool:
        """True when a machine of the group is dead, or will be taken away before a clock ends."""
        members, control = self._control.members, self._control
        if not all(members.is_alive(node) for node in view.group):
            return True
        time_s = max(SHORT_S, 2 * (control.log.clock_s or 0.0))
        deadlines_s = [members.nodes[node].deadline_s for node in view.group]
        return any(at_s is not None and at_s - control.now_s < time_s for at_s in deadlines_s)

    def _has_stopped(self, view: View) -> bool:
        """True when all machines of the group have paused, or have done all clocks below the limit."""
        control = self._control
        statuses = [control.members.nodes[node].status for node in view.group]
        there = [status for status in statuses if status is not None and status.epoch == view.epoch]
        if len(there) < len(statuses):
            return False
        versions = [version for status in there for _, version in status.versions]
        at_limit = bool(versions) and min(versions) >= control.limit
        return at_limit or all(status.is_paused for status in there)

    def resend(self) -> None:
        """Repeat the request to machines that have not paused."""
        control, view = self._control, self._control.view
        if view is None or self._asked is None or self._asked[0] != view.epoch:
            return
        for node in view.group:
            status = control.members.nodes[node].status
            if status is None or not (status.is_paused and status.epoch == view.epoch):
                control.send(node, Pause(view.epoch))

    def failed(self, node: str, message: GroupFailed) -> None:
        """Record that a group cannot add up any more: a change will make another one."""
        control = self._control
        if self._broken and self._broken[0] == message.epoch:
            return
        self._broken = (message.epoch, Trigger(Cause.EXCHANGE, (node,)))
        control.note(ExchangeFailed(node, message.epoch, message.reason))
        self._failures = [done for done in self._failures if done >= control.completed]
        self._failures.append(control.completed)
        if len(self._failures) >= MOST_FAILURES:
            control.halt(
                HaltKind.LOST,
                f"the machines could not add up by all-reduce {MOST_FAILURES} times in a row, last at {node}: "
                f"{message.reason}",
            )
