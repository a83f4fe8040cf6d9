"""Models whose layers take time and compute nothing, for pipelines of machines that share this computer's cores.

A layer waits until an absolute deadline, so machines compute beside each other as on computers of their own. What
stages send and what is exchanged are real bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from agileml.application import (
    Application,
    Array,
    Settings,
    Stage,
    StageOutput,
    StagePlan,
    Table,
    Unit,
    Updates,
    Wire,
)
from agileml.core.stage.pipeline_stages import StageCut
from agileml.core.stage.unit_ranges import exchanged

FORWARD = 1 / 3  # of a layer's time
CREDIT_S = 0.003  # a wait that ended late by less is made up for by the next one

speed = 1.0  # of this process


def set_speed(speeds: Sequence[float], rank: int) -> None:
    """Let this process stand for a machine of another speed."""
    global speed
    speed = speeds[rank]


@dataclass(frozen=True)
class Layer:
    """Seconds of a minibatch, float32 parameters, and the elements that a minibatch sends on behind it."""

    name: str
    seconds: float
    parameters: int
    sent: int


@dataclass(frozen=True)
class Model:
    """A chain of layers, each a partition. `units`: of a clock, which computes so many minibatches."""

    name: str
    layers: tuple[Layer, ...]
    units: int
    minibatches: int = 1

    @property
    def unit_s(self) -> tuple[float, ...]:
        """Seconds of a unit, by layer."""
        return tuple(layer.seconds * self.minibatches / self.units for layer in self.layers)

    @property
    def unit_sent(self) -> tuple[int, ...]:
        """Elements that a unit sends on, by layer."""
        return tuple(max(1, layer.sent * self.minibatches // self.units) for layer in self.layers)

    @property
    def minibatch_s(self) -> float:
        """Seconds of a minibatch on one machine."""
        return sum(layer.seconds for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Elements of all layers."""
        return sum(layer.parameters for layer in self.layers)


class VirtualLayers(Application):
    """An application whose stages wait. It computes nothing otherwise."""

    def __init__(self, model: Model) -> None:
        super().__init__(Settings())
        self.model = model

    def with_settings(self, settings: Settings) -> VirtualLayers:
        self.settings = settings
        return self

    def tables(self) -> Sequence[Table]:
        return (Table("layers", 1, self.model.parameters, "float32"),)

    def initial(self, table: Table) -> Array:
        return np.zeros((table.rows, table.columns), np.float32)

    def load(self, slice_index: int) -> None:
        return None

    def process(self, unit: Unit, items: Any, parameters: Any) -> Updates:
        raise AssertionError("only its stages compute")

    def stages(self) -> VirtualLayers:
        return self

    @property
    def most_partitions(self) -> int:
        return len(self.model.layers)

    def plan(self, most: int) -> StagePlan:
        ends = tuple(accumulate(layer.parameters for layer in self.model.layers))
        return StagePlan((ends,), self.model.unit_s, tuple(4 * sent for sent in self.model.unit_sent))

    def stage(self, borders: Sequence[Sequence[int]], first: int, stop: int) -> Stage:
        return VirtualStage(self.model, first, stop)


class VirtualStage:
    """Waits for as long as its layers take."""

    def __init__(self, model: Model, first: int, stop: int) -> None:
        self._sizes = [layer.parameters for layer in model.layers[first:stop]]
        self._received = model.unit_sent[first - 1] if first else 1
        self._sent = model.unit_sent[stop - 1] if stop < len(model.layers) else 0
        self._seconds, self._until_s = sum(model.unit_s[first:stop]), 0.0

    def use(self, blocks: Sequence[tuple[Array, ...]]) -> None: ...

    def overwrite(self, blocks: Sequence[tuple[Array, ...]]) -> None: ...

    def forget(self) -> None: ...

    def _spend(self, seconds: float) -> None:
        now_s = time.monotonic()
        began_s = self._until_s if now_s - self._until_s < CREDIT_S else now_s
        self._until_s = began_s + seconds / speed
        time.sleep(max(0.0, self._until_s - now_s))

    def forward(self, unit: Unit, items: Any, incoming: Sequence[Wire], *, defer: bool) -> StageOutput:
        self._spend(self._seconds * FORWARD)
        if self._sent:
            return StageOutput((Wire(np.zeros(self._sent, np.float32), (1,)),))
        return StageOutput((), 1.0, 1)

    def backward(self, unit: Unit, gradients: Sequence[Wire | None]) -> list[Wire | None]:
        self._spend(self._seconds * (1 - FORWARD))
        return [Wire(np.zeros(self._received, np.float32), (1,))]

    def updates(self, unit: Unit) -> list[tuple[Array | None, ...]]:
        return [(np.zeros(size, np.float32),) for size in self._sizes]


def stage_seconds(model: Model, cut: StageCut) -> list[float]:
    """Of each stage the seconds of a clock, on one of its machines."""
    unit_s = [sum(model.unit_s[a:b]) for a, b in cut.ranges]
    return [-(-model.units // count) * s for count, s in zip(cut.replicas, unit_s, strict=True)]


def expected_s(
    model: Model, cut: StageCut, *, flushes: bool, bytes_per_s: float = math.inf, speeds: Sequence[float] = ()
) -> float:
    """The seconds of a clock: the slowest stage, or the busiest link where that is slower.

    A machine's link carries what it sends forward and back. The machines of a stage exchange their sums (all but their
    own share, and then the new weights) when they are computed, or, without a flush before the last stage, while they
    compute the next clock. With a flush the pipeline fills and runs empty once. `speeds`: of the stages, where they
    are not alike.
    """
    busy_s = [
        s / v for s, v in zip(stage_seconds(model, cut), speeds or [1.0] * len(cut.replicas), strict=True)
    ]
    unit_s = [sum(model.unit_s[a:b]) for a, b in cut.ranges]
    sent = [4 * model.units * model.unit_sent[stop - 1] for _, stop in cut.ranges[:-1]]
    carried_s = [
        (a + b) / count / bytes_per_s
        for a, b, count in zip([0, *sent], [*sent, 0], cut.replicas, strict=True)
    ]
    exchange_s = [
        exchanged(model.units, count) * 4 * sum(layer.parameters for layer in model.layers[a:b]) / bytes_per_s
        for count, (a, b) in zip(cut.replicas, cut.ranges, strict=True)
    ]
    if not flushes:
        beside_s = [sent_s + waits for sent_s, waits in zip(carried_s[:-1], exchange_s[:-1], strict=True)]
        return max(*busy_s[:-1], *beside_s, carried_s[-1], busy_s[-1] + exchange_s[-1])
    slowest = max(range(len(busy_s)), key=busy_s.__getitem__)
    fill_s = sum(unit_s) - unit_s[slowest] + 2 * sum(sent) / model.units / bytes_per_s
    return max(busy_s[slowest], *carried_s) + fill_s + max(exchange_s)
