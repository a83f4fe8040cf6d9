"""The reliable machines: bought first, and again when they are lost, but never for a job that ends."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import CapacityError, QuotaError, UnknownOutcomeError
from bidbrain.live.guards import Guards, spent
from bidbrain.live.job import EXIT_BUDGET
from bidbrain.live.journal import Closing, Draining, Ended, Ordered
from bidbrain.live.unix_clock import WAIT_S
from bidbrain.policy.base import Decision, MarketView, Request
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, SMALL, LoneJob


class WaitingJob(LoneJob):
    """Waits as the clock of a cloud does, remembers for how long, and is done after ten minutes."""

    def wait(self, until_s: int, market: bool) -> None:
        self.waits.append(max(0.0, min(WAIT_S, until_s - self.at_s)))
        self.at_s += int(self.waits[-1])
        if self.at_s >= self.began_s + 600 or len(self.waits) >= 300:
            self.engine.finished_s = self.at_s

    def run(self) -> list[float]:
        """The waits from now on, until the job is done."""
        self.began_s, self.waits = self.at_s, list[float]()
        self.service.run()
        return self.waits


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


def test_refused_reliable_machines_are_ordered_again_after_a_minute_and_later_after_longer() -> None:
    """A clock of a cloud returns every few seconds: that is no reason to ask."""
    for error, most in ((CapacityError("no room"), 10), (QuotaError("VcpuLimitExceeded"), 4)):
        job = LoneJob()
        job.cloud.fails[ON_DEMAND_ZONE] = error
        job.after(0)
        job.after(5, times=119)
        assert len(job.of(Ordered)) == most
        (said,) = job.service.state.troubles
        assert said == f"reliable machines are missing ({error}): they are asked for again every few minutes"
        del job.cloud.fails[ON_DEMAND_ZONE]
        job.after(600)
        assert job.service.state.has_reliable and not job.service.state.troubles


def test_a_refusal_of_an_order_that_had_no_answer_at_first_is_followed_by_the_same_pause() -> None:
    job = LoneJob(reliable=2)
    job.cloud.most[ON_DEMAND_ZONE] = 1
    job.after(0)
    job.cloud.fails[ON_DEMAND_ZONE] = UnknownOutcomeError("no answer")
    job.after(60, times=2)
    job.cloud.fails[ON_DEMAND_ZONE] = CapacityError("no room")
    job.after(5, times=10)
    assert len(job.of(Ordered)) == 2


def test_reliable_machines_that_a_fleet_did_not_have_are_bought_later() -> None:
    job = LoneJob(reliable=2)
    job.cloud.most[ON_DEMAND_ZONE] = 1
    job.after(0)
    assert job.cloud.zones() == [ON_DEMAND_ZONE], "the job begins with the one that there is"
    job.after(30)
    assert job.cloud.count("acquire") == 1
    job.after(30)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 2
    assert [each.vcpus for each in job.of(Ordered)] == [2, 1]


def test_one_reliable_machine_of_two_that_dies_is_bought_again() -> None:
    """A run that begins again waits for both."""
    job = LoneJob(reliable=2)
    job.after(0)
    job.cloud.end(next(iter(job.cloud.running)), Ending.TERMINATED)
    job.after(5, times=2)
    assert job.cloud.zones() == [ON_DEMAND_ZONE] * 2


def test_a_missing_reliable_machine_is_bought_within_the_limits_and_keeps_its_place() -> None:
    def many(now_s: int, view: MarketView) -> Decision:
        return Decision((Request(SMALL, 1, ON_DEMAND, 5),), "many", now_s + 10, fill=5)

    job = LoneJob(many, Guards(max_machines=4), reliable=2)
    job.cloud.most[ON_DEMAND_ZONE] = 1
    job.after(0)
    assert job.cloud.zones() == [ON_DEMAND_ZONE, SMALL.zone, SMALL.zone]
    job.after(10, times=10)
    assert job.cloud.zones() == [ON_DEMAND_ZONE, ON_DEMAND_ZONE, SMALL.zone, SMALL.zone]
    poor = LoneJob(guards=Guards(ON_DEMAND + ON_DEMAND // 2), reliable=2)
    poor.cloud.most[ON_DEMAND_ZONE] = 1
    poor.after(0)
    poor.after(60, times=5)
    assert poor.cloud.zones() == [ON_DEMAND_ZONE] and not poor.of(Draining)


def test_evictions_are_heard_while_lost_reliable_machines_are_asked_for() -> None:
    def one(now_s: int, view: MarketView) -> Decision:
        return Decision((Request(SMALL, 1, ON_DEMAND),) if now_s == BEGIN_S else (), "one", now_s + 300)

    job = LoneJob(one)
    job.after(0)
    job.cloud.fails[ON_DEMAND_ZONE] = QuotaError("VcpuLimitExceeded")
    lose(job)
    job.after(5, times=3)
    job.cloud.end(next(iter(job.cloud.running)), Ending.EVICTED)
    job.after(5)
    assert [each.ending for each in job.of(Ended)] == [Ending.TERMINATED, Ending.EVICTED]
    assert job.engine.lost_ids


def test_a_job_that_waits_for_reliable_machines_asks_the_market_every_few_seconds_and_no_more() -> None:
    """The policy's next decision is overdue meanwhile."""
    job = WaitingJob()
    job.after(0)
    lose(job)
    job.cloud.fails[ON_DEMAND_ZONE] = CapacityError("no room")
    assert set(job.run()) == {WAIT_S}


def test_reliable_machines_that_end_after_their_launch_are_waited_for_without_haste() -> None:
    job = WaitingJob()
    job.after(0)
    for _ in range(2):
        lose(job)
        job.after(5)
        job.after(5)
    assert set(job.run()) == {WAIT_S}


def test_a_job_without_room_for_a_lost_reliable_machine_goes_on_without_haste() -> None:
    job = WaitingJob(guards=Guards(budget=3 * ON_DEMAND), reliable=2)
    job.after(0)
    job.after(3600)
    job.cloud.end(next(iter(job.cloud.running)), Ending.TERMINATED)
    job.after(5)
    assert set(job.run()) == {WAIT_S}
    assert job.cloud.count("acquire") == 1
