"""A pool of two compute processes without a machine."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Any

from agileml.config.hardware import Split
from agileml.config.job import from_values
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import Begin, Begun, Compute, Loaded, LoadSlices, NodeEvent
from agileml.core.protocol.messages import Failure
from agileml.process.compute_pool.orders import Start
from agileml.process.compute_pool.pool import ComputePool
from agileml.process.spec import RunSpec
from straggler.coverage import span

LIMIT_S = 120.0


class Alone:
    """Any thread may read what it reports."""

    def __init__(self, values: Mapping[str, Any], splits: tuple[Split, ...] = (Split(2, 1),)) -> None:
        self.spec = RunSpec("alone", from_values({"clocks": 9, "slices": 8, **values}))
        app = self.spec.build()
        rules = self.spec.job(app)
        self.work = UnitComputer(app, rules.layout, rules.parts, deterministic=rules.deterministic)
        self.heard: queue.SimpleQueue[NodeEvent | Failure] = queue.SimpleQueue()
        self.deaths: queue.SimpleQueue[str] = queue.SimpleQueue()
        start = Start(self.spec, splits, 1.0)
        self.pool = ComputePool(start, self.work, self.heard.put, lambda: None, self.deaths.put)

    def parts(self) -> tuple[tuple[Any, ...], ...]:
        app, layout = self.work.application, self.work.layout
        values = {table.name: app.initial(table) for table in layout.tables}
        return tuple(layout.blocks(values, p) for p in range(layout.partitions))

    def compute(self, bundle: int) -> NodeEvent | Failure:
        """Compute a bundle from the initial values."""
        self.load(bundle)
        return self.compute_at(0, bundle)

    def load(self, bundle: int) -> None:
        """Load all slices, and ask what a bundle of clock 0 reads."""
        self.pool.ask(LoadSlices(span(0, 8)))
        assert self.heard.get(timeout=LIMIT_S) == Loaded(span(0, 8))
        self.pool.ask(Begin(1, 0, (bundle,)))
        assert isinstance(self.heard.get(timeout=LIMIT_S), Begun)

    def compute_at(self, clock: int, bundle: int) -> NodeEvent | Failure:
        """Compute a bundle of a clock, whose slices are loaded."""
        self.ask_for(clock, bundle)
        return self.heard.get(timeout=LIMIT_S)

    def ask_for(self, clock: int, bundle: int) -> None:
        """The same, without waiting for the answer."""
        self.pool.ask(Compute(1, clock, (bundle,), self.parts(), Cursor(bundle.bit_count())))
