"""Keeps the best parameters of a run as best.safetensors, while the engine holds the cut that was evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agileml.application import Array
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Finished
from agileml.core.protocol.inputs import CutJudged
from agileml.errors import RunError
from agileml.events.observed import BestKept, Evaluated
from agileml.events.run import MembershipChanged, Warned
from agileml.events.schema import RunEvent
from agileml.runs.folder import BEST, RunFolder, StorageError

Parts = Sequence[Sequence[Array]]
# Begins to read a cut, and returns a function to call until it gives all parts (None: not yet). Both raise RunError.
Read = Callable[[Finished], Callable[[], Parts | None]]


@dataclass
class BestRule:
    """mode: "min" or "max", which is better. `best`: the model that is kept now."""

    metric: str
    mode: str
    best: BestKept | None = None

    def is_better(self, value: float) -> bool:
        """True when parameters with this value are to replace the best. NaN is never better, an equal value neither."""
        # Of an infinite best the log keeps that it is no number.
        if self.best is None or math.isnan(self.best.value):
            return not math.isnan(value)
        return value < self.best.value if self.mode == "min" else value > self.best.value

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        if self.best is None:
            return {"best": None}
        return {"best": {"metric": self.metric, "value": self.best.value, "clock": self.best.clock}}


class BestModel:
    """Judges each held cut by what was evaluated, writes it if it is the best so far, and says that it was judged."""

    def __init__(
        self,
        rule: BestRule,
        folder: RunFolder,
        layout: Layout,
        as_model: Callable[[Mapping[str, Array]], Mapping[str, Any]],
    ) -> None:
        self._rule, self._folder, self._layout, self._as_model = rule, folder, layout, as_model
        self._values: dict[int, float] = {}  # by clock, what was evaluated
        self._reading: tuple[Finished, Callable[[], Parts | None]] | None = None

    def on_event(self, event: RunEvent | object) -> None:
        """Take an event of the run."""
        match event:
            case MembershipChanged(base=base, rolled_back=True):  # what comes is done and evaluated again
                self._values = {clock: value for clock, value in self._values.items() if clock < base}
            case Evaluated(clock, metrics) if self._rule.metric in metrics:
                self._values[clock] = metrics[self._rule.metric]

    def look(self, held: Finished | None, reported: int, read: Read) -> CutJudged | None:
        """Judge a held cut, in steps that do not wait: call it often. Returns the judgement once there is one.

        reported: no report of a clock before this one is still to come.
        """
        if held is None:
            self._reading = None
            return None
        self._tell_passed_over(held.clock)
        value = self._values.get(held.clock)
        if value is None:
            # Evaluated in the clock after it, whose report a controller may have taken with it when it died.
            return CutJudged(held.clock) if reported > held.clock else None
        if not self._rule.is_better(value):
            return CutJudged(held.clock)
        try:
            if self._reading is None or self._reading[0] != held:
                self._reading = held, read(held)
            parts = self._reading[1]()
        except RunError:  # a machine died: what is held now is somewhere else soon
            self._reading = None
            return None
        if parts is None:
            return None
        self._reading = None
        self._keep(held.clock, value, self._layout.whole(parts))
        return CutJudged(held.clock)

    def _tell_passed_over(self, held: int) -> None:
        """Name the evaluations before the held cut that were better than the best and are lost."""
        for clock in sorted(clock for clock in self._values if clock < held):
            value = self._values.pop(clock)
            best = self._rule.best
            if self._rule.is_better(value) and (best is None or best.clock != clock):
                self._folder.events.write(
                    Warned(
                        f"clock {clock} was better by {self._rule.metric} ({value:g}) than what is kept: machines "
                        "changed before its cut was whole"
                    )
                )

    def measured(
        self, clock: int, metrics: Mapping[str, float], tables: Callable[[], Mapping[str, Array]]
    ) -> None:
        """Keep the tables after `clock` clocks if their metrics are the best so far."""
        value = metrics.get(self._rule.metric)
        if value is not None and self._rule.is_better(value):
            self._keep(clock, value, tables())

    def _keep(self, clock: int, value: float, tables: Mapping[str, Array]) -> None:
        """Write the tables as the best ones. A disk that is full costs this one alone."""
        try:
            self._folder.write_model(tables, self._as_model(tables), BEST)
        except StorageError as error:
            self._folder.events.write(Warned(str(error)))
            return
        self._rule.best = BestKept(clock, self._rule.metric, value)
        self._folder.events.write(self._rule.best)
