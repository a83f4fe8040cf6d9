"""Machines that a decision gives back for on-demand machines stay until these are bought."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidbrain.billing import Ending
from bidbrain.history.prices import History
from bidbrain.live.cloud import QuotaError, UnknownOutcomeError
from bidbrain.live.guards import Guards, Replacing
from bidbrain.live.job import JobPlan
from bidbrain.live.journal import Answered, Ended, Ordered, Passed, Skip
from bidbrain.live.state import JobState
from bidbrain.policy.base import Decision, GiveBack, MarketView, Request, RequestOnDemand
from bidbrain.policy.expected_cost import ExpectedCost
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, SMALL, LoneJob, lone_setting

NO_QUOTA = QuotaError("AWS answers VcpuLimitExceeded")
NO_ANSWER = UnknownOutcomeError("AWS answers RequestLimitExceeded")


def spot_then_on_demand(now_s: int, view: MarketView) -> Decision:
    """Four spot machines; once they are held, four on demand instead of them."""
    spot = [each for each in view.holdings if each.market.zone != ON_DEMAND_ZONE]
    bought = sum(each.vcpus for each in view.holdings) - sum(each.vcpus for each in spot)
    if not view.holdings:
        return Decision((Request(SMALL, 4, ON_DEMAND, 1),), "fill", now_s + 300)
    short = [RequestOnDemand("c5.xlarge", 4 - bought)] if bought < 4 else []
    return Decision((*short, *(GiveBack(each.number) for each in spot)), "on demand alone", now_s + 300)


def spot_job(guards: Guards | None = None) -> LoneJob:
    job = LoneJob(spot_then_on_demand, guards)
    job.after(0)
    assert job.cloud.zones() == [ON_DEMAND_ZONE, *["us-east-1a"] * 4]
    return job


def given_back(job: LoneJob) -> int:
    return sum(isinstance(each, Ended) and each.ending is Ending.TERMINATED for each in job.log.records)


@pytest.mark.parametrize("error", [NO_QUOTA, NO_ANSWER])
def test_nothing_is_given_back_while_its_replacement_is_not_bought(error: QuotaError) -> None:
    job = spot_job()
    job.cloud.fails[ON_DEMAND_ZONE] = error
    job.after(300)
    job.after(10, times=5)
    assert job.cloud.zones() == [ON_DEMAND_ZONE, *["us-east-1a"] * 4]
    assert not given_back(job)
    skipped = [each.skip for each in job.of(Passed)]
    assert skipped == ([Skip.NOT_REPLACED] * 4 if error is NO_QUOTA else [])
    assert "its replacement was not bought" in "".join(each.why for each in job.of(Passed)) or not skipped
    again = JobState(job.setting, job.log.records)
    assert again.replacing == job.service.state.replacing
    job.cloud.fails.clear()
    job.after(300)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 5


def test_as_much_is_given_back_as_was_bought() -> None:
    job = spot_job()
    job.cloud.most[ON_DEMAND_ZONE] = 3
    job.after(300)
    assert job.cloud.zones() == [*[ON_DEMAND_ZONE] * 4, "us-east-1a"]
    job.after(300)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 5


def test_a_service_that_dies_while_the_order_has_no_answer_still_keeps_the_machines() -> None:
    job = spot_job()
    job.cloud.fails[ON_DEMAND_ZONE] = NO_ANSWER
    job.after(300)
    job.restarted()
    job.cloud.fails[ON_DEMAND_ZONE] = NO_QUOTA
    job.after(10)
    assert [each.instances for each in job.of(Answered)][-1] == ()
    assert not given_back(job)


def test_machines_go_one_for_one_where_the_number_of_machines_is_limited() -> None:
    job = spot_job(Guards(max_machines=7))
    job.after(300)
    assert job.cloud.zones() == [*[ON_DEMAND_ZONE] * 3, *["us-east-1a"] * 2]
    job.after(300)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 5
    assert [each.vcpus for each in job.of(Ordered)] == [1, 4, 2, 2]


def test_the_budget_pays_no_hour_of_what_is_about_to_be_given_back() -> None:
    """What was spent, and all on-demand machines for an hour: that fits. The spot machines beside them would not."""
    job = spot_job(Guards(budget=5 * ON_DEMAND + 60_000))
    job.after(300)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 5


def test_expected_cost_keeps_its_spot_machines_near_the_deadline_without_a_quota() -> None:
    setting = replace(lone_setting(deadline=1.5), history=History({}, BEGIN_S))
    job = LoneJob(setting=setting)
    what = ("job", "expected_cost", setting, ExpectedCost(setting, BEGIN_S), BEGIN_S, True)
    job.plan = JobPlan(*what, Guards(), 120)
    job.restarted()
    job.after(0)
    job.cloud.fails[ON_DEMAND_ZONE] = NO_QUOTA
    job.engine.done_vcpu_s = setting.job.work_vcpu_s / 2
    while job.at_s < BEGIN_S + 5400:
        job.after(60)
        assert job.cloud.zones().count("us-east-1a") >= 4
    assert Skip.NOT_REPLACED in [each.skip for each in job.of(Passed)]
    assert job.cloud.zones().count(ON_DEMAND_ZONE) == 1


@given(
    asked=st.integers(1, 40),
    got=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 8), max_size=20),
)
def test_a_job_has_no_less_than_before_unless_all_was_bought(asked: int, got: int, sizes: list[int]) -> None:
    held = before = sum(sizes)
    replacing = Replacing().bought(asked, got)
    held += got
    for size in sizes:
        if replacing.may_give_back(size):
            replacing, held = replacing.gave_back(size), held - size
    assert held == got if got >= asked else held >= before
