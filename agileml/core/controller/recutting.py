"""Asks for a membership change with other pipeline stages when some machines turn out faster or slower than others."""

from __future__ import annotations

from agileml.core.controller.control import Control
from agileml.core.protocol.view import View
from agileml.core.stage.pipeline_stages import speeds_in_order
from agileml.core.stage.recut import recut
from agileml.events.terms import Cause, Trigger

LEAST_CHANGE_S = 0.5  # the least cost of a change, including the slow clocks after it


class Recutting:
    """Compares the machines' speeds every few clocks, and triggers a change when other stages would pay."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._rule = control.settings.recut
        self._change_s = LEAST_CHANGE_S
        self._epoch = -1  # of the view that is looked at
        self._worth = 0  # looks in a row at which other stages were worth it
        self._due_clock = 0
        self._due_s = 0.0

    def changed(self, seconds: float) -> None:
        """Learn how long a change took."""
        self._change_s = max(LEAST_CHANGE_S, seconds)

    def trigger(self, view: View) -> Trigger | None:
        """The trigger of a change to other stages, if they are expected to pay."""
        control, rules, rule = self._control, self._control.job.pipeline, self._rule
        if rules is None or not rules.follows_speeds or len(view.pipeline) < 2 or not control.is_quiet:
            return None
        if view.epoch != self._epoch:
            self._epoch, self._worth = view.epoch, 0
            self._wait()
            return None
        if control.completed < self._due_clock or control.now_s < self._due_s:
            return None
        self._wait()
        machines = control.members.machines(view.member_set)
        nodes = machines.transient or machines.reliable
        names = [node for stage in view.pipeline for node in stage.machines]
        if set(names) - set(nodes) or any(control.members.nodes[n].speed is None for n in names):
            return None
        found = recut(
            rules,
            [(stage.first, stage.stop) for stage in view.pipeline],
            control.job.units,
            speeds_in_order(control.weighted(machines), names, view.pipeline),
        )
        saved_s = (found.now_s - found.best_s) * (control.job.clocks - control.completed)
        pays = found.gain >= rule.gain and saved_s >= rule.worth * self._change_s
        self._worth = self._worth + 1 if pays else 0
        return Trigger(Cause.STAGE, why=found.sentence) if self._worth >= rule.looks else None

    def _wait(self) -> None:
        self._due_clock = self._control.completed + self._rule.clocks
        self._due_s = self._control.now_s + self._rule.apart_s
