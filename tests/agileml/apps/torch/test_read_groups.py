"""The order of items that lie together: every one once a pass, group after group."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.application import InputError, Settings, Unit
from agileml.apps.torch.batches.minibatches import Minibatches
from agileml.apps.torch.batches.read_groups import ReadGroups, windowed
from agileml.apps.torch.data import DatasetExamples
from tests.thorough import examples

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(SIZES, st.integers(1, 40), st.integers(0, 5))
def test_an_order_goes_through_neighbours_that_are_shuffled_together(
    sizes: list[int], together: int, seed: int
) -> None:
    found = windowed(sizes, together, np.random.default_rng(seed))
    assert sorted(found) == list(range(sum(sizes)))
    part_of = np.repeat(np.arange(len(sizes)), sizes)[found]
    left = dict(enumerate(sizes))
    for part in part_of:
        left[part] -= 1
        begun = [each for each in left if 0 < left[each] < sizes[each]]
        assert sum(sizes[each] for each in begun) < together + max(sizes), "more is open than a window has"


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(SIZES, st.integers(0, 3), st.integers(1, 20), st.data())
def test_every_item_comes_once_a_pass(
    sizes: list[int], log_slices: int, together: int, data: st.DataObject
) -> None:
    slices, count = 1 << log_slices, sum(sizes)
    if count < slices:
        return
    batch = data.draw(st.integers(1, count))
    cut = Minibatches(Settings(seed=3, slices=slices), count, batch, ReadGroups(tuple(sizes), together))
    shares = [cut.share(index) for index in range(slices)]
    assert sorted(np.concatenate([share.numbers for share in shares])) == list(range(count))
    for index, share in enumerate(shares):
        sequence = np.concatenate([cut.numbers(Unit(clock, index), share) for clock in range(9)])
        here = len(share.numbers)
        if not here:  # it has no place in the minibatch
            continue
        for start in range(0, len(sequence) - here + 1, here):
            assert sorted(sequence[start : start + here]) == sorted(share.numbers)


def test_a_batch_reads_few_groups() -> None:
    """100 groups of 100: with windows of 200 a slice has at most 3 open at a time, and another order in each pass."""
    cut = Minibatches(Settings(slices=4), 10_000, 400, ReadGroups((100,) * 100, 200))
    share = cut.share(1)
    clocks = [cut.numbers(Unit(clock, 1), share) for clock in range(50)]
    assert max(len(set(numbers // 100)) for numbers in clocks) <= 4
    assert not np.array_equal(np.concatenate(clocks[:25]), np.concatenate(clocks[25:]))


class Grouped:
    def __init__(self, read_groups: object) -> None:
        self.read_groups = read_groups

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> int:
        return number


def test_a_data_set_of_ones_own_may_say_its_groups() -> None:
    assert DatasetExamples(Grouped([4, 2])).read_groups == ReadGroups((4, 2), 10_000)
    for wrong in ([4, 3], [6, 0], [], "many", [None]):
        with pytest.raises(
            InputError, match=r"^data\.dataset: found read_groups .* whose sum is the 6 items$"
        ):
            _ = DatasetExamples(Grouped(wrong)).read_groups
