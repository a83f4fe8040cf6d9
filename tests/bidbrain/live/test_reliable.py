"""The reliable machines: bought first, and again when they are lost, but never for a job that ends."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import UnknownOutcomeError
from bidbrain.live.guards import Guards, spent
from bidbrain.live.job import EXIT_BUDGET
from bidbrain.live.journal import Closing, Draining, Ended, Ordered
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import ON_DEMAND, LoneJob


def lose(job: LoneJob) -> None:
    """The reliable machines die."""
    for each in list(job.cloud.running.values()):
        if each.market.zone == ON_DEMAND_ZONE:
            job.cloud.end(each.instance_id, Ending.TERMINATED)


def test_a_job_that_is_stopped_before_its_first_purchase_buys_nothing() -> None:
    job = LoneJob()
    job.service.stop("told to stop")
    job.after(0)
    job.after(5, times=3)
    assert not job.of(Ordered) and not job.cloud.count("acquire")
    job.engine.is_drained = True
    job.after(5)
    assert job.service.state.closed is not None


def test_a_reliable_machine_that_dies_while_the_job_drains_is_not_bought_again() -> None:
    job = LoneJob()
    job.after(0)
    job.service.stop("told to stop")
    job.after(5)
    lose(job)
    job.after(5, times=3)
    assert len(job.of(Ordered)) == 1
    assert job.of(Ended), "but its end is heard"


def test_an_order_under_way_is_asked_about_while_the_job_drains() -> None:
    job = LoneJob()
    job.cloud.is_answer_lost = True
    job.cloud.fails[ON_DEMAND_ZONE] = UnknownOutcomeError("answer lost")
    job.after(0)
    job.service.stop("told to stop")
    job.after(10)
    job.cloud.fails.clear()
    job.after(10)
    assert len(job.of(Ordered)) == 1
    assert job.service.state.has_reliable


def test_reliable_machines_that_are_lost_are_bought_again() -> None:
    job = LoneJob(guards=Guards(budget=3 * ON_DEMAND))
    job.after(0)
    lose(job)
    job.after(5, times=2)
    assert [each.reliable for each in job.of(Ordered)] == [True, True]
    assert job.cloud.zones() == [ON_DEMAND_ZONE]
    assert not job.of(Draining)


@pytest.mark.parametrize("hours", [1, 2, 3])
def test_a_job_without_the_money_for_others_drains_and_ends(hours: int) -> None:
    budget = hours * ON_DEMAND + ON_DEMAND // 2
    job = LoneJob(guards=Guards(budget=budget))
    job.after(0)
    for _ in range(hours):
        job.after(600, times=6)
    lose(job)
    job.after(5)
    assert len(job.of(Ordered)) == 1
    job.after(5)
    (draining,) = job.of(Draining)
    assert draining.code == EXIT_BUDGET
    job.engine.is_drained = True
    job.after(5)
    (closing,) = job.of(Closing)
    assert closing.code == EXIT_BUDGET
    assert spent(job.service.state.account) <= budget
