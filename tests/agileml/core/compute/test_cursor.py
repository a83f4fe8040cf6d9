from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.compute.cursor import Cursor
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.fold import Contribution, Fold
from straggler.coverage import Units, aligned_subtrees, members, span, union
from tests.model.toy import toy_job

UNITS = 16


def computer(mode: str) -> tuple[UnitComputer, object]:
    toy, job = toy_job(mode, "sgd", 8, 2, 1, 4)
    work = UnitComputer(toy, job.layout, 2, deterministic=job.deterministic)
    work.load(range(8))
    reads = work.reads(0, [span(0, UNITS)])
    whole = [np.random.default_rng(1).normal(size=(t.rows, t.columns)).astype(t.dtype) for t in toy.tables()]
    pulled = [[whole[i][reads.rows[t.name]] if t.sparse else whole[i] for i, t in enumerate(toy.tables())]]
    return work, work.assemble(reads, pulled)


def bits(total: Contribution) -> list[bytes]:
    return [block.values.tobytes() for block in total.blocks if block is not None]


def summed(pieces: Sequence[tuple[Units, Contribution]]) -> Contribution:
    fold = Fold(True)
    for units, total in pieces:
        fold.add(units, total)
    return fold.total()


@given(st.integers(0, 3), st.integers(1, UNITS), st.integers(0, 5))
def test_the_pieces_of_a_computation_that_is_cut_add_up_to_the_bits_of_the_whole(
    level: int, stop: int, chunk: int
) -> None:
    work, inputs = computer("bsp")
    size = UNITS >> level
    bundle, stop = span(size, 2 * size) if level else span(0, size), min(stop, size)
    whole = work.total(inputs, bundle)
    first = min(members(bundle))

    cursor = Cursor(size, chunk)
    with cursor.held():
        cursor.end_at(stop)
    pieces = work.sums(inputs, bundle, cursor)
    assert [units for units, _ in pieces] == aligned_subtrees(span(first, first + stop))

    rest = [
        sum_
        for part in aligned_subtrees(span(first + stop, first + size))
        for sum_ in work.sums(inputs, part, Cursor(size))
    ]
    assert bits(summed(pieces + rest)) == bits(whole)


def test_where_the_order_of_adding_is_free_what_is_left_is_one_sum() -> None:
    work, inputs = computer("sum")
    cursor = Cursor(UNITS, chunk=3)
    with cursor.held():
        cursor.end_at(10)
    ((units, total),) = work.sums(inputs, span(0, UNITS), cursor)
    assert units == span(0, 10)
    assert total.examples == 10


def test_the_end_may_come_nearer_between_two_chunks_and_nothing_is_begun_beyond_it() -> None:
    work, inputs = computer("bsp")
    cursor, seen = Cursor(UNITS, chunk=3), []

    def done(count: int) -> None:
        seen.append(count)
        if len(seen) == 2:
            with cursor.held() as begun:
                assert begun == 6
                cursor.end_at(8)

    pieces = work.sums(inputs, span(0, UNITS), cursor, done)
    assert seen == [3, 3, 2]
    assert union(units for units, _ in pieces) == span(0, 8)


def test_an_aborted_computation_begins_nothing_more_and_has_no_sum() -> None:
    work, inputs = computer("bsp")
    cursor = Cursor(UNITS)
    assert work.sums(inputs, span(0, UNITS), cursor, lambda count: cursor.abort()) == []
    assert cursor.begun == 1
    assert cursor.claim(5) == 0


def test_a_unit_is_either_begun_or_given_away() -> None:
    """One thread claims while another moves the end: claims end exactly there."""
    for _ in range(20):
        cursor, claimed = Cursor(10_000, chunk=7), []

        def compute(cursor: Cursor = cursor, claimed: list[int] = claimed) -> None:
            while count := cursor.claim(10_000):
                claimed.append(count)

        thread = threading.Thread(target=compute)
        thread.start()
        while cursor.stop > cursor.begun:
            with cursor.held() as begun:
                cursor.end_at(begun + (cursor.stop - begun) // 2)
        thread.join()
        assert sum(claimed) == cursor.begun == cursor.stop


def test_the_end_does_not_come_before_what_has_begun() -> None:
    cursor = Cursor(8)
    cursor.claim(4)
    with cursor.held(), pytest.raises(AssertionError):
        cursor.end_at(3)


def test_a_mark_is_passed_once() -> None:
    cursor = Cursor(8)
    cursor.mark = 3
    passed = []
    while cursor.claim(1):
        passed.append(cursor.passes())
    assert passed == [False, False, True, False, False, False, False, False]
