"""Batch sizes against exact rational search; weighted aggregation."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.lbbsp.sizes import (
    allocate_cpu,
    cpu_batch_sizes,
    gpu_batch_sizes,
    resolve,
    weighted_mean,
)
from tests.thorough import examples

# The long version is slow.
each_count = pytest.mark.parametrize("cases", [1200, pytest.param(5000, marks=pytest.mark.slow)])


def least_time(times: list[list[Fraction]], total: int, minimum: int) -> Fraction:
    """Least T by which `total` samples can be done, times[i][k] being worker i's time for k samples."""
    floor = max(row[minimum] for row in times)
    for candidate in sorted({time for row in times for time in row}):
        if candidate >= floor:
            room = sum(max(k for k, time in enumerate(row) if time <= candidate) for row in times)
            if room >= total:
                return candidate
    raise AssertionError("infeasible")


def some_speed(rng: np.random.Generator) -> float:
    """Round numbers often (ties), else any float, few close to each other to the last bit."""
    kind = rng.integers(4)
    if kind == 0:
        return float(rng.integers(1, 6))
    if kind == 1:
        return float(np.nextafter(float(rng.integers(1, 6)), float(rng.choice([0, 9]))))
    return float(rng.uniform(0.1, 10) if kind == 2 else 0.1 * rng.integers(1, 30))


@each_count
def test_cpu_sizes_are_optimal(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(5)
    rounded_worse = 0
    for _ in range(cases):
        n = int(rng.integers(1, 7))
        speeds = [some_speed(rng) for _ in range(n)]
        minimum = int(rng.integers(0, 3))
        total = int(rng.integers(max(1, n * minimum), n * minimum + 25))
        sizes = cpu_batch_sizes(speeds, total, minimum)
        exact = [Fraction(speed) for speed in speeds]
        times = [[k / speed for k in range(total + 1)] for speed in exact]
        assert sizes.sum() == total
        assert (sizes >= minimum).all()
        longest = max(row[size] for row, size in zip(times, sizes, strict=True))
        assert longest == least_time(times, total, minimum)
        naive = largest_remainder(exact, total)
        if min(naive) >= minimum:
            rounded_worse += max(row[size] for row, size in zip(times, naive, strict=True)) > longest
    with capsys.disabled():
        print(
            f"\ncpu_batch_sizes: {cases} cases equal exact search; largest remainder worse in {rounded_worse}"
        )
    assert rounded_worse > 100


def largest_remainder(speeds: list[Fraction], total: int) -> list[int]:
    ideal = [total * speed / sum(speeds) for speed in speeds]
    sizes = [int(share) for share in ideal]
    by_remainder = sorted(range(len(speeds)), key=lambda i: sizes[i] - ideal[i])
    for i in by_remainder[: total - sum(sizes)]:
        sizes[i] += 1
    return sizes


def test_cpu_sizes_with_a_maximum_are_optimal() -> None:
    rng = np.random.default_rng(6)
    for _ in range(400):
        n, maximum = int(rng.integers(1, 6)), int(rng.integers(1, 8))
        speeds = [some_speed(rng) * float(rng.choice([1, 20])) for _ in range(n)]
        total = int(rng.integers(1, n * maximum + 1))
        sizes = cpu_batch_sizes(speeds, total, 0, maximum=maximum)
        times = [[k / Fraction(speed) for k in range(maximum + 1)] for speed in speeds]
        assert sizes.sum() == total
        assert (sizes <= maximum).all()
        longest = max(row[size] for row, size in zip(times, sizes, strict=True))
        assert longest == least_time(times, total, 0)
    with pytest.raises(ValueError, match="maximum is 2; expected"):
        cpu_batch_sizes([1.0, 2.0], 5, maximum=2)


def test_workers_that_stand_still_give_no_room() -> None:
    """They got samples that they never end with, or the others more than the maximum."""
    for speeds in ([3.0, 0.0], [0.0, 1e30]):
        with pytest.raises(ValueError, match="expected room for 40 with the 1 of 2 workers that move"):
            cpu_batch_sizes(speeds, 40, 0, maximum=20)
    state = allocate_cpu([1.0, 1.0, 0.3], 19, 0, maximum=7)
    before = state.sizes.tolist()
    with pytest.raises(ValueError, match="the others that move have room for 14 units; expected 19"):
        resolve(state, 1, 0.0)
    assert resolve(state, 1, 1.0).tolist() == before
    state = allocate_cpu([1.0, 1.0, 0.0], 14, 0, maximum=7)
    assert resolve(state, 2, 0.0).tolist() == [7, 7, 0]


@each_count
def test_gpu_sizes_are_optimal(cases: int, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(6)
    unsaturated = 0
    for _ in range(cases):
        n = int(rng.integers(1, 6))
        minimum = int(rng.integers(0, 3))
        unit = int(rng.choice([1, 1, 2, 3]))
        slope = [float(rng.choice([0.0, 0.1, 0.25, 1.0, rng.uniform(0, 2)])) for _ in range(n)]
        intercept = [float(rng.choice([0.0, 0.1, 3.0, rng.uniform(0, 5)])) for _ in range(n)]
        comm = [float(rng.choice([0.0, 0.3, 2.0, rng.uniform(0, 5)])) for _ in range(n)]
        least = -(-minimum // unit)
        limit = rng.integers(max(unit, least * unit), 24, size=n)
        knee = np.array([rng.integers(0, top + 1) for top in limit])
        most = int((limit // unit).sum())
        units = int(rng.integers(max(1, n * least), most + 1))
        sizes = gpu_batch_sizes(slope, intercept, comm, knee, limit, units * unit, minimum, unit=unit)
        times = [
            [Fraction(0)]
            + [
                Fraction(slope[i]) * max(k * unit, int(knee[i])) + Fraction(intercept[i]) + Fraction(comm[i])
                for k in range(1, int(limit[i]) // unit + 1)
            ]
            for i in range(n)
        ]
        assert sizes.sum() == units * unit
        assert ((sizes >= minimum) & (sizes <= limit) & (sizes % unit == 0)).all()
        longest = max(row[size // unit] for row, size in zip(times, sizes, strict=True))
        assert longest == least_time(times, units, least)
        if np.maximum(knee, minimum).sum() > units * unit:
            unsaturated += 1
        elif minimum and unit == 1:  # equation 5: x_s <= x
            assert (sizes >= knee).all()
    with capsys.disabled():
        print(f"gpu_batch_sizes: {cases} cases equal exact search, {unsaturated} below saturation")
    assert unsaturated > cases / 10


def test_below_saturation_sizes_follow_the_saturation_points() -> None:
    sizes = gpu_batch_sizes([0.1] * 3, [0.0] * 3, [0.0] * 3, [100, 100, 200], [400] * 3, 200)
    assert list(sizes) == [50, 50, 100]


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(st.integers(1, 40), st.integers(0, 2), st.integers(0, 2**32))
def test_resolve_equals_a_full_solve(n: int, minimum: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = np.array([some_speed(rng) for _ in range(n)])
    total = max(1, n * minimum) + int(rng.integers(0, 60 * n))
    state = allocate_cpu(speeds, total, minimum)
    for _ in range(12):
        worker = int(rng.integers(n))
        speeds[worker] = some_speed(rng) * float(rng.choice([1, 1, 1, 1000, 0.001]))
        if minimum == 0 and n > 1 and rng.random() < 0.1:
            speeds[worker] = 0.0
        if speeds.any():
            resolve(state, worker, float(speeds[worker]))
            assert (state.sizes == cpu_batch_sizes(speeds, total, minimum)).all()
        else:
            speeds[worker] = 1.0
            resolve(state, worker, 1.0)


def test_batches_near_the_limit_do_not_overflow() -> None:
    total = 2**52
    for speeds in (np.ones(3000), np.arange(1.0, 3001.0)):
        sizes = cpu_batch_sizes(speeds, total)
        assert sizes.sum() == total
        exact = [Fraction(total) * Fraction(v) / Fraction(speeds.sum()) for v in speeds]
        assert all(abs(size - share) < 2 for size, share in zip(sizes.tolist(), exact, strict=True))


def test_a_big_case_is_where_no_move_helps() -> None:
    rng = np.random.default_rng(1)
    speeds = rng.uniform(50, 150, 5000)
    sizes = cpu_batch_sizes(speeds, 5000 * 128)
    last = max(Fraction(int(k)) / Fraction(v) for k, v in zip(sizes, speeds, strict=True))
    assert all(Fraction(int(k) + 1) / Fraction(v) >= last for k, v in zip(sizes, speeds, strict=True))
    assert sizes.sum() == 5000 * 128


def test_weighted_mean_is_the_gradient_of_the_whole_batch_and_the_plain_mean_is_biased() -> None:
    rng = np.random.default_rng(2)
    sizes = np.array([1, 7, 0, 40])
    samples = rng.normal(size=(48, 5)) + np.arange(48)[:, None]
    ends = np.cumsum(sizes)
    ranges = zip(ends - sizes, ends, strict=True)
    means = np.array([samples[a:b].mean(axis=0) if b > a else np.full(5, np.nan) for a, b in ranges])
    weighted = weighted_mean(means, sizes)
    np.testing.assert_allclose(weighted, samples.mean(axis=0), rtol=1e-12)
    busy = sizes > 0
    assert np.abs(means[busy].mean(axis=0) - samples.mean(axis=0)).max() > 1  # equation 7
    pushed = sum(4 * sizes[i] / 48 * means[i] for i in range(4) if busy[i]) / 4
    np.testing.assert_allclose(pushed, weighted, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([], 5), "samples_per_s has shape"),
        (([1.0, np.nan], 5), r"samples_per_s\[1\] .* is nan"),
        (([1.0, -2.0], 5), r"samples_per_s\[1\] .* is -2"),
        (([1.0, np.inf], 5), "is inf"),
        (([1.0, 0.0], 5), "expected a positive"),
        (([0.0, 0.0], 5, 0), "0 everywhere"),
        (([1.0] * 3, 2), "1 samples short"),
        (([1.0], 0), "global_batch is 0"),
        (([1.0], 5, -1), "minimum is -1"),
    ],
)
def test_bad_cpu_input_is_named(arguments: tuple, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cpu_batch_sizes(*arguments)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"global_batch": 900}, "100 samples short"),
        ({"saturation": [500, 50]}, r"saturation\[0\] is 500; expected at most memory_limit\[0\], 400"),
        ({"slope_s": [0.1, np.nan]}, r"slope_s\[1\] is nan"),
        ({"comm_s": [0.1]}, "comm_s has shape"),
        ({"memory_limit": [400, 0], "saturation": [50, 0]}, r"memory_limit\[1\] is 0"),
        ({"saturation": [1.5, 2]}, "dtype float64"),
        ({"global_batch": 1}, "short"),
    ],
)
def test_bad_gpu_input_is_named(change: dict, sentence: str) -> None:
    good = {
        "slope_s": [0.1, 0.2],
        "intercept_s": [0.0, 0.0],
        "comm_s": [0.0, 0.0],
        "saturation": [50, 50],
        "memory_limit": [400, 400],
        "global_batch": 300,
    }
    with pytest.raises(ValueError, match=sentence):
        gpu_batch_sizes(**{**good, **change})
