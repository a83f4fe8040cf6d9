"""What a pipeline without a flush has to end with, straight from the thesis' formulas (5.3.3), without any schedule.

With stages 0 .. n - 1 the update of clock t is the gradient at w_l^(t - (n - 1 - l)) for each stage l, but never at a
version before the clock at which the pipeline was last empty. Without stashed weights the backward is at w^(t). With
vertical sync it is the gradient at w_l^(t - (n - 1)) for all l, with two buffers at w_l^(t - 1) if n > 1. A stage that
exchanges sums while it computes has each version one clock later, and with vertical sync all are as old as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from agileml.application import Array, Unit
from agileml.core.compute.contract import initial_values
from agileml.core.parameters.apply import apply_total, initial_state
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.layout import Dense
from agileml.core.protocol.job import Job, PipelineMode
from agileml.core.protocol.view import StagesFrom
from tests.model.staged_toy import LAYERS, StagedToy, ToyStage

Tables = tuple[Array, ...]


def async_reference(toy: StagedToy, job: Job, stages: Sequence[StagesFrom]) -> dict[str, Array]:
    """The tables after the job's clocks, when these stages computed them."""
    assert job.pipeline is not None
    tables = toy.tables()
    start = initial_values(toy, tables)
    versions = [tuple(start[table.name] for table in tables)]
    state = initial_state(tables, [table.reshape(-1) for table in versions[0]], job.optimizer)
    for each, (first, stop) in zip(stages, pairwise([s.clock for s in stages] + [job.clocks]), strict=True):
        edges = [LAYERS // job.layout.partitions * end for end in (0, *each.ends)]
        for clock in range(first, stop):
            read = [
                [
                    versions[max(first, clock - _age(job.pipeline.mode, stage, each))][table][a:b]
                    for stage, (a, b) in enumerate(pairwise(edges))
                ]
                for table in range(len(tables))
            ]
            whole = tuple(np.concatenate(parts) for parts in read)
            newest = [
                [
                    versions[max(first, clock - (stage in each.overlapping))][table][a:b]
                    for stage, (a, b) in enumerate(pairwise(edges))
                ]
                for table in range(len(tables))
            ]
            is_newest = job.pipeline.mode is PipelineMode.NONE
            back = tuple(np.concatenate(parts) for parts in newest) if is_newest else whole
            total = _gradient(toy, job, clock, whole, back)
            before = [table.reshape(-1) for table in versions[clock]]
            applied = apply_total(total, tables, before, state, clock, job.optimizer, in_place=False)
            versions.append(tuple(block.reshape(LAYERS, -1) for block in applied.blocks))
            state = applied.state
    return {table.name: values for table, values in zip(tables, versions[-1], strict=True)}


def _age(mode: PipelineMode, stage: int, arranged: StagesFrom) -> int:
    stages = len(arranged.ends)
    if mode is PipelineMode.VERTICAL_SYNC:
        return stages - 1 + (0 in arranged.overlapping)
    if mode is PipelineMode.DOUBLE_BUFFERED:
        return 1 if stages > 1 else 0
    return stages - 1 - stage + (stage in arranged.overlapping)


def _gradient(toy: StagedToy, job: Job, clock: int, read: Tables, back: Tables) -> Contribution:
    whole, fold = ToyStage(toy, [0, LAYERS]), Fold(deterministic=True)
    for number in range(job.units):
        unit = Unit(clock, number // job.parts, number % job.parts, job.parts)
        whole.use([_flat(read)])
        output = whole.forward(unit, toy.load(unit.slice), (), defer=False)
        whole.overwrite([_flat(back)])
        whole.backward(unit, ())
        (updates,) = whole.updates(unit)
        blocks = tuple(Dense(update) for update in updates)
        fold.add(1 << number, Contribution(blocks, output.loss, output.examples))
    return fold.total()


def _flat(tables: Tables) -> Tables:
    return tuple(table.reshape(-1) for table in tables)
