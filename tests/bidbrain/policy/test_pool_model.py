"""E of a footprint of pools, against its formula written out, and the greedy fill against trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.policy.pool_model import Choices, Footprint, Terms
from bidbrain.policy.pool_search import fill
from tests.bidbrain.policy import plain_pool_model as plain
from tests.thorough import examples

POOLS = st.lists(
    st.tuples(st.floats(0.05, 1.0), st.floats(0.5, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=4
)


def choices_of(pools, most: float = 99.0) -> Choices:
    n = len(pools)
    price, nu, loss = (np.array([pool[i] for pool in pools]) for i in range(3))
    return Choices(np.arange(n), np.full(n, most), price, nu, np.ones(n), loss)


def written_out(terms: Terms, pools, counts) -> float:
    """The formula of the module's docstring, pool by pool."""

    def work(nu: float, size: float) -> float:
        if size <= terms.job_vcpus or size == 0:
            return nu
        return nu * (terms.job_vcpus + terms.phi * (size - terms.job_vcpus)) / size

    nu, size = sum(k * p[1] for p, k in zip(pools, counts, strict=True)), float(sum(counts))
    cost, events, taken = terms.fixed, 0.0, 0.0
    for (price, _, loss), k in zip(pools, counts, strict=True):
        cost += k * price
        at_once = 1 + terms.correlation * max(0, k - 1)
        rate = k * loss / at_once
        events += rate
    for (_, worth, loss), k in zip(pools, counts, strict=True):
        if k:
            at_once = 1 + terms.correlation * (k - 1)
            gone_nu = min(1.0, at_once / k) * k * worth
            left = nu - gone_nu
            taken += k * loss / at_once * (work(nu, size) - work(left, size * left / nu))
    useful = work(nu, size) * (1 - min(0.95, terms.lambda_h * events)) - terms.boot_h * taken
    return cost / useful if useful > 0 else float("inf")


@given(POOLS, st.lists(st.integers(0, 12), min_size=4, max_size=4), st.floats(0.1, 1.0), st.floats(0, 1))
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_e_is_its_formula(pools, counts, phi, correlation) -> None:
    counts = counts[: len(pools)]
    terms = Terms(8, phi, 0.05, 1 / 60, correlation, fixed=0.4)
    found = Footprint(terms, choices_of(pools), np.array(counts, np.float64)).value
    expected = written_out(terms, pools, counts)
    assert found == pytest.approx(expected) or (np.isinf(found) and np.isinf(expected))


@given(
    POOLS,
    st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.integers(1, 5),
    st.floats(0, 1),
    st.floats(0.1, 1),
)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_more_of_one_choice_is_the_footprint_with_more(pools, counts, more, correlation, phi) -> None:
    counts = np.array(counts[: len(pools)], np.float64)
    terms, choices = Terms(8, phi, 0.05, 1 / 60, correlation, fixed=0.4), choices_of(pools)
    values = Footprint(terms, choices, counts).values_with(np.full(len(pools), float(more)))
    for i in range(len(pools)):
        then = counts.copy()
        then[i] += more
        expected = Footprint(terms, choices, then).value
        assert values[i] == pytest.approx(expected) or np.isinf(expected)


@given(POOLS, st.floats(0.2, 1.0), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_the_fill_is_nearly_the_best_of_all_footprints(pools, phi, correlation) -> None:
    terms, choices = Terms(4, phi, 0.05, 1 / 60, correlation, fixed=0.3), choices_of(pools)
    footprint = Footprint(terms, choices)
    fill(footprint, 4, 6, 1.0, 0.0)
    best = min(
        Footprint(terms, choices, np.array(counts, np.float64)).value
        for counts in itertools.product(range(7), repeat=len(pools))
        if 4 <= sum(counts) <= 6
    )
    assert footprint.value <= 1.05 * best
    assert footprint.value == pytest.approx(Footprint(terms, choices, footprint.counts).value)


def test_spreading_pays_where_a_pool_goes_as_a_whole_and_work_beyond_the_size_is_worth_less() -> None:
    two = [(0.3, 1.0, 0.5), (0.3, 1.0, 0.5)]
    terms = Terms(8, 0.3, 0.2, 0.0, 1.0)
    spread = Footprint(terms, choices_of(two), np.array([8.0, 8.0])).value
    assert spread < Footprint(terms, choices_of(two), np.array([16.0, 0.0])).value
    footprint = Footprint(terms, choices_of(two))
    fill(footprint, 16, 16, 1.0, 0.0)
    assert sorted(footprint.counts) == [8.0, 8.0]


def test_where_every_event_stops_the_job_one_pool_is_better_than_two() -> None:
    two = [(0.3, 1.0, 0.5), (0.3, 1.0, 0.5)]
    footprint = Footprint(Terms(8, 1.0, 0.05, 1 / 60, 1.0), choices_of(two))
    fill(footprint, 8, 8, 1.0, 0.0)
    assert sorted(footprint.counts) == [0.0, 8.0]


def test_reliable_machines_make_more_spot_cheaper_per_work_up_to_what_scaling_is_worth() -> None:
    for phi, most in ((1.0, 12.0), (0.2, 8.0)):
        footprint = Footprint(Terms(8, phi, 0.05, 0.0, 0.0, fixed=2.0), choices_of([(0.3, 1.0, 0.0)]))
        fill(footprint, 8, 12, 1.0, 0.0)
        assert footprint.vcpus == most


KINDS = st.lists(
    st.tuples(
        *(st.floats(0.05, 1.0), st.floats(0.5, 2.0), st.floats(0.0, 1.0)),
        *(st.sampled_from([1.0, 2.0, 4.0]), st.floats(0.0, 12.0), st.booleans()),
    ),
    min_size=1,
    max_size=6,
)


@given(
    KINDS,
    st.floats(0.1, 1.0),
    st.floats(0, 1),
    st.floats(0, 2),
    st.sampled_from([8, 12, 16]),
    st.sampled_from([0.0, 0.4]),
)
@settings(max_examples=examples(150), deadline=None, derandomize=True)
def test_the_compiled_search_finds_what_the_plain_one_finds(
    kinds, phi, correlation, fixed, cap, worth
) -> None:
    """Each pool may have machines that are held already as a second choice. Not one bit may differ."""
    rows = []
    for pool, (price, nu, loss, vcpus, held, is_held) in enumerate(kinds):
        if is_held:
            rows.append((pool, held, price, nu, vcpus, loss * 0.5))
        rows.append((pool, np.floor(cap / vcpus), price * 1.1, nu, vcpus, loss))
    table = np.array(rows, np.float64)
    choices = Choices(table[:, 0].astype(np.int64), *(table[:, i].copy() for i in range(1, 6)))
    terms = Terms(8, phi, 0.05, 1 / 60, correlation, fixed=fixed)
    compiled, expected = Footprint(terms, choices), plain.Footprint(terms, choices)
    fill(compiled, 8, cap, max(1.0, cap / 12), worth)
    plain.fill(expected, 8, cap, max(1.0, cap / 12), worth)
    assert compiled.counts.tolist() == expected.counts.tolist()
    assert (compiled.value, compiled.vcpus, compiled.cost) == (expected.value, expected.vcpus, expected.cost)
