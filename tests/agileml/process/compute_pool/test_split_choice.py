"""Which split of a machine's cores is chosen from what its jobs took."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from agileml.config.hardware import Split
from agileml.process.compute_pool.split_choice import SETTLE, WINDOW, WORTH, SplitChoice, SplitFound

SPLITS = (Split(8, 1), Split(4, 2), Split(2, 4), Split(1, 8))


def chosen(rates: Mapping[Split, float], slow_start: float = 1.0) -> tuple[SplitFound, list[Split]]:
    """The choice where splits have these rates, and the splits in the order of their jobs."""
    choice, tried = SplitChoice(SPLITS), []
    for number in range(len(SPLITS) * (SETTLE + WINDOW)):
        tried.append(choice.split)
        is_late = number % (SETTLE + WINDOW) < SETTLE
        found = choice.computed(64, 64 / rates[choice.split] * (slow_start if is_late else 1.0))
        if found is not None:
            assert found.split == choice.split
            return found, tried
    raise AssertionError("no choice")


def test_it_stops_at_the_first_that_is_slower() -> None:
    found, tried = chosen(dict(zip(SPLITS, (100.0, 120.0, 90.0, 500.0), strict=True)), slow_start=9.0)
    assert found.split == Split(4, 2)
    assert tried == [split for split in SPLITS[:3] for _ in range(SETTLE + WINDOW)]
    assert found.reason == (
        "100 units/s with 8 processes of 1 thread, 120 units/s with 4 processes of 2 threads, "
        "90 units/s with 2 processes of 4 threads"
    )


@given(st.lists(st.floats(1.0, 1000.0), min_size=4, max_size=4))
def test_it_is_within_the_worth_of_the_best_that_was_tried_with_the_fewest_threads(
    rates: list[float],
) -> None:
    by_split = dict(zip(SPLITS, rates, strict=True))
    found, tried = chosen(by_split)
    best = max(by_split[split] for split in tried)
    assert by_split[found.split] >= (1 - WORTH) * best * (1 - 1e-9)
    fewer = [split for split in set(tried) if split.threads < found.split.threads]
    assert all(by_split[split] < (1 - WORTH) * best * (1 + 1e-9) for split in fewer)


def test_one_slow_job_decides_nothing() -> None:
    choice = SplitChoice(SPLITS[:2])
    for seconds in (1.0, 1.0, 1.0, 1.0, 1.0, 30.0):
        assert choice.computed(64, seconds) is None
    for seconds in (1.0, 1.0, 1.5, 1.5, 1.5):
        assert choice.computed(64, seconds) is None
    found = choice.computed(64, 0.1)
    assert found is not None and found.split == SPLITS[0]
