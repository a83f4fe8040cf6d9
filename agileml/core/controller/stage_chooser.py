"""`stage: auto` in the controller: measures a window of clocks and has AutoStage judge it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from agileml.core.controller.control import Control
from agileml.core.protocol.deal import bundles_of, workers_of_slices
from agileml.core.protocol.inputs import Measured
from agileml.core.protocol.job import Job
from agileml.core.protocol.view import Share, View
from agileml.core.stage.auto_stage import (
    Arrangement,
    AutoStage,
    Links,
    Observed,
    StageDecision,
    TrialRule,
    predicted_s,
    volume_now,
)
from agileml.core.stage.placement import Machines, place
from agileml.core.stage.shares import share_and_previous
from agileml.core.stage.traffic import Roles
from agileml.events.run import StageJudged
from agileml.events.terms import Move

STAGES = (1, 2, 3)
MOST_CLOCKS = 256  # per window; more only if that many pass between two reports of a machine
LEAST_CHANGE_S = 0.5  # the least cost of a change, including the slow clocks after it


class StageChooser:
    """Decides on the stage at the end of each window. `trial_rule` None: never."""

    def __init__(self, control: Control, trial_rule: TrialRule | None) -> None:
        self._control = control
        self._trial_rule = None if control.job.exchange.has_replicas else trial_rule
        self._auto = AutoStage(control.rule.thresholds, trial_rule or TrialRule())
        self._links = Links()
        self._change_s = LEAST_CHANGE_S
        self._open(0)

    def _open(self, epoch: int) -> None:
        self._epoch = epoch
        self._to_skip = self._auto.trial_rule.settle
        self._clocks_s: deque[float] = deque(maxlen=MOST_CLOCKS)
        self._first: dict[str, Measured] = {}
        self._last: dict[str, Measured] = {}

    # -- measurements ---------------------------------------------------------------------------------------

    def changed(self, seconds: float) -> None:
        """Begin a new window, because a change is over."""
        self._change_s = max(LEAST_CHANGE_S, seconds)
        self._open(self._control.durable.epoch)

    def clocks(self, seconds: Iterable[float | None]) -> None:
        """Take the duration of each clock that is done (None: not known)."""
        for s in seconds:
            if self._to_skip:
                self._to_skip -= 1
            elif s is not None:
                self._clocks_s.append(s)

    def measured(self, event: Measured) -> None:
        """Take a machine's report of its totals."""
        if self._trial_rule is not None and not self._to_skip:
            self._first.setdefault(event.node, event)
            self._last[event.node] = event

    # -- decisions -----------------------------------------------------------------------------------------

    def decide(self) -> bool:
        """Judge a window that has ended; True if it calls for another stage, for which this writes new thresholds."""
        control, view = self._control, self._control.view
        if self._trial_rule is None or view is None or view.epoch != self._epoch or not control.is_quiet:
            return False
        if len(self._clocks_s) < self._trial_rule.clocks or not view.member_set <= self._last.keys():
            return False
        machines = control.weighted(control.members.machines(view.member_set))
        if not machines.transient or {*machines.reliable, *machines.transient} != view.member_set:
            return False
        clock_s = median(self._clocks_s)
        seen = self._observed(view, fmean(self._clocks_s), clock_s)
        if seen is None:
            return False
        self._auto.meet(frozenset(machines.reliable), frozenset(machines.transient))
        predicted = self._predicted(view, machines, seen)
        left = control.job.clocks - control.completed
        decision = self._auto.judge(view.stage, clock_s, predicted, left, self._change_s)
        self._open(self._epoch)
        self._to_skip = 0
        return decision is not None and self._follow(decision, clock_s, predicted)

    def _observed(self, view: View, mean_s: float, clock_s: float) -> Observed | None:
        """The measurements per clock; None until the reports of all machines span most of the window."""
        window_s = mean_s * len(self._clocks_s)
        spans = {node: self._last[node].at_s - self._first[node].at_s for node in view.members}
        least_s = min(spans.values())
        if least_s <= 0.0 or least_s < window_s / 2:  # SSP clocks may end together: an empty window
            return None

        def per_clock(node: str, what: str) -> float:
            counted: float = getattr(self._last[node], what) - getattr(self._first[node], what)
            return counted / spans[node] * mean_s

        def total(what: str) -> float:
            return sum(per_clock(node, what) for node in view.members)

        compute_s = {node: min(clock_s, per_clock(node, "compute_s")) for node in view.workers()}
        push_s = {node: per_clock(node, "push_s") for node in view.workers()}
        return Observed(clock_s, compute_s, push_s, total("pulled"), total("pushed"), total("cut"))

    def _predicted(self, view: View, machines: Machines, seen: Observed) -> dict[int, float]:
        """The predicted seconds of a clock in each stage."""
        control = self._control
        now = arrangement_of(control.job, view)
        volume = volume_now(now, seen, self._cut_guess(seen.clock_s))
        tiers = {node: control.tier(node) for node in view.members}
        self._links.learn(now, seen, volume, tiers)
        return {
            stage: predicted_s(self._other(view, machines, stage), now, seen, volume, self._links, tiers)
            for stage in STAGES
        }

    def _other(self, view: View, machines: Machines, stage: int) -> Arrangement:
        job = self._control.job
        rule = replace(self._control.rule, forced=stage)
        placement = place(
            machines, rule, view.owner, view.backup, workers_of_slices(job, view.share), view.previous
        )
        share, _ = share_and_previous(job, view, placement, machines.weights)
        return _arranged(job, placement.stage, placement.owner, placement.backup, share)

    def _cut_guess(self, clock_s: float) -> float:
        """The bytes per clock that cuts would send: all parameters and optimizer state, divided by the clocks between
        cuts."""
        control = self._control
        tables = control.job.layout.tables
        size = sum(table.rows * table.columns * np.dtype(table.dtype).itemsize for table in tables)
        return size * (1 + control.job.optimizer.slots) / control.settings.cuts.interval(clock_s)

    def _follow(self, decision: StageDecision, clock_s: float, predicted: Mapping[int, float]) -> bool:
        control = self._control
        control.note(
            StageJudged(
                move=decision.move,
                stage=decision.stage,
                thresholds=decision.thresholds,
                clock_s=clock_s,
                predicted_s={stage: round(s, 6) for stage, s in predicted.items()},
                reason=decision.reason,
            )
        )
        if decision.move is Move.KEEP:
            return False
        control.persist(replace(control.record, thresholds=decision.thresholds))
        return True


# -- arrangements -------------------------------------------------------------------------------------------


def arrangement_of(job: Job, view: View) -> Arrangement:
    """The arrangement of a view, without its open clocks."""
    return _arranged(job, view.stage, view.owner, view.backup, view.share)


def _arranged(
    job: Job, stage: int, owner: tuple[str, ...], backup: tuple[str, ...], share: Share
) -> Arrangement:
    sums = {node: len(bundles_of(job, units)) for node, units in share}
    return Arrangement(stage, Roles(owner, backup, sums), {node: units.bit_count() for node, units in share})
