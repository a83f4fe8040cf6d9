"""The tables of the dynamic program, level by level, and their rows on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline.partition.closed_sets import ClosedSets
from pipeline.partition.components import Choices, Components
from pipeline.partition.kernels import (
    RELEASED,
    THESIS,
    Floats,
    chain_row,
    general_row,
    stage_seconds,
    uncut_exchange_seconds,
)
from pipeline.partition.memory import MemoryRules, Recompute, leaf_choice, leaf_seconds

MODELS = {"thesis": THESIS, "released": RELEASED}


@dataclass(frozen=True)
class Problem:
    """All that the partitioner is given. input_bytes: of the model. max_stages None = no limit.

    whole: under a memory limit every device of a component in use counts as at work, which asks for more memory
    than is needed where some stay idle, and saves the axis of devices used.
    """

    sets: ClosedSets
    input_bytes: float
    parts: Components
    cost_model: str
    memory: MemoryRules
    straight: bool
    max_stages: int | None
    whole: bool = False
    max_replicas: int | None = None

    @property
    def model(self) -> int:
        """The cost model's number in the kernels."""
        return MODELS[self.cost_model]

    @property
    def most_replicas(self) -> int:
        """The most components of a level that a stage may be on."""
        all_of_them = self.parts.topology.devices
        return 1 if self.straight else min(self.max_replicas or all_of_them, all_of_them)

    @property
    def limited(self) -> bool:
        """Whether there is a memory limit."""
        return self.memory.limit_bytes is not None

    @property
    def counts_devices(self) -> bool:
        """Whether the tables tell plans apart by the devices that they use."""
        return self.limited and not self.whole

    @property
    def fast(self) -> bool:
        """Whether the chain's own, pruned program applies."""
        one_type = all(len(level) == 1 for level in self.parts.choices[1:]) and len(self.parts.speeds) == 1
        return self.sets.is_chain and one_type and not self.limited and self.max_stages is None

    def bytes_per_s(self, level: int) -> float:
        """B_k."""
        return self.parts.topology.levels[level - 1][1]

    def inner_count(self, level: int) -> int:
        """m_{k-1}: components in a component of the level below; 1 at the innermost level."""
        return self.parts.topology.levels[level - 2][0] if level > 1 else 1

    def leaf(self, i: int, j: int, d: int, speed: float) -> tuple[float, float, bool]:
        """(seconds, bytes, recomputes) of the range i -> j on one device with d minibatches in flight."""
        sets = self.sets
        return leaf_choice(
            self.memory,
            d,
            (sets.compute_s[j] - sets.compute_s[i]) / speed,
            (sets.forward_s[j] - sets.forward_s[i]) / speed,
            sets.parameter_bytes[j] - sets.parameter_bytes[i],
            sets.activation_bytes[j] - sets.activation_bytes[i],
            sets.cut_bytes[i] if i else self.input_bytes,
        )


@dataclass
class Tables:
    """Solves a problem; `row(level, type, i)` is A^level from state i, `whole(level)` A^level of whole components.

    _whole[level]: [type, j, i, n, u, b], or for chains [j, i]. _solo[level]: [type, j, i, b]. row: [c, j, n, u, b].
    """

    problem: Problem
    on_progress: Callable[[int, int], None] | None = None
    _whole: list[Floats] = field(default_factory=list)
    _solo: list[Floats] = field(default_factory=list)
    _rows: dict[tuple[int, int, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        levels = len(self.problem.parts.topology.levels)
        self._whole.append(self._leaves())
        self._solo.append(
            self._whole[0][:, :, :, 0, 0, :] if not self.problem.fast else np.empty((1, 1, 1, 1))
        )
        for level in range(1, levels):
            self._whole.append(self._solve(level))
            self._solo.append(self._alone(level))

    @cached_property
    def behind(self) -> int:
        """Length of the axis b: devices that may be at work in later stages."""
        return self.problem.parts.topology.devices if self.problem.limited else 1

    @cached_property
    def stages(self) -> int:
        """Length of the axis n. A limit of one stage keeps two entries, for one entry means no limit."""
        most = self.problem.max_stages
        return 1 if most is None else max(2, most)

    @cached_property
    def contains(self) -> npt.NDArray[np.bool_]:
        """[j, k]: state k is inside state j."""
        return np.ascontiguousarray(self.problem.sets.within.T)

    def used(self, level: int) -> int:
        """Length of the axis u at a level."""
        return self.problem.parts.topology.component_devices(level) if self.problem.counts_devices else 1

    def choices(self, level: int, kind: int) -> Choices:
        """How a component of a level can be divided."""
        return self.problem.parts.choices[level][kind]

    def inner_column(self, level: int, kind: int, j: int, n: int, u: int, b: int) -> Floats:
        """A^{level} of the ranges i -> j on one whole component, for all i."""
        table = self._whole[level]
        return table[j] if self.problem.fast else table[kind, j, :, n, u, b]

    def solo_column(self, level: int, kinds: Iterable[int], j: int, b: int) -> Floats:
        """One stage on all devices of the slowest of these component types, for all i."""
        return np.max(np.stack([self._solo[level][kind, j, :, b] for kind in kinds]), axis=0)

    def row(self, level: int, kind: int, i: int) -> Floats:
        """A^level(i, j) on every part c of a component: [c, j, n, u, b]. Kept once computed."""
        key = (level, kind, i)
        if key not in self._rows:
            self._rows[key] = self._row(level, kind, i)
        return self._rows[key]

    def _leaves(self) -> Floats:
        """A^0: one device."""
        problem, sets = self.problem, self.problem.sets
        states = len(sets)
        if problem.fast:
            seconds = sets.compute_s.copy()
            if problem.memory.recompute is Recompute.ALWAYS:
                seconds += sets.forward_s
            seconds /= problem.parts.speeds[0]
            return np.where(sets.within.T, seconds[:, None] - seconds[None, :], np.inf)
        out = np.full((len(problem.parts.speeds), states, states, self.stages, 1, self.behind), np.inf)
        inputs = sets.cut_bytes.copy()
        inputs[0] = problem.input_bytes

        def between(sums: Floats) -> Floats:
            return sums[:, None] - sums[None, :]

        for kind, speed in enumerate(problem.parts.speeds):
            for b in range(self.behind):
                seconds = leaf_seconds(
                    problem.memory,
                    1 + b,
                    between(sets.compute_s) / speed,
                    between(sets.forward_s) / speed,
                    between(sets.parameter_bytes),
                    between(sets.activation_bytes),
                    np.broadcast_to(inputs[None, :], (states, states)),
                )
                out[kind, :, :, :, 0, b] = np.where(self.contains, seconds, np.inf)[:, :, None]
        return out

    def _row(self, level: int, kind: int, i: int) -> Floats:
        problem, sets = self.problem, self.problem.sets
        choices = self.choices(level, kind)
        bytes_per_s, inner_count = problem.bytes_per_s(level), problem.inner_count(level)
        if problem.fast:
            flat = np.empty((len(choices.counts), len(sets)))
            chain_row(
                i,
                self._whole[level - 1],
                sets.parameter_bytes,
                sets.cut_bytes,
                problem.model,
                choices.all,
                bytes_per_s,
                inner_count,
                problem.most_replicas,
                flat,
            )
            return flat[:, :, None, None, None]
        out = np.empty((len(choices.counts), len(sets), self.stages, self.used(level), self.behind))
        general_row(
            i,
            np.flatnonzero(sets.within[i]),
            self.contains,
            self._whole[level - 1],
            self._solo[level - 1],
            sets.parameter_bytes,
            sets.cut_bytes,
            choices.sizes,
            choices.fewer_at,
            choices.fewer,
            choices.part_at,
            choices.parts,
            choices.rests,
            choices.type_at,
            choices.types,
            problem.model,
            bytes_per_s,
            inner_count,
            problem.most_replicas,
            problem.limited,
            problem.parts.topology.component_devices(level - 1) if problem.whole else 0,
            out,
        )
        return out

    def _solve(self, level: int) -> Floats:
        """A^level of whole components, from every state."""
        problem = self.problem
        states = len(problem.sets)
        kinds = len(problem.parts.choices[level])
        if problem.fast:
            table = np.full((states, states), np.inf)
        else:
            table = np.full((kinds, states, states, self.stages, self.used(level), self.behind), np.inf)

        def fill(job: tuple[int, int]) -> None:
            kind, i = job
            row = self._row(level, kind, i)[-1]
            if problem.fast:
                table[:, i] = row[:, 0, 0, 0]
            else:
                table[kind, :, i] = row

        jobs = [(kind, i) for kind in range(kinds) for i in range(states - 1)]
        # The kernels release the interpreter's lock; the first call, alone, compiles or loads them.
        fill(jobs[0])
        with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 8)) as pool:
            try:
                for done, _ in enumerate(pool.map(fill, jobs[1:]), start=2):
                    if self.on_progress is not None:
                        self.on_progress(done, len(jobs))
            except BaseException:
                # Ctrl-C must not wait for rows that are no longer needed.
                pool.shutdown(cancel_futures=True)
                raise
        return table

    def _alone(self, level: int) -> Floats:
        """One stage on all devices of each component type: [type, i, j, b]. Used only for mixtures of types."""
        problem, sets = self.problem, self.problem.sets
        if problem.fast:
            return np.empty((1, 1, 1, 1))
        weights = sets.parameter_bytes[:, None] - sets.parameter_bytes[None, :]
        count = problem.parts.topology.levels[level - 1][0]
        behind = -(-np.arange(self.behind) // count)
        tables = []
        for kind in range(len(problem.parts.choices[level])):
            choices = self.choices(level, kind)
            inner_s = np.max(self._solo[level - 1][choices.children(choices.all)], axis=0)[:, :, behind]
            exchange_s = uncut_exchange_seconds.py_func(
                problem.model, count, weights, problem.bytes_per_s(level), problem.inner_count(level)
            )
            with np.errstate(invalid="ignore"):
                tables.append(stage_seconds.py_func(problem.model, inner_s, count, exchange_s[:, :, None]))
        return np.stack(tables)
