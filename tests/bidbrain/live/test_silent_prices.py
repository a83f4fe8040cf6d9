"""A market whose prices do not come: notices and evictions are heard all the same, and nothing is decided."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import Alert, UnknownOutcomeError, notice_of
from bidbrain.live.journal import Decided, Ended, HourPassed, Noticed, Ordered
from bidbrain.policy.base import Decision, GiveBack, MarketView, Request
from tests.bidbrain.live.lone_cloud import ON_DEMAND, SMALL, LoneJob

NO_ANSWER = UnknownOutcomeError("AWS answers RequestLimitExceeded")


def four(now_s: int, view: MarketView) -> Decision:
    return Decision((Request(SMALL, 1, ON_DEMAND, 4),) if not view.holdings else (), "four", now_s + 300)


@pytest.mark.parametrize("silent", ["quotes", "ended", "held"])
def test_a_notice_is_passed_on_at_once(silent: str) -> None:
    job = LoneJob(four)
    job.after(0)
    victim = next(each for each in job.cloud.running.values() if each.market == SMALL).instance_id
    job.cloud.fails[silent] = NO_ANSWER
    job.cloud.open_notices = (notice_of(Alert.TERMINATE, victim, job.at_s + 120),)
    job.after(5)
    assert job.engine.warned == [victim]
    assert len(job.of(Noticed)) == 1


@pytest.mark.parametrize("hears", [True, False])
def test_a_notice_is_passed_on_while_machines_leave_one_after_the_other(hears: bool) -> None:
    """Each may take a minute, as long as the run needs to move what it holds."""
    job = LoneJob(four)
    job.after(0)
    *_, victim = (each.instance_id for each in job.cloud.running.values() if each.market == SMALL)
    job.with_policy(lambda now_s, view: Decision(tuple(map(GiveBack, (0, 1, 2))), "three go", now_s + 300))
    begin_s = job.at_s + 300
    warned_s: list[int] = []

    def leave() -> None:
        job.at_s += 60
        job.cloud.open_notices = (notice_of(Alert.TERMINATE, victim, begin_s + 120),)
        if not hears:
            job.cloud.fails["notices"] = NO_ANSWER

    warn = job.engine.warn
    job.engine.leaving = leave
    job.engine.warn = lambda now_s, notice: (warned_s.append(now_s), warn(now_s, notice))  # type: ignore[assignment]
    job.after(300)
    assert job.at_s == begin_s + 180 and len(job.cloud.running) == 2
    assert warned_s[:1] == ([begin_s + 60] if hears else [])


def test_evictions_are_heard_while_an_order_has_no_answer() -> None:
    """Purchases may be throttled for long, alone: hours pass and end meanwhile, and the bill goes by them."""
    job = LoneJob(four)
    job.after(0)
    job.with_policy(lambda now_s, view: Decision((Request(SMALL, 1, ON_DEMAND),), "another", now_s + 300))
    job.cloud.fails[SMALL.zone] = NO_ANSWER
    job.after(300)
    job.after(10)
    victim, *_ = (each.instance_id for each in job.cloud.running.values() if each.market == SMALL)
    job.cloud.end(victim, Ending.EVICTED)
    job.after(10)
    assert job.engine.lost_ids == [victim]
    assert [each.ending for each in job.of(Ended)] == [Ending.EVICTED]
    job.after(3600)
    assert len(job.of(HourPassed)) == 3
    job.cloud.fails.clear()
    job.after(10)
    assert len(job.cloud.running) == 6, "the order is answered, and the policy asked again"


def test_a_machine_that_may_not_end_holds_up_neither_evictions_nor_reliable_machines() -> None:
    """As one that somebody has protected from termination: EC2 may refuse to end it for days."""
    job = LoneJob(four)
    job.after(0)
    job.with_policy(lambda now_s, view: Decision((GiveBack(0),), "one goes", now_s + 300))
    job.cloud.fails["release"] = UnknownOutcomeError("ending machines: AWS answers OperationNotPermitted")
    job.after(300)
    job.cloud.end("job-1-3", Ending.EVICTED)
    job.cloud.end("job-0-0", Ending.TERMINATED)
    job.after(10, times=2)
    assert job.engine.lost_ids == ["job-0-0", "job-1-3"]
    assert [each.reliable for each in job.of(Ordered)] == [True, False, True]
    assert job.service.state.has_reliable
    job.cloud.fails.clear()
    job.after(10)
    assert "job-1-0" not in job.cloud.running


def test_notices_that_do_not_come_stop_nothing_else() -> None:
    job = LoneJob(four)
    job.cloud.fails["notices"] = NO_ANSWER
    job.after(5)
    assert len(job.cloud.running) == 5
    job.after(300)
    assert len(job.of(Decided)) > 1


def test_evictions_are_heard_and_nothing_is_decided_while_prices_do_not_come() -> None:
    job = LoneJob(four)
    job.after(0)
    decisions, victim = len(job.of(Decided)), "job-1-2"
    job.cloud.fails["quotes"] = NO_ANSWER
    job.after(10)
    job.cloud.end(victim, Ending.EVICTED)
    job.after(10)
    assert job.engine.lost_ids == [victim]
    job.after(10, times=60)
    assert len(job.of(Decided)) == decisions
    assert [each.ending for each in job.of(Ended)] == [Ending.EVICTED]
    job.cloud.fails.clear()
    job.after(10)
    assert len(job.of(Decided)) == decisions + 1
