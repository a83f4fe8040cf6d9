"""The reference: the whole training in one process, clock after clock, without Ray, machines or messages.

It computes units, adds them along the tree and applies them with the very functions that workers and shards use, so a
deterministic job ends with these bits wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from agileml.application import Application, Array, LossScaleRule, Replica, Table
from agileml.core.compute.contract import checked_tables, initial_values
from agileml.core.compute.threads import single_threaded
from agileml.core.compute.unit_computer import Inputs, UnitComputer
from agileml.core.parameters.apply import State, apply_total, initial_state, partition_optimizers, whole_slots
from agileml.core.parameters.fold import Contribution, Fold
from agileml.core.parameters.gradient_norm import SquareTree
from agileml.core.parameters.gradient_norm import norm as norm_of
from agileml.core.parameters.layer_norms import LayerTrees, direction_sums, with_norms
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.loss_scale import (
    LOSS_SCALE,
    LossScale,
    clock_sum,
    scale_index,
    with_loss_scale,
)
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
    on_scale: Callable[[int, LossScale], None] | None = None,
) -> Trained:
    """Train for `clocks` clocks of `application.settings.slices` x `parts` units.

    Neither `partitions` nor `bundles` (disjoint sets that cover all units, aligned subtrees when deterministic; one of
    all by default) changes a bit of a deterministic result: they are there to show that.
    `on_clock(clock, loss, examples)` is called after each clock with the sums over its units, and ends the training if
    it returns True; `on_metrics(clock, sums and weights, tables)` before its step, where something was measured;
    `tables()` gives the tables that it was measured with, valid during the call; `on_scale(clock, scale)` after each
    clock of a job whose losses are scaled.
    Raises InputError (bad data), UnitError (user code failed), ContractError (it returned what cannot be used).
    """
    rule = application.loss_scale()
    tables = with_loss_scale(checked_tables(application), rule, partitions)
    layout = Layout(tables, partitions)
    work = UnitComputer(application, layout, parts, deterministic=deterministic)
    work.load(range(application.settings.slices))
    bundles = bundles if bundles is not None else [span(0, work.units)]
    start = initial_values(application, tables)
    replica = _replica(application, optimizer, tables, start)
    here = _Partitions(layout, optimizer, rule, [layout.blocks(start, p) for p in range(partitions)])

    def whole() -> dict[str, Array]:
        return layout.whole(here.blocks) | _resident_tables(replica, tables)

    with single_threaded() if deterministic else nullcontext():
        for clock in range(clocks):
            reads = work.reads(clock, bundles)
            inputs = work.assemble(reads, reads.taken_from(here.blocks))
            totals = _totals(work, inputs, bundles, [Fold(deterministic) for _ in range(partitions)])
            if on_metrics is not None and totals[0].metrics:
                on_metrics(clock, totals[0].metrics, whole)
            here.step(clock, totals if replica is None else _leave_to(replica, layout, clock, totals))
            if on_scale is not None and (index := scale_index(tables)) is not None:
                on_scale(clock, LossScale.of(_scale_block(replica, here.blocks[0][index])))
            if on_clock is not None and on_clock(clock, totals[0].loss, totals[0].examples):
                break
    return Trained(whole(), whole_slots(layout, here.states, optimizer.slots))


class _Partitions:
    """The blocks of all partitions, and their optimizer state."""

    def __init__(
        self,
        layout: Layout,
        optimizer: Optimizer,
        rule: LossScaleRule | None,
        blocks: list[tuple[Array, ...]],
    ) -> None:
        """rule: of the loss scale."""
        self.blocks = blocks
        self.states: list[Sequence[State]] = [
            initial_state(layout.tables, some, optimizer) for some in blocks
        ]
        self._layout, self._optimizer, self._rule = layout, optimizer, rule
        self._rules = [partition_optimizers(optimizer, layout, p) for p in range(layout.partitions)]
        is_resident = any(table.resident for table in layout.tables)
        self._trees = LayerTrees(layout) if optimizer.is_layerwise else None
        needs_norm = optimizer.clip_norm is not None or (rule is not None and not is_resident)
        self._squares = SquareTree(layout) if needs_norm else None

    def step(self, clock: int, totals: Sequence[Contribution]) -> None:
        """Apply the sums of a clock, by partition."""
        tables, limit = self._layout.tables, self._optimizer.clip_norm
        squares = self._squares
        norm = norm_of(squares.sums(p, t) for p, t in enumerate(totals)) if squares is not None else None
        found = [
            clock_sum(total, tables, blocks, rule=self._rule, limit=limit, norm=norm)
            for total, blocks in zip(totals, self.blocks, strict=True)
        ]
        if (trees := self._trees) is not None:
            parts = [
                direction_sums(trees, p, self._rules[p], clock, self.blocks[p], self.states[p], each)
                for p, each in enumerate(found)
            ]
            found = [with_norms(each, trees, parts) for each in found]
        for p, each in enumerate(found):
            applied = apply_total(
                each.total,
                tables,
                self.blocks[p],
                self.states[p],
                clock,
                self._rules[p],
                in_place=True,
                terms=each.terms,
            )
            self.blocks[p], self.states[p] = applied.blocks, applied.state


def _totals(
    work: UnitComputer, inputs: Inputs, bundles: Sequence[Units], folds: Sequence[Fold]
) -> list[Contribution]:
    """The sums of a clock, by partition."""
    for bundle in bundles:
        for fold, contribution in zip(folds, work.compute(inputs, bundle), strict=True):
            fold.add(bundle, contribution)
    return [fold.total() for fold in folds]


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


def _scale_block(replica: Replica | None, block: Array) -> Array:
    """The loss scale where it is: in the replica, if there is one."""
    return block if replica is None else replica.read(LOSS_SCALE, 0, block.size)


def _resident_tables(replica: Replica | None, tables: Sequence[Table]) -> dict[str, Array]:
    if replica is None:
        return {}
    return {
        table.name: replica.read(table.name, 0, table.rows * table.columns).reshape(table.rows, table.columns)
        for table in tables
        if table.resident
    }


def _replica(
    application: Application, optimizer: Optimizer, tables: Sequence[Table], start: Mapping[str, Array]
) -> Replica | None:
    """The application's replica with its tables of `start`, if there are such."""
    resident = [table.name for table in tables if table.resident]
    if not resident:
        return None
    replica = application.replica(optimizer.rate_at)
    assert replica is not None, "an application with resident tables has a replica"
    replica.place({name: [(0, start[name].reshape(-1))] for name in resident})
    return replica
