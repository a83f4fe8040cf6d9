"""The end of a job gives back what it holds at once, whatever other call has no answer."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import UnknownOutcomeError
from bidbrain.live.journal import Ended
from bidbrain.policy.base import Decision, GiveBack, MarketView, Request
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import BEGIN_S, LARGE, ON_DEMAND, SMALL, LoneJob

NO_ANSWER = UnknownOutcomeError("AWS answers RequestLimitExceeded")


def two_then_another(now_s: int, view: MarketView) -> Decision:
    """Two machines of one market, and one of another when the job is asked again."""
    wanted = [Request(SMALL, 1, ON_DEMAND, 2)] if not view.holdings else [Request(LARGE, 1, ON_DEMAND)]
    return Decision(tuple(wanted), "more", now_s + 300)


def job_with_an_order_under_way() -> LoneJob:
    job = LoneJob(two_then_another)
    job.after(0)
    job.cloud.fails[LARGE.zone] = NO_ANSWER
    job.cloud.is_answer_lost = True
    job.after(300)
    assert len(job.service.state.pending) == 1
    assert len(job.cloud.running) == 4, "it was bought, and nobody knows"
    job.cloud.fails.clear()
    return job


@pytest.mark.parametrize("call", ["acquire", "ended", "price", "held"])
def test_known_machines_are_given_back_in_the_first_step_whatever_has_no_answer(call: str) -> None:
    job = job_with_an_order_under_way()
    known = {each.instance_id for each in job.service.state.open_instances()}
    job.cloud.fails[call] = NO_ANSWER
    job.engine.finished_s = job.at_s
    job.after(10)
    assert job.cloud.count("release") and not known & set(job.cloud.running)
    assert job.service.state.closed is None
    job.after(10, times=3)
    job.cloud.fails.clear()
    job.after(10)
    assert job.service.state.closed is not None
    assert not job.cloud.running
    assert sum(isinstance(each, Ended) for each in job.log.records) == 4


def test_what_an_order_without_an_answer_bought_is_given_back() -> None:
    job = job_with_an_order_under_way()
    job.engine.finished_s = job.at_s
    job.after(10)
    assert job.service.state.closed is not None and not job.cloud.running


@pytest.mark.parametrize("is_finished", [False, True])
def test_orders_that_were_not_placed_when_the_job_ends_are_not_placed(is_finished: bool) -> None:
    """They were decided together, and the first of them had no answer: it alone may have bought something."""

    def two_orders(now_s: int, view: MarketView) -> Decision:
        if now_s == BEGIN_S:
            return Decision((), "wait", now_s + 300)
        return Decision((Request(SMALL, 1, ON_DEMAND, 2), Request(LARGE, 1, ON_DEMAND, 2)), "4", now_s + 300)

    job = LoneJob(two_orders)
    job.after(0)
    job.cloud.fails["acquire"] = NO_ANSWER
    job.after(300)
    assert len(job.service.state.pending) == 2
    job.cloud.fails.clear()
    if is_finished:
        job.engine.finished_s = job.at_s
    else:
        job.service.stop("told to stop")
    job.after(10)
    assert list(job.cloud.bought) == ["job-0", "job-1"]
    assert not job.service.state.pending
    job.engine.is_drained = True
    job.after(10)
    job.after(10)
    assert job.service.state.closed is not None and not job.cloud.running


@pytest.mark.parametrize("late_s", [10, 100])
@pytest.mark.parametrize("ending", [Ending.EVICTED, Ending.TERMINATED])
def test_a_machine_that_is_given_back_while_it_is_taken_stops_nothing(ending: Ending, late_s: int) -> None:
    """The decision is of an instant before its end, and the service hears of both at once. A policy gives back what the
    cloud has warned of, so that is no rare chance."""

    def one_then_none(now_s: int, view: MarketView) -> Decision:
        spot = [each for each in view.holdings if each.market == SMALL]
        if now_s == BEGIN_S:
            return Decision((Request(SMALL, 1, ON_DEMAND, 2),), "two", now_s + 300)
        return Decision(tuple(GiveBack(each.number) for each in spot), "none", now_s + 300)

    job = LoneJob(one_then_none)
    job.after(0)
    (name, *_) = (each for each, own in job.cloud.running.items() if own.market == SMALL)
    job.at_s += 303
    job.cloud.end(name, ending)
    job.after(late_s)
    assert [each.number for each in job.of(Ended)] == [0, 1] and job.cloud.zones() == [ON_DEMAND_ZONE]
    job.after(300)
    assert len(job.of(Ended)) == 2


def test_an_order_that_was_placed_after_the_work_was_done_is_on_the_bill() -> None:
    """The service was still placing a decision's orders, one after the other, when the training ended."""
    job = job_with_an_order_under_way()
    job.engine.finished_s = job.at_s - 20
    job.after(10)
    assert job.service.state.closed is not None and not job.cloud.running
    assert sum(isinstance(each, Ended) for each in job.log.records) == 4


@pytest.mark.parametrize("call", ["acquire", "ended", "price", "release"])
def test_a_service_that_dies_at_the_end_goes_on_with_it(call: str) -> None:
    job = job_with_an_order_under_way()
    job.cloud.fails[call] = NO_ANSWER
    job.engine.finished_s = job.at_s
    job.after(10)
    job.cloud.fails.clear()
    job.restarted()
    job.after(10)
    assert job.service.state.closed is not None and not job.cloud.running
    assert min(each.at_s for each in job.service.state.account.entries) == BEGIN_S


def test_the_trainer_is_told_to_drain_before_everything_is_given_back() -> None:
    """Also by a service that was started anew while the job drained, or where nobody had asked it to drain before."""
    job = LoneJob()
    job.after(0)
    job.engine.finished_s = job.at_s
    asked: list[int | None] = []
    job.engine.leaving = lambda: asked.append(job.engine.drain_by_s)
    job.after(10)
    assert asked == [job.at_s + job.plan.drain_s] and job.service.state.closed is not None
