"""A small model in layers, for the stages of a pipeline: every bit of a layer depends on all layers and on its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

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
    Update,
    Updates,
    Wire,
)

LAYERS = 12  # can be cut into 1, 2, 3, 4, 6 partitions of equal size
WIDTH = 16
NAME, SEEN = "layers", "seen"


class StagedToy(Application):
    """Each layer has `WIDTH` weights, and two counters for each unit: 1 and (clock + 1)^2, summed over the clocks in
    which the unit went through it. `counts`: updates are added as they are, so that the counters are sums. A table of
    its own holds a running mean of each layer's inputs, as of batch norm."""

    def __init__(self, settings: Settings, parts: int, *, counts: bool) -> None:
        super().__init__(settings)
        self.units, self.counts = settings.slices * parts, counts
        self.row = WIDTH + 2 * self.units

    def tables(self) -> Sequence[Table]:
        update = Update.STEP if self.counts else Update.GRADIENT
        return (
            Table(NAME, LAYERS, self.row, "float64", update=update),
            Table(SEEN, LAYERS, WIDTH, "float64", update=Update.STEP),
        )

    def initial(self, table: Table) -> Array:
        if table.name == SEEN:
            return np.ones((LAYERS, WIDTH))
        values = np.zeros((LAYERS, self.row))
        values[:, :WIDTH] = self.settings.rng(1).normal(size=(LAYERS, WIDTH))
        return values

    def load(self, slice_index: int) -> float:
        return float(self.settings.rng(7, slice_index).normal())

    def stages(self) -> StagedToy:
        return self

    @property
    def most_partitions(self) -> int:
        return LAYERS

    def plan(self, most: int) -> StagePlan:
        ends = [(p + 1) * LAYERS // most for p in range(most)]
        borders = tuple(tuple(end * columns for end in ends) for columns in (self.row, WIDTH))
        return StagePlan(borders, (1.0,) * most)

    def stage(self, borders: Sequence[Sequence[int]], first: int, stop: int) -> Stage:
        return ToyStage(self, [edge // self.row for edge in (0, *borders[0])[first : stop + 1]])

    def process(self, unit: Unit, items: float, parameters: Mapping[str, Array]) -> Updates:
        whole = ToyStage(self, [0, LAYERS])
        whole.use([(parameters[NAME].reshape(-1), parameters[SEEN].reshape(-1))])
        output = whole.forward(unit, items, (), defer=False)
        whole.backward(unit, ())
        ((update, seen),) = whole.updates(unit)
        tables = {NAME: update.reshape(LAYERS, self.row), SEEN: seen.reshape(LAYERS, WIDTH)}
        return Updates(tables, output.loss, output.examples)


def counters(block: Array, units: int) -> Array:
    """[layers of a partition's block, units, 2]."""
    return block.reshape(-1, WIDTH + 2 * units)[:, WIDTH:].reshape(-1, units, 2)


class ToyStage:
    """The layers between `edges[0]` and `edges[-1]`; each partition holds those between two neighbours."""

    def __init__(self, toy: StagedToy, edges: Sequence[int]) -> None:
        self._toy, self._edges = toy, list(edges)
        self._weights: list[Array] = []  # by layer
        self._seen = np.empty((0, WIDTH))  # by layer
        self._of: dict[Unit, list[Array]] = {}  # the weights of a unit's forward
        self._inputs: dict[Unit, list[Array]] = {}  # of each layer, and what the last one returns
        self._changes: dict[Unit, Array] = {}  # of what was seen
        self._updates: dict[Unit, list[Array]] = {}
        self._later: dict[Unit, bool] = {}

    def use(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        rows = np.concatenate([block.reshape(-1, self._toy.row) for block, _ in blocks])
        self._seen = np.concatenate([block.reshape(-1, WIDTH) for _, block in blocks])
        assert len(rows) == self._edges[-1] - self._edges[0], (rows.shape, self._edges)
        self._weights = [row[:WIDTH].copy() for row in rows]

    def overwrite(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        self.use(blocks)
        self._of = dict.fromkeys(self._of, self._weights)

    def forget(self) -> None:
        for kept in (self._of, self._inputs, self._changes, self._updates, self._later):
            kept.clear()

    def forward(self, unit: Unit, items: float, incoming: Sequence[Wire], *, defer: bool) -> StageOutput:
        assert bool(incoming) == bool(self._edges[0]), (incoming, self._edges)
        value = incoming[0].values if incoming else np.linspace(0.1, 1.0, WIDTH) + items
        values = [value]
        for weights in self._weights:
            values.append(values[-1] * 0.8 + values[-1][::-1] * weights * 0.1)
        self._inputs[unit], self._later[unit] = values, defer
        self._of[unit] = self._weights
        self._changes[unit] = (np.stack(values[:-1]) - self._seen) * (0.1 / self._toy.units)
        if self._edges[-1] < LAYERS:
            return StageOutput((Wire(values[-1], (1,)),))
        return StageOutput((), float(values[-1][0]) ** 2, 1)

    def backward(self, unit: Unit, gradients: Sequence[Wire | None]) -> list[Wire | None]:
        values, weights = self._inputs.pop(unit), self._of.pop(unit)
        target = 0.3 + 0.01 * unit.clock
        wire = gradients[0] if gradients else None
        gradient = wire.values if wire is not None else (values[-1] - target) * 0.01
        rows = np.zeros((len(weights), self._toy.row))
        sign = -1.0 if self._toy.counts else 1.0
        for layer in reversed(range(len(weights))):
            rows[layer, :WIDTH] = gradient * values[layer][::-1] * (0.1 * sign)
            gradient = gradient * 0.8 + (gradient * weights[layer] * 0.1)[::-1]
        number = unit.slice * unit.parts + unit.part
        rows[:, WIDTH + 2 * number : WIDTH + 2 * number + 2] = 1.0, (unit.clock + 1.0) ** 2
        first = self._edges[0]
        self._updates[unit] = [rows[a - first : b - first].reshape(-1) for a, b in pairwise(self._edges)]
        return [Wire(gradient, (1,))]

    def updates(self, unit: Unit) -> list[tuple[Array, ...]]:
        del self._later[unit]
        changes, first = self._changes.pop(unit), self._edges[0]
        seen = [changes[a - first : b - first].reshape(-1) for a, b in pairwise(self._edges)]
        return list(zip(self._updates.pop(unit), seen, strict=True))
