"""One partition: versions, what is pending, the version before, cuts and copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.node.shard.shard import Shard, initial_cut
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Sparse
from agileml.core.protocol.view import CutId
from straggler.consistency import Read
from straggler.coverage import Verdict, span
from tests.agileml.core.fixtures import make_job
from tests.model.toy import toy_job

EVERYTHING = (None, None, None)


def make_shard(mode="bsp", algorithm="momentum", **sizes):
    job = make_job(mode, algorithm=algorithm, **{"slices": 4, "partitions": 1, "clocks": 10, **sizes})
    toy, _ = toy_job(mode, algorithm, job.slices, job.parts, 1, job.clocks)
    values = {table.name: toy.initial(table) for table in toy.tables()}
    return Shard(job, initial_cut(job, job.layout.blocks(values, 0)))


def contribution(shard, seed):
    rng = np.random.default_rng(seed)
    blocks = []
    for table, block in zip(shard.job.layout.tables, shard.blocks, strict=True):
        if table.sparse:
            rows = np.sort(rng.choice(block.shape[0], 2, replace=False)).astype(np.int32)
            blocks.append(Sparse(rows, rng.normal(size=(2, block.shape[1])).astype(table.dtype)))
        else:
            blocks.append(Dense(rng.normal(size=block.shape).astype(table.dtype)))
    return Contribution(tuple(blocks), loss=1.0, examples=2)


def push(shard, clock, unit, now_s=0.0):
    return shard.push(clock, span(unit, unit + 1), contribution(shard, 100 * clock + unit), now_s)


def advance(shard, clocks=1):
    for _ in range(clocks):
        clock = shard.version
        for unit in range(shard.job.units):
            push(shard, clock, unit)


def bits(blocks):
    return [block.tobytes() for block in blocks]


def read(shard, clock):
    version, blocks = shard.read(clock, EVERYTHING)
    return version, bits(blocks)


def test_a_clock_is_applied_when_every_unit_is_counted_once_and_not_before():
    shard = make_shard()
    before = read(shard, 0)
    for unit in (2, 0, 3):
        assert push(shard, 0, unit) is Verdict.COUNT
        assert push(shard, 0, unit) is Verdict.DUPLICATE
        assert shard.version == 0
    assert read(shard, 0) == before
    assert shard.describe().pending == ((0, (1, 4, 8)),)
    push(shard, 0, 1)
    assert shard.version == 1
    assert shard.describe().pending == ()
    assert push(shard, 0, 1) is Verdict.DUPLICATE, "of a clock that is done"


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=3))
def test_the_order_of_arrival_and_doubles_change_no_bit(order, doubles):
    shard, other = make_shard(), make_shard()
    advance(shard)
    for unit in [*order[:2], *[u for u in doubles if u in order[:2]], *order[2:]]:
        push(other, 0, unit)
    assert bits(shard.blocks) == bits(other.blocks)


def test_the_version_before_is_read_until_somebody_pushes_the_next_clock():
    shard = make_shard()
    advance(shard)
    old = read(shard, 1)
    advance(shard)
    assert read(shard, 1) == old
    assert shard.read(3, EVERYTHING) is Read.WAIT
    assert shard.read(0, EVERYTHING) is Read.BEHIND
    push(shard, 2, 0)
    assert shard.read(1, EVERYTHING) is Read.BEHIND, "whoever pushes clock 2 has read it everywhere"


def test_what_was_read_does_not_change_afterwards():
    shard = make_shard()
    _, blocks = shard.read(0, EVERYTHING)
    kept = bits(blocks)
    advance(shard, 2)
    assert bits(blocks) == kept


def test_a_cut_is_taken_at_its_clock_and_does_not_change_afterwards():
    shard = make_shard()
    shard.cut_at = CutId(2, 5)
    advance(shard, 2)
    (cut, only), whole = shard.cuts.part(CutId(2, 5)), shard.own_cut(CutId(2, 5))
    now = (bits(shard.blocks), cut.clock)
    kept = [bits(cut.blocks), [bits(slot) for slot in cut.state]]
    advance(shard, 2)
    assert only is None, "there is nothing yet that it could be relative to"
    for again in (cut, whole, shard.own_cut(CutId(2, 5))):
        assert (bits(again.blocks), again.clock) == now
        assert [bits(again.blocks), [bits(slot) for slot in again.state]] == kept
    shard.cuts.forget(CutId(4, 5), None)
    assert shard.cuts.known == {} and shard.own_cut(CutId(2, 5)) is None


@pytest.mark.parametrize("algorithm", ["sgd", "momentum", "adam"])
def test_a_shard_that_goes_on_from_a_cut_ends_with_the_same_bits(algorithm):
    shard = make_shard(algorithm=algorithm)
    shard.cut_at = CutId(2, 1)
    advance(shard, 5)
    again = Shard(shard.job, shard.own_cut(CutId(2, 1)))
    assert again.version == 2
    advance(again, 3)
    assert bits(again.blocks) == bits(shard.blocks)


@pytest.mark.parametrize("mode", ["bsp", "sum", "ssp", "asp"])
@pytest.mark.parametrize("algorithm", ["momentum", "adam"])
def test_a_shard_moves_in_the_middle_of_a_clock(mode, algorithm):
    shard = make_shard(mode, algorithm)
    advance(shard, 2)
    for unit in (0, 1):
        push(shard, 2, unit)
    moved = Shard.restored(shard.job, shard.copy())
    assert moved.describe() == shard.describe()
    if mode == "bsp":
        assert shard.read(1, EVERYTHING) is moved.read(1, EVERYTHING) is Read.BEHIND
    for each in (shard, moved):
        for unit in (1, 2, 3):
            push(each, 2, unit)
        assert each.version == 3
    assert bits(moved.blocks) == bits(shard.blocks)
    assert moved.progress == shard.progress and moved.progress[-1].examples == 8, "of all four units"
    advance(shard)
    assert bits(moved.blocks) != bits(shard.blocks), "they share no array"


def test_the_version_before_moves_with_the_shard():
    shard = make_shard()
    advance(shard, 2)
    moved = Shard.restored(shard.job, shard.copy())
    assert read(moved, 1) == read(shard, 1)


def test_slack_lets_later_clocks_wait_in_the_shard():
    shard = make_shard("ssp")
    for clock in (2, 1, 0):
        for unit in range(3):
            push(shard, clock, unit)
    assert shard.version == 0
    for clock in (1, 2, 0):
        push(shard, clock, 3)
    assert shard.version == 3
    with pytest.raises(AssertionError):
        push(shard, 6, 0)


def test_asp_applies_on_arrival_each_unit_once_and_says_so_in_its_cuts():
    shard = make_shard("asp")
    start = bits(shard.blocks)
    push(shard, 3, 0)
    moved = bits(shard.blocks)
    assert moved != start
    assert push(shard, 3, 0) is Verdict.DUPLICATE
    assert bits(shard.blocks) == moved
    shard.cut_at = CutId(1, 1)
    advance(shard)
    assert shard.cuts.known[CutId(1, 1)].counted == ((3, (1,)),)
    again = Shard(shard.job, shard.own_cut(CutId(1, 1)))
    assert push(again, 3, 0) is Verdict.DUPLICATE


def test_asp_goes_on_from_a_cut_past_the_clocks_that_are_complete_in_it():
    shard = make_shard("asp")
    for clock, unit in [
        (0, 0),
        (0, 1),
        (0, 2),
        *((clock, unit) for clock in (1, 2) for unit in range(4)),
        (3, 1),
    ]:
        push(shard, clock, unit)
    shard.cut_at = CutId(1, 1)
    push(shard, 0, 3)
    assert shard.version == 3
    again = Shard(shard.job, shard.own_cut(CutId(1, 1)))
    assert again.version == 1
    again.pass_complete(0.0)
    assert again.version == 3 and again.counted == {3: [2]} and again.units_counted == 13
    assert [report.clock for report in again.progress] == [0], (
        "the losses of clocks 1 and 2 are not in the cut"
    )


def test_bundles_that_overlap_in_part_are_refused():
    shard = make_shard("sum")
    shard.push(0, 0b0011, contribution(shard, 1), 0.0)
    with pytest.raises(ValueError, match="partly counted"):
        shard.push(0, 0b0110, contribution(shard, 2), 0.0)
