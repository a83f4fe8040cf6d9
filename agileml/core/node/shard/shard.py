"""One partition as its owner holds it: the newest version, the one before, pending contributions, and cuts.

A shard is at version v when exactly the clocks < v have been applied. It applies a clock when every unit of the clock
has been counted once, along the tree of `fold`. A dense table gets new arrays with every version, because readers and
cuts may still hold the old ones; its optimizer state is overwritten unless a cut holds it. Rows of sparse tables
change in place, so the shard gives away copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np

from agileml.application import Array
from agileml.core.node.shard.clock_sums import ClockSums
from agileml.core.node.shard.cuts import ShardCuts
from agileml.core.node.shard.resident_blocks import ResidentBlocks
from agileml.core.parameters.apply import Applied, apply_total, initial_state, read_rows
from agileml.core.parameters.fold import Contribution, Fold, added_metrics
from agileml.core.parameters.gradient_norm import SquareSums
from agileml.core.parameters.gradient_norm import norm as norm_of
from agileml.core.parameters.layer_norms import LayerTrees, direction_sums, with_norms
from agileml.core.parameters.layout import Sparse
from agileml.core.parameters.loss_scale import ClockSum, LossScale, clock_sum, scale_index
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.parameters.step_terms import own_mean
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import ClockReport, Cut, Previous, Rows, ShardCopy, ShardState, SumsOf
from agileml.core.protocol.view import CutId
from straggler.consistency import Read
from straggler.coverage import Units, Verdict, judge, union


class Shard:
    """The authoritative copy of a partition, or a copy that a change will make authoritative.

    It can restore the committed cut and the open one. `cut_at` names the next cut to take.
    """

    def __init__(self, job: Job, cut: Cut) -> None:
        self.job = job
        self.version = cut.clock
        self.blocks = self._own(cut.blocks)
        self.state = tuple(_by_table([self._own(slot) for slot in cut.state], len(self.blocks)))
        # True: no cut holds the optimizer state of dense tables, so the next step may overwrite it.
        self._owns_state = False
        self.previous: Previous | None = None
        self.pending: dict[int, Fold] = {}
        # Bundles of clocks >= version that were applied on arrival.
        self.counted: dict[int, list[Units]] = {clock: list(b) for clock, b in cut.counted}
        self.progress: list[ClockReport] = list(cut.progress)
        self.cuts = ShardCuts(
            [len(b) if t.sparse else None for t, b in zip(job.layout.tables, self.blocks, strict=True)]
        )
        self.cut_at: CutId | None = None
        self.optimizers: Sequence[Optimizer] = ()  # one for each table's block; empty: the job's for all
        self.resident: ResidentBlocks | None = None  # None: the blocks are all here
        self.sums: dict[SumsOf, ClockSums] = {}  # where a step needs norms of more than this partition
        self.room: Callable[[int], Sequence[Array | None]] | None = None  # memory for a version's blocks
        self._apart: tuple[int, tuple[Array, ...]] = (-1, ())  # a version and copies of its blocks
        # By clock that is applied on arrival and not complete: loss, examples and metrics so far.
        self._losses: dict[int, tuple[float, int, tuple[float, ...]]] = {}

    # -- reading --------------------------------------------------------------------------------------------

    def read(self, clock: int, rows: Sequence[Array | None]) -> Read | tuple[int, tuple[Array, ...]]:
        """The (version, blocks) to start `clock` from; or WAIT, or BEHIND when the clock is done everywhere."""
        answer = self.job.consistency.read(clock, self.version, has_previous=self.previous is not None)
        if answer is Read.CURRENT:
            return self.version, self._select(self.blocks, rows, None)
        if answer is Read.PREVIOUS:
            assert self.previous is not None
            blocks = tuple(
                now if before is None else before
                for now, before in zip(self.blocks, self.previous.blocks, strict=True)
            )
            return self.version - 1, self._select(blocks, rows, self.previous)
        return answer

    def _select(
        self, blocks: Sequence[Array], rows: Sequence[Array | None], previous: Previous | None
    ) -> tuple[Array, ...]:
        found = []
        for index, table in enumerate(self.job.layout.tables):
            if not table.sparse:
                found.append(blocks[index])
                continue
            block = blocks[index]
            wanted = rows[index]
            changed = previous.rows[index] if previous else None
            undo = None
            if previous and changed is not None:
                old = previous.blocks[index]
                assert old is not None
                undo, block = Sparse(changed, old), self.blocks[index]
            if wanted is None:
                wanted = np.arange(block.shape[0], dtype=np.int32)
            found.append(read_rows(block, wanted, undo))
        return tuple(found)

    # -- counting -------------------------------------------------------------------------------------------

    def push(
        self, clock: int, bundle: Units, contribution: Contribution, now_s: float, *, given: bool = False
    ) -> Verdict:
        """Count a bundle, unless it is counted already, and apply every clock that is complete.

        `given`: the contribution's arrays may be overwritten.
        """
        if clock < self.version:
            return Verdict.DUPLICATE
        slack = self.job.consistency.slack
        assert slack is None or clock <= self.version + slack, (clock, self.version, slack)
        if self.job.consistency.applies_on_arrival:
            return self._push_on_arrival(clock, bundle, contribution, now_s)
        fold = self.pending.get(clock)
        verdict = judge(fold.counted if fold else 0, bundle)
        if verdict is Verdict.COUNT:
            if fold is None:
                fold = self.pending[clock] = Fold(self.job.deterministic)
            if clock == self.version:
                # A worker that pushes clock v has read v everywhere, so clock v - 1 is done everywhere.
                self.previous = None
            fold.add(bundle, contribution, given=given)
            self._apply_complete(now_s)
        return verdict

    def take_sums(self, of: SumsOf, clock: int, partition: int, sums: SquareSums, now_s: float) -> None:
        """Take the square sums of another partition, and apply the clock that waited for them."""
        if of in self.sums and clock >= self.version:
            self.sums[of].take(clock, partition, sums)
            self._apply_complete(now_s)

    def waits_for(self) -> tuple[SumsOf, int, SquareSums, list[int]] | None:
        """(of, clock, own sums, partitions) of a clock that lacks only the square sums of these partitions, or None."""
        for of, kept in self.sums.items():
            if (own := kept.own(self.version)) is not None and (missing := kept.missing(self.version)):
                return of, self.version, own, missing
        return None

    def _apply_complete(self, now_s: float) -> None:
        """Apply the clocks of which every unit is counted, in order, as long as their norms are known."""
        while (done := self.pending.get(self.version)) and done.counted == self.job.all_units:
            total = done.total()
            if (found := self._with_norms(total)) is None:
                return
            del self.pending[self.version]
            self._apply(total, found, now_s)

    def _with_norms(self, total: Contribution) -> ClockSum | None:
        """The clock's sum, with the factors that follow from norms; None while this shard lacks a norm."""
        job, norm = self.job, None
        if (of_gradient := self.sums.get(SumsOf.GRADIENT)) is not None:
            assert job.square_tree is not None
            if of_gradient.own(self.version) is None:
                of_gradient.add(self.version, job.square_tree.sums(of_gradient.partition, total))
            if (parts := of_gradient.of(self.version)) is None:
                return None
            norm = norm_of(parts)
        tables, limit = job.layout.tables, job.optimizer.clip_norm
        found = clock_sum(total, tables, self.blocks, rule=job.loss_scale, limit=limit, norm=norm)
        if (of_direction := self.sums.get(SumsOf.DIRECTION)) is not None:
            assert job.layer_trees is not None
            if of_direction.own(self.version) is None:
                of_direction.add(
                    self.version, self._direction_sums(job.layer_trees, of_direction.partition, found)
                )
            if (parts := of_direction.of(self.version)) is None:
                return None
            found = with_norms(found, job.layer_trees, parts)
        return found

    def _direction_sums(self, trees: LayerTrees, partition: int, found: ClockSum) -> SquareSums:
        return direction_sums(trees, partition, self.optimizers, self.version, self.blocks, self.state, found)

    def _push_on_arrival(
        self, clock: int, bundle: Units, contribution: Contribution, now_s: float
    ) -> Verdict:
        verdict = judge(union(self.counted.get(clock, ())), bundle)
        if verdict is Verdict.COUNT:
            self.counted.setdefault(clock, []).append(bundle)
            self._step_along(contribution, clock, bundle)
            loss, examples, metrics = self._losses.get(clock, (0.0, 0, ()))
            metrics = added_metrics(metrics, contribution.metrics)
            self._losses[clock] = loss + contribution.loss, examples + contribution.examples, metrics
            self.pass_complete(now_s)
        return verdict

    def pass_complete(self, now_s: float) -> None:
        """Advance past clocks whose units were all applied on arrival. A shard that was restored from a cut may begin
        before such clocks. It does not report them: their loss is lost."""
        while union(self.counted.get(self.version, ())) == self.job.all_units:
            del self.counted[self.version]
            if (losses := self._losses.pop(self.version, None)) is not None:
                self._advance(*losses, now_s)
            else:
                self._begin_next()

    def _step_along(self, contribution: Contribution, clock: int, bundle: Units) -> None:
        """Take the step of a contribution that is counted: along its own mean, for its share of a clock."""
        terms = own_mean(bundle.bit_count(), self.job.units, self.units_counted)
        self._step(ClockSum(contribution, terms), clock)

    @property
    def units_counted(self) -> int:
        """All units that were counted, of the clocks before `version` and of those applied on arrival since."""
        since = (bundle.bit_count() for bundles in self.counted.values() for bundle in bundles)
        return self.version * self.job.units + sum(since)

    def _apply(self, total: Contribution, found: ClockSum, now_s: float) -> None:
        """Take the step of a complete clock, and keep the version before where slower workers may read it."""
        before = self.blocks
        applied = self._step(found, self.version)
        if self.job.consistency.keeps_previous:
            self.previous = Previous(
                tuple(
                    (undo.values if undo else None) if table.sparse else (old if old is not new else None)
                    for table, undo, old, new in zip(
                        self.job.layout.tables, applied.undo, before, self.blocks, strict=True
                    )
                ),
                tuple(undo.rows if undo else None for undo in applied.undo),
            )
        self._advance(total.loss, total.examples, total.metrics, now_s)

    def _step(self, found: ClockSum, clock: int) -> Applied:
        job, tables = self.job, self.job.layout.tables
        applied = apply_total(
            found.total,
            tables,
            self.blocks,
            self.state,
            clock,
            self.optimizers or job.optimizer,
            in_place=False,
            state_in_place=self._owns_state,
            into=self.room(clock + 1) if self.room else None,
            terms=found.terms,
        )
        self.blocks, self.state = applied.blocks, applied.state
        self.cuts.note(applied)
        self._owns_state = self._owns_state or all(
            table.sparse or update is not None or not slots
            for table, update, slots in zip(tables, found.total.blocks, self.state, strict=True)
        )
        return applied

    def _advance(self, loss: float, examples: int, metrics: tuple[float, ...], now_s: float) -> None:
        index = scale_index(self.job.layout.tables)
        scale = None if index is None else LossScale.of(self.block_now(index))
        self.progress.append(ClockReport(self.version, loss, examples, now_s, metrics, scale))
        self._begin_next()

    def _begin_next(self) -> None:
        self.version += 1
        for kept in self.sums.values():
            kept.forget(self.version)
        self._apart = (-1, ())
        if self.cut_at and self.is_at(self.cut_at.clock):
            self.take_cut(self.cut_at)

    # -- cuts and moves -------------------------------------------------------------------------------------

    def is_at(self, clock: int) -> bool:
        """True when the cut of a clock can be taken now."""
        return self.version == clock

    def take_cut(self, name: CutId) -> None:
        """Open a cut at this version."""
        assert name.clock == self.version, (name, self.version)
        self.cuts.open(name, self._cut)
        self.cut_at = None

    def begin_from(self, name: CutId, changed: Rows | None = None) -> None:
        """Treat this shard's state as the committed cut `name`, except for the rows in `changed`."""
        self.cuts.begin_from(name, changed, self._cut)

    def own_cut(self, name: CutId) -> Cut | None:
        """A whole copy of the committed cut or of the open one."""
        found = self.cuts.whole(name, self._cut)
        self.is_copied(waits=True)
        return found

    def _cut(self, rows: Sequence[Array | None] | None = None) -> Cut:
        """This version, as arrays that no later step changes. `rows`: take only these rows of sparse tables; None:
        all."""
        self._owns_state = False
        if rows is None:
            rows = (None,) * len(self.blocks)

        def own(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return tuple(
                array if not table.sparse or not array.size else array.copy() if some is None else array[some]
                for table, array, some in zip(self.job.layout.tables, arrays, rows, strict=True)
            )

        empty = np.empty(0, np.float32)
        slots = range(self.job.optimizer.slots)
        state = tuple(own([arrays[slot] if arrays else empty for arrays in self.state]) for slot in slots)
        counted = tuple((clock, tuple(sorted(self.counted[clock]))) for clock in sorted(self.counted))
        return Cut(self.version, own(self._blocks_apart()), state, counted, tuple(self.progress))

    def _blocks_apart(self) -> tuple[Array, ...]:
        """The blocks, apart from the arena and the replica: a reference into the arena would keep all of it alive. The
        replica may still be copying its blocks when this returns (`is_copied`)."""
        if self.room is None and self.resident is None:
            return self.blocks
        if self._apart[0] != self.version:
            tables, here, there = self.job.layout.tables, self.blocks, self.resident
            apart = (b if t.sparse else b.copy() for t, b in zip(tables, here, strict=True))
            self._apart = self.version, tuple(apart) if there is None else there.copied(here, self.version)
        return self._apart[1]

    def is_copied(self, *, waits: bool = False) -> bool:
        """True when the cuts here hold their values: no copy out of the replica is under way."""
        return self.resident is None or self.resident.is_copied(waits=waits)

    def block_now(self, index: int) -> Array:
        """The block of a table at this version."""
        is_there = self.resident is not None and self.job.layout.tables[index].resident
        return self.resident.now(index) if is_there and self.resident else self.blocks[index]

    def leave_to(self, resident: ResidentBlocks) -> None:
        """Drop the blocks of resident tables: from now on they lie where the machine computes."""
        self.resident, self._apart = resident, (-1, ())
        self.blocks = tuple(
            np.empty(0, table.dtype) if table.resident else block
            for table, block in zip(self.job.layout.tables, self.blocks, strict=True)
        )

    def _own(self, blocks: Sequence[Array]) -> tuple[Array, ...]:
        """Blocks that this shard may keep: copies of sparse tables, which change in place, and dense tables as they
        are."""
        return tuple(
            block.copy() if table.sparse else block
            for table, block in zip(self.job.layout.tables, blocks, strict=True)
        )

    def forget_progress(self, before: int) -> None:
        """Drop the reports of clocks < `before`, which the controller has."""
        if self.progress and self.progress[0].clock < before:
            self.progress = [entry for entry in self.progress if entry.clock >= before]

    def copy(self, have: CutId | None = None) -> ShardCopy:
        """All state that another server needs to take over; only the changed rows if it has the committed cut
        `have`."""
        pending = tuple((clock, self.pending[clock].copied()) for clock in sorted(self.pending))
        changed = self.cuts.changed()
        only = changed if changed is not None and changed.base == have else None
        cut = self._cut(only.by_table if only is not None else None)
        self.is_copied(waits=True)
        sums = {of: kept.kept for of, kept in self.sums.items()}
        squares, directions = (sums.get(of, ()) for of in (SumsOf.GRADIENT, SumsOf.DIRECTION))
        losses = tuple((clock, *found) for clock, found in sorted(self._losses.items()))
        return ShardCopy(cut, self.previous, pending, only, changed, squares, directions, losses=losses)

    @classmethod
    def restored(cls, job: Job, copy: ShardCopy) -> Self:
        """The shard that `copy` was taken from."""
        assert copy.only is None, "rows that the receiver has must be added first"
        shard = cls(job, copy.cut)
        if copy.changed is not None:
            shard.begin_from(copy.changed.base, copy.changed)
        shard.previous = copy.previous
        shard._losses = {clock: (loss, examples, metrics) for clock, loss, examples, metrics in copy.losses}
        shard.pending = {
            clock: Fold.restored(fold, deterministic=job.deterministic) for clock, fold in copy.pending
        }
        return shard

    def describe(self) -> ShardState:
        """The version, and the pending bundles of each clock."""
        if self.job.consistency.applies_on_arrival:
            waiting = self.counted
        else:
            waiting = {clock: fold.bundles for clock, fold in self.pending.items()}
        return ShardState(
            self.version, tuple((clock, tuple(sorted(waiting[clock]))) for clock in sorted(waiting))
        )


def initial_cut(job: Job, blocks: Sequence[Array]) -> Cut:
    """The cut at clock 0 from a partition's initial values."""
    by_table = initial_state(job.layout.tables, blocks, job.optimizer)
    empty = np.empty(0, np.float32)
    state = tuple(
        tuple(arrays[slot] if arrays else empty for arrays in by_table) for slot in range(job.optimizer.slots)
    )
    return Cut(0, tuple(blocks), state)


def _by_table(state: Sequence[tuple[Array, ...]], tables: int) -> list[list[Array]]:
    """Optimizer state by table instead of by slot; empty for tables of steps."""
    return [
        [slot[table] for slot in state if slot[table].ndim > 1 or slot[table].size] for table in range(tables)
    ]
