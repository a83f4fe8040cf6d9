"""A gradient that stays on its device is cut, added and joined in its own memory."""

import gc
import queue
import time
import weakref
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from agileml.core.parameters.fold import Contribution, Fold, running_sum
from agileml.core.parameters.layout import OnDevice
from agileml.core.protocol.commands import Form, Reduce, Reduced
from agileml.net.allreduce import AllReduce
from agileml.net.collectives import Gloo
from agileml.net.tensor_vector import TensorVector


@given(st.lists(st.integers(0, 40), max_size=6).map(sorted))
def test_pieces_of_one_vector_join_without_a_copy(cuts: list[int]) -> None:
    whole = TensorVector(torch.arange(40.0))
    bounds = [0, *cuts, 40]
    pieces = [whole[a:b] for a, b in pairwise(bounds)]
    assert [piece.size for piece in pieces] == [b - a for a, b in pairwise(bounds)]
    found = pieces[0].joined(pieces)
    assert found.tensor.tolist() == whole.tensor.tolist()
    assert found.tensor.data_ptr() == whole.tensor.data_ptr()


def test_pieces_of_a_piece_join_without_a_copy() -> None:
    middle = TensorVector(torch.arange(40.0))[8:24]
    found = middle.joined([middle[:4], middle[4:]])
    assert found.tensor.data_ptr() == middle.tensor.data_ptr() and found.tensor.tolist() == list(range(8, 24))


def test_pieces_that_are_no_neighbours_are_copied_in_their_order() -> None:
    one, other = TensorVector(torch.arange(4.0)), TensorVector(torch.arange(4.0, 8.0))
    assert one.joined([one, other]).tensor.tolist() == list(range(8))
    assert one.joined([one[2:], one[:2]]).tensor.tolist() == [2, 3, 0, 1]


def test_what_is_added_to_a_piece_is_added_to_the_whole() -> None:
    whole = TensorVector(torch.zeros(6, dtype=torch.float64))
    whole[2:4].add(TensorVector(torch.ones(2, dtype=torch.float64)))
    assert whole.tensor.tolist() == [0, 0, 1, 1, 0, 0]
    assert (whole.size, whole.nbytes, whole.dtype) == (6, 48, "float64")


def units(*numbers: float) -> list[Contribution]:
    """Contributions of vectors that hold one of the numbers each."""
    return [Contribution((OnDevice(TensorVector(torch.full((3,), number), {"a"})),)) for number in numbers]


def numbers_of(contribution: Contribution) -> list[float]:
    (block,) = contribution.blocks
    assert isinstance(block, OnDevice) and isinstance(block.values, TensorVector)
    return block.values.tensor.tolist()


def test_a_fold_leaves_the_vectors_that_a_worker_keeps_as_they_are() -> None:
    """A change of machines drops the fold, and the worker pushes what it has kept again."""
    kept = units(1.0, 2.0, 4.0)
    for _ in range(2):
        fold = Fold(deterministic=False)
        for number, contribution in enumerate(kept):
            fold.add(1 << number, contribution)
        assert numbers_of(fold.total()) == [7.0] * 3
    assert [numbers_of(each) for each in kept] == [[1.0] * 3, [2.0] * 3, [4.0] * 3]


def test_units_of_a_bundle_are_added_in_the_memory_of_the_first() -> None:
    leaves = units(1.0, 2.0, 4.0)
    total = running_sum(leaves)
    assert numbers_of(total) == [7.0] * 3 and total.blocks == leaves[0].blocks


def test_the_threads_of_a_group_keep_no_vector_that_they_have_added_up() -> None:
    """It would lie on the device beside that of the next clock."""
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    reducing = AllReduce("a", events.put, Gloo())
    reducing.form(Form(1, ("a",)), "127.0.0.1")
    memory = np.ones(8)
    is_kept = weakref.ref(memory)
    reducing.ask(Reduce(1, 0, 0, (TensorVector(torch.from_numpy(memory)),), 0.5, 4, False))
    assert isinstance(events.get(timeout=30), Reduced)
    del memory
    until_s = time.monotonic() + 10
    while is_kept() is not None and time.monotonic() < until_s:
        gc.collect()
        time.sleep(0.01)
    assert is_kept() is None
    reducing.stop()
