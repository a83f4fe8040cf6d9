"""The reference: the whole training in one process, clock after clock, without Ray, machines or messages.

It computes units, adds them along the tree and applies them with the very functions that workers and shards use, so a
deterministic job ends with these bits wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from agileml.application import Application, Array, Replica, Table
from agileml.core.compute.contract import checked_tables, initial_values
from agileml.core.compute.threads import single_threaded
from agileml.core.compute.unit_computer import Inputs, UnitComputer
from agileml.core.parameters.apply import State, apply_total, initial_state, partition_optimizers
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.gradient_norm import SquareTree, clip_scale, norm
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.parameters.whole_updates import resident_updates, whole_blocks
from straggler.coverage import Units, span

OnMetrics = Callable[[int, tuple[float, ...], Callable[[], dict[str, Array]]], None]
OnClock = Callable[[int, float, int], bool | None]


@dataclass(frozen=True)
class Trained:
    """The whole tables after training, and for each array of state that the optimizer has, its tables of gradients."""

    tables: dict[str, Array]
    slots: tuple[dict[str, Array], ...]


def run_sequential(application: Application, **options: Any) -> dict[str, Array]:
    """The whole tables that `train` leaves; it has the same arguments."""
    return train(application, **options).tables


def train(
    application: Application,
    *,
    optimizer: Optimizer,
    clocks: int,
    parts: int = 1,
    partitions: int = 1,
    deterministic: bool = True,
    bundles: Sequence[Units] | None = None,
    on_clock: OnClock | None = None,
    on_metrics: OnMetrics | None = None,
) -> Trained:
    """Train for `clocks` clocks of `application.settings.slices` x `parts` units.

    Neither `partitions` nor `bundles` (disjoint sets that cover all units, aligned subtrees when deterministic; one of
    all by default) changes a bit of a deterministic result: they are there to show that.
    `on_clock(clock, loss, examples)` is called after each clock with the sums over its units, and ends the training if
    it returns True; `on_metrics(clock, sums and weights, tables)` before its step, where something was measured;
    `tables()` gives the tables that it was measured with, valid during the call.
    Raises InputError (bad data), UnitError (user code failed), ContractError (it returned what cannot be used).
    """
    tables = checked_tables(application)
    layout = Layout(tables, partitions)
    work = UnitComputer(application, layout, parts, deterministic=deterministic)
    work.load(range(application.settings.slices))
    bundles = bundles if bundles is not None else [span(0, work.units)]
    start = initial_values(application, tables)
    replica = _replica(application, optimizer, start) if any(table.resident for table in tables) else None
    shares = [layout.blocks(start, partition) for partition in range(partitions)]

    def whole() -> dict[str, Array]:
        return layout.whole(shares) | _resident_tables(replica, tables)

    rules = [partition_optimizers(optimizer, layout, partition) for partition in range(partitions)]
    states = [initial_state(tables, blocks, optimizer) for blocks in shares]
    with single_threaded() if deterministic else nullcontext():
        for clock in range(clocks):
            reads = work.reads(clock, bundles)
            pulled = [
                [block if rows is None else block[rows] for block, rows in zip(blocks, wanted, strict=True)]
                for blocks, wanted in zip(shares, reads.by_partition, strict=True)
            ]
            inputs = work.assemble(reads, pulled)
            totals = _totals(work, inputs, bundles, [Fold(deterministic) for _ in range(partitions)])
            if on_metrics is not None and totals[0].metrics:
                on_metrics(clock, totals[0].metrics, whole)
            scale = _scale(layout, totals, optimizer.clip_norm)
            if replica is not None:
                totals = _leave_to(replica, layout, clock, totals)
            for p, total in enumerate(totals):
                applied = apply_total(
                    total, tables, shares[p], states[p], clock, rules[p], in_place=True, scale=scale
                )
                shares[p], states[p] = applied.blocks, applied.state
            if on_clock is not None and on_clock(clock, totals[0].loss, totals[0].examples):
                break
    slots = (layout.whole_slot(_of_slot(states, slot)) for slot in range(optimizer.slots))
    return Trained(whole(), tuple(slots))


def _totals(
    work: UnitComputer, inputs: Inputs, bundles: Sequence[Units], folds: Sequence[Fold]
) -> list[Contribution]:
    """The sums of a clock, by partition."""
    for bundle in bundles:
        for fold, contribution in zip(folds, work.compute(inputs, bundle), strict=True):
            fold.add(bundle, contribution)
    return [fold.total() for fold in folds]


def _of_slot(states: Sequence[Sequence[State]], slot: int) -> list[list[Array | None]]:
    """One array of the optimizer's state of every partition and table."""
    return [[arrays[slot] if arrays else None for arrays in state] for state in states]


def _leave_to(
    replica: Replica, layout: Layout, clock: int, totals: Sequence[Contribution]
) -> list[Contribution]:
    """Let the replica take its step; what is left for the other tables."""
    replica.step(clock, resident_updates(layout, [whole_blocks(layout, p, t) for p, t in enumerate(totals)]))
    return [
        replace(
            total,
            blocks=tuple(None if t.resident else b for t, b in zip(layout.tables, total.blocks, strict=True)),
        )
        for total in totals
    ]


def _scale(layout: Layout, totals: Sequence[Contribution], limit: float | None) -> float:
    """The factor of a clock's gradient."""
    if limit is None:
        return 1.0
    tree = SquareTree(layout)
    return clip_scale(norm(tree.sums(partition, total) for partition, total in enumerate(totals)), limit)


def _resident_tables(replica: Replica | None, tables: Sequence[Table]) -> dict[str, Array]:
    if replica is None:
        return {}
    return {
        table.name: replica.read(table.name, 0, table.rows * table.columns).reshape(table.rows, table.columns)
        for table in tables
        if table.resident
    }


def _replica(application: Application, optimizer: Optimizer, start: Mapping[str, Array]) -> Replica:
    """The application's replica with its tables of `start`."""
    replica = application.replica(optimizer.rate_at)
    assert replica is not None, "an application with resident tables has a replica"
    replica.place(
        {table.name: start[table.name].reshape(-1) for table in application.tables() if table.resident}
    )
    return replica
