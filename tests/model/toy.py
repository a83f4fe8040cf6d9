"""A small model whose every bit depends on what was read, and which counts its own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from agileml.application import (
    Application,
    Array,
    LossScaleRule,
    Parts,
    Ranges,
    Settings,
    Table,
    Unit,
    Update,
    Updates,
)
from agileml.core.exchange import (
    Exchange,
    PoolExchange,
    SharedStateExchange,
    SuperstepExchange,
    exchange_of,
    stage_exchange,
)
from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.loss_scale import with_loss_scale
from agileml.core.parameters.optimizer import Optimizer, optimizer, take_step
from agileml.core.protocol.job import Job, MakeBalancer, Overlap, PipelineMode, PipelineRules
from straggler.consistency import Elastic, consistency
from tests.model.staged_toy import StagedToy

# Modes without sparse tables.
DENSE = (
    "allreduce",
    "dense",
    "denseelastic",
    "overlap",
    "batches",
    "denseasppool",
)
ELASTIC = ("elastic", "denseelastic")  # modes with supersteps
POOLED = ("asppool", "ssppool", "denseasppool")  # modes with one pool of bundles
ASYNC = ("stash", "none", "vertical_sync", "double_buffered")  # pipelines without a flush
OVERLAPS = {"overlap": Overlap.ON, "batches": Overlap.BATCHES}
# Modes that end with the bits of the sequential run.
SAME_BITS = (
    "bsp",
    "dense",
    "overlap",
    "batches",
    "flush",
)


@cache
def _sparse_rows(first: int) -> Array:
    return np.unique(np.array([first, (first + 3) % 13, (first * 7) % 13]))


@cache
def _items(settings_seed: int, slice_index: int) -> float:
    return float(Settings(seed=settings_seed).rng(7, slice_index).normal())


class Toy(Application):
    """`count[u]` sums 1 and (clock + 1)^2 over the clocks in which unit u was counted; the rest is arithmetic."""

    def __init__(self, settings: Settings, parts: int, rule: LossScaleRule | None = None) -> None:
        """rule: of the loss scale; with one some units overflow."""
        super().__init__(settings)
        self.parts = parts
        self.rule = rule

    def loss_scale(self) -> LossScaleRule | None:
        return self.rule

    def shown(self, unit: Unit, gradient: Array) -> Array:
        """The gradient; of one unit in every third clock, with a last element that is not finite."""
        number = unit.slice * unit.parts + unit.part
        overflowing = unit.clock * 7 % (self.settings.slices * self.parts)
        if self.rule is not None and unit.clock % 3 == 1 and number == overflowing:
            gradient[-1, -1] = np.inf
        return gradient

    def tables(self) -> Sequence[Table]:
        units = self.settings.slices * self.parts
        return (
            Table("count", units, 2, "float64", sparse=True, update=Update.STEP),
            Table("dense", 5, 11),
            Table("sparse", 13, 3, sparse=True),
        )

    def initial(self, table: Table) -> Array:
        if table.name == "count":
            return np.zeros((table.rows, table.columns), table.dtype)
        return self.settings.rng(table.rows).normal(size=(table.rows, table.columns)).astype(table.dtype)

    def load(self, slice_index: int) -> float:
        return _items(self.settings.seed, slice_index)

    def reads(self, unit: Unit, items: float) -> Mapping[str, Array]:
        number = unit.slice * unit.parts + unit.part
        return {"count": np.array([number]), "sparse": _sparse_rows((number * 5 + unit.clock) % 13)}

    def process(self, unit: Unit, items: float, parameters: Mapping[str, Array]) -> Updates:
        seen = parameters["sparse"]
        dense = parameters["dense"]
        push = np.float32(items + 0.01 * unit.clock)
        return Updates(
            {
                "count": np.array([[1.0, (unit.clock + 1.0) ** 2]]),
                "dense": self.shown(unit, dense * np.float32(0.1) + seen.sum(dtype=np.float32) * push),
                "sparse": seen * push + dense[0, :3],
            },
            loss=float(dense[0, 0]) ** 2,
            examples=1,
        )


class DenseToy(Toy):
    """The same without sparse tables: what can be added up by all-reduce."""

    def tables(self) -> Sequence[Table]:
        units = self.settings.slices * self.parts
        return Table("count", units, 2, "float64", update=Update.STEP), Table("dense", 5, 11)

    def reads(self, unit: Unit, items: float) -> Mapping[str, Array]:
        return {}

    def process(self, unit: Unit, items: float, parameters: Mapping[str, Array]) -> Updates:
        dense = parameters["dense"]
        count = np.zeros_like(parameters["count"])
        count[unit.slice * unit.parts + unit.part] = 1.0, (unit.clock + 1.0) ** 2
        push = np.float32(items + 0.01 * unit.clock)
        return Updates(
            {"count": count, "dense": self.shown(unit, dense * np.float32(0.1) + push)},
            loss=float(dense[0, 0]) ** 2,
            examples=1,
        )


SLOTS = 2  # the most arrays of state that an algorithm has


class ResidentToy(DenseToy):
    """The same with all tables in a replica, and the optimizer's state beside them."""

    def tables(self) -> Sequence[Table]:
        count, dense = super().tables()
        states = [
            Table(f"state{slot}", 5, 11, update=Update.NONE, resident=True, may_be_infinite=True)
            for slot in range(SLOTS)
        ]
        return replace(count, resident=True), replace(dense, resident=True), *states

    def initial(self, table: Table) -> Array:
        if table.name.startswith("state"):
            return np.zeros((table.rows, table.columns), table.dtype)
        return super().initial(table)


class ToyCopy:
    """A copy of a replica's elements that is whole after some looks at it; before, its numbers are wrong."""

    def __init__(self, replica: ToyReplica, ranges: Sequence[tuple[str, int, int]], looks: int) -> None:
        self._replica, self._ranges, self._looks = replica, ranges, looks
        self.arrays = tuple(np.full_like(replica.read(*each), 7) for each in ranges)
        self._is_whole = False

    def is_done(self) -> bool:
        if self._looks == 0:
            self.wait()
        self._looks -= 1
        return self._is_whole

    def wait(self) -> None:
        if not self._is_whole:
            self._is_whole = True
            for array, each in zip(self.arrays, self._ranges, strict=True):
                array[:] = self._replica.read(*each)

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(array).all()) for array in self.arrays)


class ToyReplica:
    """A machine's tables and optimizer, as a replica has them."""

    def __init__(self, algorithm: Optimizer) -> None:
        self._algorithm = algorithm
        self.values: dict[str, Array] = {}
        self._steps: Mapping[str, Ranges] | None = None
        self._copying: list[ToyCopy] = []

    def _end_copies(self) -> None:
        for copying in self._copying:
            copying.wait()
        self._copying.clear()

    def place(self, values: Mapping[str, Parts], steps: Mapping[str, Ranges] | None = None) -> None:
        self._end_copies()
        for name, parts in values.items():
            if name.startswith("state"):  # that of others is not there
                self.values[name] = np.full(55, np.nan, np.float32)
            elif name not in self.values:
                self.values[name] = np.concatenate([part for _, part in parts])
            for at, part in parts:
                self.values[name][at : at + part.size] = part
        self._steps = steps

    def read(self, table: str, start: int, stop: int) -> Array:
        return self.values[table][start:stop].copy()

    def copy(self, ranges: Sequence[tuple[str, int, int]]) -> ToyCopy:
        self._copying.append(ToyCopy(self, ranges, looks=len(self._copying) % 4))
        return self._copying[-1]

    def step(self, clock: int, updates: Mapping[str, Array]) -> None:
        self._end_copies()
        others = {name: self._others(name, array) for name, array in self.values.items()}
        self.values["count"] += updates["count"]
        state = [self.values[f"state{slot}"] for slot in range(self._algorithm.slots)]
        take_step(self._algorithm, clock, self.values["dense"], updates["dense"], state, in_place=True)
        for name in ("count", "dense") if self._steps is not None else ():
            updates[name][:] = self.values[name]
            for at, kept in others[name]:
                self.values[name][at : at + kept.size] = kept
                updates[name][at : at + kept.size] = np.nan

    def _others(self, name: str, array: Array) -> Parts:
        """The parts of a table that other machines step, as they are now."""
        if self._steps is None or name not in self._steps:
            return []
        bounds = [0, *(bound for own in self._steps[name] for bound in own), array.size]
        return [(a, array[a:b].copy()) for a, b in zip(bounds[::2], bounds[1::2], strict=True) if a < b]

    def complete(self, updates: Mapping[str, Array]) -> None:
        for name in ("count", "dense"):
            for at, old in self._others(name, self.values[name]):
                self.values[name][at : at + old.size] = updates[name][at : at + old.size]

    def tables(self) -> dict[str, Array]:
        """What a unit reads."""
        return {"count": self.values["count"].reshape(-1, 2), "dense": self.values["dense"].reshape(5, 11)}


ALGORITHMS: Mapping[str, Mapping[str, float]] = {
    "sgd": {"learning_rate": 0.05},
    "momentum": {"learning_rate": 0.02, "momentum": 0.9},
    "adam": {"learning_rate": 0.05},
    "lamb": {"learning_rate": 0.05},
}
RULE = LossScaleRule(initial=64.0, interval=2)


def toy_job(
    mode: str,
    algorithm: str,
    slices: int,
    parts: int,
    partitions: int,
    clocks: int,
    balancer: MakeBalancer | None = None,
    clip_norm: float | None = None,
    *,
    is_resident: bool = False,
    is_sharded: bool = False,
    is_scaled: bool = False,
) -> tuple[Toy | StagedToy, Job]:
    """A job in mode `bsp` (deterministic), `sum` (BSP, one sum per worker), `ssp` (slack 2), `asp`, or `allreduce`.

    `dense` is `bsp` with the tables of `allreduce`: nothing is chosen to be read, and a push asks for what is next.
    `overlap` is `dense` in which a clock is computed while its parameters are on their way, `batches` the same with
    pulls in batches. `flush` is a pipeline, `stash`, `none`, `vertical_sync` and `double_buffered` are pipelines
    without a flush.
    `elastic` and `denseelastic` have supersteps, `ssppool`, `asppool` and the like one pool of bundles.
    """
    rule = optimizer(algorithm, **ALGORITHMS[algorithm], clip_norm=clip_norm)
    if rule.is_layerwise:
        rule = GroupedOptimizer(rule, {})
    if mode in ("flush", *ASYNC):
        settings = Settings(seed=3, slices=slices, clocks_per_pass=2)
        return _staged(rule, settings, parts, partitions, clocks, PipelineMode(mode))
    made = DenseToy if mode in DENSE else Toy
    made = ResidentToy if is_resident else made
    toy = made(Settings(seed=3, slices=slices, clocks_per_pass=2), parts, RULE if is_scaled else None)
    kind = next((kind for kind in ("ssp", "asp") if kind in mode), "bsp")
    if mode in ELASTIC:  # as many steps as units, each along a mean that is not of a clock but of one unit
        slower = ALGORITHMS[algorithm]["learning_rate"] / (slices * parts)
        rule = optimizer(algorithm, **{**ALGORITHMS[algorithm], "learning_rate": slower}, clip_norm=clip_norm)
    job = Job(
        layout=Layout(with_loss_scale(toy.tables(), toy.rule, partitions), partitions),
        loss_scale=toy.rule,
        optimizer=optimizer("sgd", learning_rate=1.0) if is_resident else rule,
        consistency=Elastic(4) if mode in ELASTIC else consistency(kind, 2 if kind == "ssp" else 0),
        slices=slices,
        parts=parts,
        clocks=clocks,
        deterministic=mode in (*SAME_BITS, *ELASTIC),
        exchange=SharedStateExchange() if is_sharded else _exchange(mode),
        draw_units=2 if mode in POOLED else None,
        balancer=balancer,
        overlap=OVERLAPS.get(mode, Overlap.OFF),
    )
    return toy, job


def _exchange(mode: str) -> Exchange:
    if mode in ELASTIC:
        return SuperstepExchange()
    if mode in POOLED:
        return PoolExchange()
    return exchange_of("allreduce" if mode == "allreduce" else "servers")


def _staged(
    rule: Optimizer, settings: Settings, parts: int, partitions: int, clocks: int, mode: PipelineMode
) -> tuple[StagedToy, Job]:
    """A pipeline of equal layers, whose machines are its stages."""
    toy = StagedToy(settings, parts, counts=rule.slots == 0)
    plan = toy.plan(partitions)
    job = Job(
        layout=Layout(tuple(toy.tables()), partitions, borders=plan.borders),
        optimizer=rule,
        consistency=consistency("bsp", 0),
        slices=settings.slices,
        parts=parts,
        clocks=clocks,
        deterministic=True,
        exchange=stage_exchange(mode),
        pipeline=PipelineRules(plan.seconds, mode=mode),
    )
    return toy, job
