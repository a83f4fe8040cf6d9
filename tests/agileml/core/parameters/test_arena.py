"""Whole models in one piece: what comes of an arena needs no copy to be read, anything else is told apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import Table
from agileml.core.parameters.arena import Arena, joined
from agileml.core.parameters.layout import Layout


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(1, 6), st.randoms(use_true_random=False))
def test_blocks_of_a_version_are_one_array_in_whatever_order_they_are_asked_for(columns, partitions, random):
    layout = Layout((Table("t", 1, columns), Table("s", 5, 2, sparse=True)), partitions)
    arena = Arena(layout)
    order = list(range(partitions))
    for version in range(3):
        random.shuffle(order)
        for partition in order:
            block, none = arena.blocks(partition, version)
            assert none is None
            block[:] = partition
        pieces = [arena.blocks(p, version)[0] for p in range(partitions)]
        whole = joined(pieces)
        assert whole is not None
        np.testing.assert_array_equal(whole, np.concatenate(pieces))
        assert any(np.shares_memory(whole, piece) for piece in pieces)


def test_a_version_does_not_touch_the_one_before():
    layout = Layout((Table("t", 1, 64),), 2)
    arena = Arena(layout)
    before = [arena.blocks(p, 4)[0] for p in range(2)]
    for block in before:
        block[:] = 4
    for version in (5, 6, 7):
        for p in range(2):
            arena.blocks(p, version)[0][:] = version
    assert all((block == 4).all() for block in before)


def test_pieces_of_several_arrays_or_out_of_order_are_not_one():
    layout = Layout((Table("t", 1, 64),), 2)
    arena = Arena(layout)
    (first,), (second,) = arena.blocks(0, 1), arena.blocks(1, 1)
    assert joined([first, second]) is not None
    assert joined([second, first]) is None
    assert joined([first]) is None
    assert joined([first, second.copy()]) is None
    assert joined([first, Arena(layout).blocks(1, 1)[0]]) is None
    assert joined([first.copy(), second]) is None
