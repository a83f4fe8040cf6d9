"""The pause before a membership change: with an all-reduce, or in a pipeline, machines first stop between two clocks.

A change closes the group of an all-reduce and loses the sums under way; in a pipeline it ends the clock under way at
all stages. So before a join, a notice or a stage change, the controller asks the machines to pause, and no clock is
computed again. With an all-reduce the sums themselves carry the request, so all machines pause after the same clock. In
a pipeline the first stage begins no other clock, and the units that it has sent run through. A failure does not wait,
nor does a notice that leaves no time.
"""

from __future__ import annotations

from collections.abc import Callable

from agileml.core.change.broken_links import patience_s
from agileml.core.controller.control import Control
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.exchange import ChangeGate
from agileml.core.protocol.messages import GroupFailed, Pause, Status
from agileml.core.protocol.view import View
from agileml.events.run import ExchangeFailed
from agileml.events.terms import Cause, Trigger

SHORT_S = 0.5  # a notice with less time left does not wait, however short a clock is
MARGIN = 2.0  # the error of what a clock, or a move, is expected to take
MOST_FAILURES = 5  # groups in a row that may fail without a clock in between
# Groups may fail for at least so many times `patience_s`: by then the controller has given up a machine that others do
# not reach. A refused connection fails in some ms; a transport says that it cannot connect after 5 s, or after a longer
# timeout of heartbeats.
FAILING_FOR = 3.0


class ClockPause(ChangeGate):
    """Decides when a change may begin: when the machines have stopped, or at once where it cannot wait."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._asked: tuple[int, Trigger] | None = None  # the epoch that is to pause, and why

    def settle(self, trigger: Trigger | None, move_s: Callable[[], float]) -> Trigger | None:
        """The trigger of a change that may begin now; None if there is no trigger, or the machines have not paused."""
        control, view = self._control, self._control.view
        if view is None or control.is_restarted:
            return trigger
        if self._asked and self._asked[0] == view.epoch:
            trigger = trigger or self._asked[1]  # machines that have paused go on only after a change
        if trigger is None or self._is_urgent(view, move_s) or self._has_stopped(view):
            return trigger
        if self._asked is None or self._asked[0] != view.epoch:
            self._asked = (view.epoch, trigger)
            self.resend()
        return None

    def _is_urgent(self, view: View, move_s: Callable[[], float]) -> bool:
        """True when a machine at work is dead, or will be taken away before a clock ends and its shards are copied."""
        members, control = self._control.members, self._control
        if not all(members.is_alive(node) for node in view.group):
            return True
        deadlines_s = [at_s for node in view.group if (at_s := members.nodes[node].deadline_s) is not None]
        if not deadlines_s:
            return False
        needed_s = max(SHORT_S, MARGIN * (self._stops_s(view) + move_s()))
        return min(deadlines_s) - control.now_s < needed_s

    def _stops_s(self, view: View) -> float:
        """The seconds until the machines have stopped, as far as is known."""
        return self._control.log.clock_s or 0.0

    def _has_stopped(self, view: View) -> bool:
        """True when all machines at work have paused, or have done all clocks below the limit."""
        control = self._control
        statuses = [control.members.nodes[node].status for node in view.group]
        there = [status for status in statuses if status is not None and status.epoch == view.epoch]
        if len(there) < len(statuses):
            return False
        return self._are_at_limit(there) or self._are_paused(there)

    def _are_at_limit(self, statuses: list[Status]) -> bool:
        versions = [version for status in statuses for _, version in status.versions]
        return bool(versions) and min(versions) >= self._control.limit

    def _are_paused(self, statuses: list[Status]) -> bool:
        return all(status.is_paused for status in statuses)

    def resend(self) -> None:
        """Repeat the request to machines that have not paused."""
        control, view = self._control, self._control.view
        if view is None or self._asked is None or self._asked[0] != view.epoch:
            return
        for node in view.group:
            status = control.members.nodes[node].status
            if status is None or not (status.is_paused and status.epoch == view.epoch):
                control.send(node, Pause(view.epoch))


class StagePause(ClockPause):
    """The stages of a pipeline have stopped when all are after the clock after which the first one stopped."""

    def _are_paused(self, statuses: list[Status]) -> bool:
        versions = {version for status in statuses for _, version in status.versions}
        return super()._are_paused(statuses) and len(versions) == 1


class AsyncStagePause(StagePause):
    """Without a flush several clocks are in flight, also at the limit of clocks. At the end of the job nothing is."""

    def _stops_s(self, view: View) -> float:
        return (len(view.pipeline) + 1) * super()._stops_s(view)

    def _are_at_limit(self, statuses: list[Status]) -> bool:
        return self._control.limit == self._control.job.clocks and super()._are_at_limit(statuses)


class AllReducePause(ClockPause):
    """Ends the run, too, when groups fail again and again."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._broken: tuple[int, Trigger] | None = None  # the epoch whose group failed, and why
        self._failures: list[tuple[int, float]] = []  # since the last clock: clocks done, and when it failed

    def settle(self, trigger: Trigger | None, move_s: Callable[[], float]) -> Trigger | None:
        view = self._control.view
        if (
            view is not None
            and not self._control.is_restarted
            and self._broken
            and self._broken[0] == view.epoch
        ):
            return trigger or self._broken[1]
        return super().settle(trigger, move_s)

    def failed(self, node: str, message: GroupFailed) -> None:
        """Record that a group cannot add up any more: a change will make another one."""
        control = self._control
        if self._broken and self._broken[0] == message.epoch:
            return
        self._broken = (message.epoch, Trigger(Cause.EXCHANGE, (node,)))
        control.note(ExchangeFailed(node, message.epoch, message.reason))
        self._failures = [failure for failure in self._failures if failure[0] >= control.completed]
        self._failures.append((control.completed, control.now_s))
        count, failing_s = len(self._failures), control.now_s - self._failures[0][1]
        if count >= MOST_FAILURES and failing_s >= FAILING_FOR * patience_s(control.settings.timeout_s):
            control.halt(
                HaltKind.BROKEN,
                f"the machines could not add up by all-reduce {count} times in a row, last at {node}: "
                f"{message.reason}",
            )
