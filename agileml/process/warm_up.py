"""Warm-up of a machine before it reports ready, so that its first clock is as fast as the others.

The first call of a compiled kernel loads it (0.4 s for the first one of a process) or compiles it (seconds). During
training all machines would wait for that.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from agileml.application import Array, Table, Update
from agileml.core.parameters.apply import apply_total
from agileml.core.parameters.fold import Contribution, tree_sum
from agileml.core.parameters.gradient_norm import load_kernels as load_square_kernels
from agileml.core.parameters.groups import load_kernel
from agileml.core.parameters.layout import ALIGNMENT, Block, Dense, Sparse
from agileml.core.parameters.optimizer import Lamb
from agileml.core.parameters.step_terms import PLAIN
from agileml.core.protocol.job import Job, Overlap
from pipeline.ibatch.batches import batches
from straggler.consistency import Elastic
from straggler.elasticbsp import ElasticBsp
from straggler.lbbsp.policy import LbBsp
from straggler.speed.predictors import RestartingEma


def load_kernels(job: Job) -> None:
    """Add up and apply updates of one row, in every way that training does; and plan a clock, if clocks are planned.

    Arrays from the network are read-only, local ones are writable, and numba compiles a kernel for each kind.
    """
    if job.balancer is not None:
        _plan()
    if job.elastic is not None:
        _plan_supersteps(job.elastic)
    if job.overlap is Overlap.BATCHES:
        batches(0.0, [0.0], [0.0])
    for table in job.layout.tables:
        if table.ranges:
            load_kernel(table.dtype)
        if job.square_tree is not None:
            load_square_kernels(table.dtype)
        if job.layer_trees is not None:
            zeros = np.zeros(ALIGNMENT, table.dtype)
            Lamb().squares(0, zeros, zeros, [zeros, zeros], PLAIN)
    for from_afar in (False, True):
        sums = [tree_sum([_row(job, from_afar), _row(job, other)]) for other in (False, True)]
        for blocks_from_afar, total in product((False, True), (*sums, _row(job, from_afar))):
            tables = job.layout.tables
            apply_total(
                total,
                tables,
                [_zeros(table, blocks_from_afar and not table.sparse) for table in tables],
                [_state(job, table, blocks_from_afar and not table.sparse) for table in tables],
                0,
                job.optimizer,
                in_place=False,
            )


def _plan() -> None:
    for other_s in (0.0, 0.1):  # without and with other time: each has its kernel
        balancer: LbBsp[str] = LbBsp(2, RestartingEma)
        for worker in ("a", "b"):
            balancer.observe(worker, 1, 1.0, other_s=other_s)
        balancer.plan(("a", "b"))


def _plan_supersteps(rule: Elastic) -> None:
    policy = ElasticBsp(rule.range, rule.objective)
    for worker in (0, 1):
        policy.observe(worker, 1 + worker)
    for most in (None, 1):
        policy.plan(0, (0, 1), most)


def _row(job: Job, from_afar: bool) -> Contribution:
    blocks: list[Block | None] = []
    for table in job.layout.tables:
        if table.resident:
            blocks.append(None)
            continue
        zeros = _zeros(table, from_afar)
        blocks.append(
            Sparse(_fixed(np.zeros(1, np.int32), from_afar), zeros) if table.sparse else Dense(zeros)
        )
    return Contribution(tuple(blocks))


def _state(job: Job, table: Table, from_afar: bool) -> list[Array]:
    slots = job.optimizer.slots if table.update is Update.GRADIENT else 0
    return [_zeros(table, from_afar) for _ in range(slots)]


def _zeros(table: Table, from_afar: bool) -> Array:
    """One row of a sparse table as blocks hold it, or the first elements of a dense one."""
    return _fixed(np.zeros((1, table.columns) if table.sparse else ALIGNMENT, table.dtype), from_afar)


def _fixed(array: Array, read_only: bool) -> Array:
    array.flags.writeable = not read_only
    return array
