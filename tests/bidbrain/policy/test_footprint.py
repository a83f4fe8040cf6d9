"""Equations 4.1 - 4.4 with figures worked by hand, and the toy of figure 4.5."""

import pytest

from bidbrain.policy.footprint import (
    allocation_work,
    cost_per_work,
    eviction_free,
    expected_charge,
    expected_work,
    renewal_index,
    scaling_efficiency,
    useful_time,
    useful_until,
)


def test_4_1_an_eviction_costs_nothing() -> None:
    assert expected_charge(0.25, 0.2, 10, 0.5) == pytest.approx(0.75 * 0.2 * 10 * 0.5)
    assert expected_charge(1.0, 0.2, 10, 0.5) == 0.0


def test_4_2_useful_time() -> None:
    free = eviction_free([0.5, 0.2])
    assert free == pytest.approx(0.4)
    omega = useful_until(0.5, 1.0, 0.25)
    assert omega == pytest.approx(0.625)
    assert useful_time(omega, free, 0.1, 0.02) == pytest.approx(0.625 - 0.6 * 0.1 - 0.02)
    assert useful_time(0.01, 0.0, 0.5, 0.0) == 0.0


def test_4_3_and_4_4() -> None:
    works = [allocation_work(10, 0.9, 4), allocation_work(5, 0.5, 8)]
    assert expected_work(0.8, works) == pytest.approx(0.8 * (36 + 20))
    assert cost_per_work(2.0, 0.0) == float("inf")
    assert cost_per_work(2.0, 8.0) == 0.25


def test_phi_counts_beyond_the_job_only() -> None:
    assert scaling_efficiency(512, 512, 0.5) == 1.0
    assert 768 * scaling_efficiency(768, 512, 0.5) == pytest.approx(512 + 128)
    assert scaling_efficiency(768, 512, 1.0) == 1.0


def test_the_toy_of_figure_4_5() -> None:
    """A second spot allocation raises the spend and lowers the cost per work: the on-demand machine is shared."""
    on_demand, spot, second = 0.4, expected_charge(0, 0.1, 4, 1), expected_charge(0, 0.12, 4, 1)
    work = allocation_work(4, 1.0, 4)
    one = cost_per_work(on_demand + spot, expected_work(1.0, [work]))
    two = cost_per_work(on_demand + spot + second, expected_work(1.0, [work, work]))
    assert on_demand + spot + second > on_demand + spot
    assert two < one


def test_renewal_index() -> None:
    # Survives with 3/4, pays 8 for the hour, 0.4 of reliable machines, held 0.9 h, useful 0.85 h, lambda 0.1 h.
    assert renewal_index(0.75, 8.0, 0.4, 0.9, 0.85, 0.1) == pytest.approx((6.0 + 0.36) / (0.85 - 0.025))
    assert renewal_index(0.0, 8.0, 0.4, 0.1, 0.05, 0.1) == float("inf")
