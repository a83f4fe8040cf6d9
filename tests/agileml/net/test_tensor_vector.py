"""A gradient that stays on its device is cut, added and joined in its own memory."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

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
