"""Which evaluated parameters are the best of a run, by one metric. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agileml.events.observed import BestKept


@dataclass
class BestRule:
    """mode: "min" or "max", which is better. `best`: what is kept now."""

    metric: str
    mode: str
    best: BestKept | None = None

    def is_better(self, value: float) -> bool:
        """True when parameters with this value are to replace the best. NaN is never better, an equal value neither."""
        if self.best is None:
            return value == value
        return value < self.best.value if self.mode == "min" else value > self.best.value

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        if self.best is None:
            return {"best": None}
        return {"best": {"metric": self.metric, "value": self.best.value, "clock": self.best.clock}}
