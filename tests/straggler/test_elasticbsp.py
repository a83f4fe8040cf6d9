"""ZipLine and the ElasticBSP policy against brute force."""

import heapq
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.grid_scans import full_grid_scan, grid_scan
from straggler.elasticbsp import (
    ElasticBsp,
    predicted_end_times,
    zipline,
)
from tests.thorough import examples

# The long version is slow.
each_count = pytest.mark.parametrize("cases", [1500, pytest.param(5000, marks=pytest.mark.slow)])


def every_choice(times: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Over all R^n choices of one time per worker: the greatest, the least, the sum."""
    n = len(times)
    greatest, least, total = times[0], times[0], times[0]
    for row in range(1, n):
        greatest = np.maximum.outer(greatest, times[row]).ravel()
        least = np.minimum.outer(least, times[row]).ravel()
        total = np.add.outer(total, times[row]).ravel()
    return greatest, least, total


def smallest_range(times: np.ndarray) -> tuple[int, int]:
    """(wait, barrier) by the well-known heap over n sorted lists: no code shared with ZipLine."""
    heap = [(int(row[0]), index, 0) for index, row in enumerate(times)]
    heapq.heapify(heap)
    high = max(entry[0] for entry in heap)
    best = (high - heap[0][0], high)
    while True:
        _, row, column = heap[0]
        if column + 1 == times.shape[1]:
            return best
        value = int(times[row, column + 1])
        heapq.heapreplace(heap, (value, row, column + 1))
        high = max(high, value)
        best = min(best, (high - heap[0][0], high))


def random_times(rng: np.random.Generator) -> np.ndarray:
    """Small integers often, so that ties are common; large ones too; equal times inside a row as well."""
    n, lookahead = rng.integers(1, 7, size=2)
    top = int(rng.choice([4, 12, 50, 10**6, 10**15]))
    return np.sort(rng.integers(1, top, size=(n, lookahead)), axis=1)


@each_count
def test_zipline_is_optimal_ties_included(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(7)
    ties = 0
    for _ in range(cases):
        times = random_times(rng)
        found = zipline(times)
        greatest, least, _ = every_choice(times)
        wait = int((greatest - least).min())
        barriers = greatest[greatest - least == wait]
        ties += len(np.unique(barriers)) > 1
        assert (found.wait_ns, found.barrier_ns) == (wait, int(barriers.min()))
        assert (found.wait_ns, found.barrier_ns) == smallest_range(times)
        for row, index in zip(times, found.indices, strict=True):
            assert row[index] <= found.barrier_ns
            assert index + 1 == len(row) or row[index + 1] > found.barrier_ns
    with capsys.disabled():
        print(f"\nzipline: {cases} cases equal brute force, {ties} of them with tied barriers")
    assert ties > 100


@pytest.mark.parametrize("cases", [200, pytest.param(600, marks=pytest.mark.slow)])
def test_rate_minimises_the_stated_loss(cases: int) -> None:
    rng = np.random.default_rng(11)
    for case in range(cases):
        times = random_times(rng)
        start = int(times.min()) - int(rng.integers(1, 30))
        staleness = float(rng.choice([0.0, 0.001, 0.01, 0.3]))
        found = zipline(times, "rate", start, staleness)
        greatest, _, total = every_choice(times)
        n = len(times)
        first = int(times[:, 0].max()) - start
        pairs = {(int(t), n * int(t) - int(s)) for t, s in zip(greatest, total, strict=True)}
        least_idle = {t: min(idle for at, idle in pairs if at == t) for t in {t for t, _ in pairs}}
        _, barrier = min(
            (Fraction(idle, n * (t - start)) + Fraction(staleness) * Fraction(t - start, first), t)
            for t, idle in least_idle.items()
        )
        assert found.barrier_ns == barrier, case


def test_the_paper_objective_grows_with_the_lookahead_and_rate_does_not() -> None:
    barriers = {
        objective: [
            zipline(predicted_end_times(0, [100, 70, 53, 41], lookahead), objective).barrier_ns
            for lookahead in (15, 30, 240)
        ]
        for objective in ("wait", "rate")
    }
    assert barriers == {"wait": [212, 910, 9805], "rate": [212, 212, 212]}


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32), st.integers(1, 1000))
def test_zipline_is_independent_of_origin_unit_and_order(
    n: int, lookahead: int, seed: int, scale: int
) -> None:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.integers(1, 9, size=(n, lookahead)), axis=1)
    plain = zipline(times)
    moved = zipline(times * scale + 17)
    assert (moved.wait_ns, moved.barrier_ns) == (plain.wait_ns * scale, plain.barrier_ns * scale + 17)
    order = rng.permutation(n)
    shuffled = zipline(times[order])
    assert shuffled.barrier_ns == plain.barrier_ns
    assert (shuffled.indices == plain.indices[order]).all()


def test_grid_scans_are_heuristics_and_never_beat_zipline() -> None:
    rng = np.random.default_rng(3)
    worse = [0, 0]
    for _ in range(300):
        times = np.cumsum(rng.integers(1, 40, size=(rng.integers(2, 8), rng.integers(2, 9))), axis=1)
        best = zipline(times).wait_ns
        for which, scan in enumerate((grid_scan, full_grid_scan)):
            found = scan(times)
            chosen = times[np.arange(len(times)), found.indices]
            assert found.wait_ns == chosen.max() - chosen.min()
            assert found.barrier_ns == chosen.max()
            assert found.wait_ns >= best
            worse[which] += found.wait_ns > best
    assert worse[0] > worse[1] > 0


def test_grid_scan_reads_as_printed() -> None:
    # Base: worker 1 (first time 3); its sets are {3, 5} and {6, 5}, of width 2 and 1.
    found = grid_scan([[5, 10], [3, 6]])
    assert (list(found.indices), found.barrier_ns, found.wait_ns) == ([0, 1], 6, 1)


@pytest.mark.parametrize(
    ("times", "arguments", "sentence"),
    [
        ([[3, 2]], {}, "row 0 of end_times"),
        ([], {}, "shape"),
        (np.zeros((0, 3), dtype=int), {}, r"shape \(0, 3\)"),
        (np.zeros((3, 0), dtype=int), {}, r"shape \(3, 0\)"),
        ([1, 2], {}, r"shape \(2,\)"),
        ([[1.0, 2.0]], {}, "dtype float64"),
        ([[0, 2**62]], {}, "span"),
        ([[1, 2]], {"objective": "speed"}, "objective is 'speed'"),
        ([[1, 2]], {"objective": "rate", "start_ns": 1}, "start_ns is 1"),
        ([[1, 2]], {"objective": "rate", "staleness": -1.0}, "staleness is -1"),
        ([[1, 2]], {"objective": "rate", "staleness": float("nan")}, "staleness is nan"),
    ],
)
def test_bad_input_is_named(times: object, arguments: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        zipline(times, **arguments)


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(1, 40))
def test_policy_keeps_the_bound_and_says_why(intervals: list[int], lookahead: int) -> None:
    policy = ElasticBsp(lookahead)
    workers = tuple(range(len(intervals)))
    first = policy.plan(0, workers)
    assert first.units == (1,) * len(intervals)
    assert "not measured" in first.reason
    for worker, interval in enumerate(intervals):
        policy.observe(worker, interval)
    planned = policy.plan(10**12, workers)
    assert all(1 <= units <= lookahead for units in planned.units)
    ends = [10**12 + units * interval for units, interval in zip(planned.units, intervals, strict=True)]
    assert max(ends) == planned.barrier_ns
    for left in range(1, sum(planned.units) + 1):
        rest = policy.plan(0, workers, most=left)
        assert sum(rest.units) == left
        assert max(rest.units) <= lookahead
    assert policy.plan(0, workers, most=0).units == (0,) * len(intervals)
    last = policy.plan(0, workers, most=len(intervals))
    assert sum(last.units) == min(len(intervals), sum(planned.units))
    policy.forget(0)
    assert policy.plan(0, workers).units == (1,) * len(intervals)
