"""Machines that end by themselves soon after their launch: after the second wave their market is left alone."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.journal import Ordered, Troubled
from bidbrain.live.state import JobState
from bidbrain.live.troubles import EARLY_S, MOST_PAUSE_S, PAUSE_S, Failures
from bidbrain.policy.base import Decision, MarketView, Request
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.policy.today import Elastic
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import BEGIN_S, LARGE, ON_DEMAND, SMALL, LoneJob


def fail(job: LoneJob, *markets: object) -> int:
    """Machines of these markets end by themselves; how many."""
    failing = [each.instance_id for each in job.cloud.running.values() if each.market in markets]
    for each in failing:
        job.cloud.end(each, Ending.TERMINATED)
    return len(failing)


@pytest.fixture(params=[Elastic, ExpectedCost])
def job(request: pytest.FixtureRequest) -> LoneJob:
    job = LoneJob()
    job.with_policy(request.param(job.setting, BEGIN_S).decide)
    job.after(0)
    return job


def test_a_market_whose_machines_fail_is_left_alone_and_others_are_bought(job: LoneJob) -> None:
    waves = 0
    for _ in range(20):
        job.after(30)
        waves += fail(job, SMALL) > 0
    assert waves == 2
    assert job.cloud.zones() == [ON_DEMAND_ZONE] + [LARGE.zone] * 4
    assert {each.market for each in job.cloud.running.values()} == {LARGE, job.setting.reliable.market}


def test_where_all_markets_fail_machines_are_bought_now_and_then(job: LoneJob) -> None:
    """Each is paid for a minute at least; before, hundreds were bought in an hour."""
    for _ in range(1440):
        job.after(5)
        fail(job, SMALL, LARGE)
    spot = [each for each in job.of(Ordered) if not each.reliable]
    assert 4 <= len(spot) <= 12
    said = job.of(Troubled)[0].sentences[0]
    assert said.startswith(
        f"machines of {SMALL} end by themselves soon after their launch, 2 times in a row: none"
    )
    assert JobState(job.setting, job.log.records).failures == job.service.state.failures
    job.after(MOST_PAUSE_S + 300)
    job.after(5)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] + [SMALL.zone] * 4, "and it is tried again"


def test_machines_that_have_run_for_long_do_not_excuse_new_ones_that_fail() -> None:
    """As after an `up` with a broken image: those of before pass an hour now and then, in the same market."""

    def two(now_s: int, view: MarketView) -> Decision:
        missing = 2 - len(view.holdings)
        wanted = (Request(SMALL, 1, ON_DEMAND, missing),) if missing else ()
        return Decision(wanted, "two", now_s + 300)

    job = LoneJob(two)
    job.after(0)
    old = next(each.instance_id for each in job.cloud.running.values() if each.market == SMALL)
    for _ in range(24 * 12):
        job.after(300)
        for each in list(job.cloud.running.values()):
            if each.market == SMALL and each.instance_id != old and job.at_s >= each.launched_s + 1800:
                job.cloud.end(each.instance_id, Ending.TERMINATED)
    spot = [each for each in job.of(Ordered) if not each.reliable]
    assert len(spot) <= 20, "a machine every hour and a half"
    assert old in job.cloud.running


def test_reliable_machines_that_fail_are_not_bought_without_end() -> None:
    job = LoneJob()
    job.after(0)
    for _ in range(720):
        fail(job, job.setting.reliable.market)
        job.after(5)
    assert len(job.of(Ordered)) <= 6
    job.after(MOST_PAUSE_S)
    assert job.cloud.zones() == [ON_DEMAND_ZONE]


def test_what_the_market_takes_is_no_failure(job: LoneJob) -> None:
    for _ in range(5):
        for each in [each.instance_id for each in job.cloud.running.values() if each.market == SMALL]:
            job.cloud.end(each, Ending.EVICTED)
        job.after(60, times=2)
    assert job.service.state.account.evictions >= 4
    assert not job.service.state.failures.left_alone(job.at_s)


def test_pauses_grow_and_end_with_a_machine_that_lasts() -> None:
    failures, at_s = Failures(), 0
    for pause_s in (0, PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, MOST_PAUSE_S, MOST_PAUSE_S):
        for seconds in (60, 61, 90):  # three machines of one purchase
            failures.ended(SMALL, at_s, at_s + seconds)
        assert failures.until_s(SMALL) == (at_s + 60 + pause_s)
        at_s = failures.until_s(SMALL) + 1
    failures.ended(SMALL, at_s, at_s + EARLY_S)
    assert failures.until_s(SMALL) == 0 and not failures.left_alone(at_s)
