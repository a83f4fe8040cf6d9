"""Start-up and rate of pulls, and what forward computes with each partition, from what a machine measured."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.node.overlap.pull_times import PullTimes, fitted, forward_seconds

MB = 1 << 20


@settings(max_examples=30)
@given(
    st.floats(0, 0.1),
    st.floats(1e-10, 1e-6),
    st.lists(st.integers(1, 100 * MB), min_size=2, max_size=6, unique=True),
)
def test_pulls_that_take_a_start_and_a_time_a_byte_show_both(
    startup_s: float, byte_s: float, sizes: list[int]
) -> None:
    found_startup_s, found_byte_s = fitted({size: [startup_s + size * byte_s] * 3 for size in sizes})
    longest_s = startup_s + max(sizes) * byte_s
    for size in sizes:
        assert found_startup_s + size * found_byte_s == pytest.approx(
            startup_s + size * byte_s, abs=1e-6 * longest_s
        )


@settings(max_examples=30)
@given(
    st.dictionaries(st.integers(1, 100 * MB), st.lists(st.floats(0, 10), min_size=1, max_size=4), max_size=5)
)
def test_no_measurement_gives_a_time_below_0(seconds: dict[int, list[float]]) -> None:
    startup_s, byte_s = fitted(seconds)
    assert startup_s >= 0 and byte_s >= 0


def test_one_late_answer_is_no_rule() -> None:
    assert fitted({MB: [1.0, 1.0, 9.0], 2 * MB: [2.0, 2.0, 2.0]}) == pytest.approx((0.0, 1 / MB))


def test_one_size_is_all_rate() -> None:
    assert fitted({MB: [0.5, 0.5]}) == (0.0, 0.5 / MB)


def test_a_partition_that_is_needed_before_earlier_ones_waits_for_them() -> None:
    assert forward_seconds([(0.0, 0.1, 0.4, 0.5)]) == pytest.approx([0.1, 0.3, 0.1, 0.0])
    assert forward_seconds([(0.0, 0.4, 0.1, 0.5)]) == pytest.approx([0.1, 0.0, 0.4, 0.0])
    assert forward_seconds([(0.5, 0.5, 0.0)]) == [0.0, 0.0, 0.0]


def test_what_was_never_waited_for_counts_as_no_computing() -> None:
    times = PullTimes()
    times.pulled(0, 5.0)  # from itself
    assert times.of_pulls() == (0.0, 0.0)
    assert times.of_forward(3) == [0.0, 0.0, 0.0]
