"""A refusal says something about a pool where the pool itself had no room, and nothing where another reason holds."""

from __future__ import annotations

import pytest

from bidbrain.accounts.ledger import EntryKind
from bidbrain.live.cloud import CapacityError, QuotaError, RefusedError, UnknownOutcomeError
from bidbrain.live.journal import Decided
from bidbrain.live.state import JobState
from bidbrain.policy.base import Decision, MarketView, Request
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, SMALL, LoneJob

LIMIT = RefusedError("9 machines are there and 1 more asked for, the stack's limit is 9")


def one_later(now_s: int, view: MarketView) -> Decision:
    """A spot machine, when the job is asked again."""
    wanted = () if now_s == BEGIN_S else (Request(SMALL, 1, ON_DEMAND),)
    return Decision(wanted, "one", now_s + 300)


def refusals(state: JobState, at_s: int) -> tuple[float, float]:
    """(refusals that are kept for other jobs, the moment's multiple of the pool's usual rate)."""
    kept = sum(cell.refused for cell in state.risk.tally(at_s).cells.values())
    return kept, state.risk.hazard(SMALL, at_s).regime


@pytest.mark.parametrize(
    ("error", "is_scarce"),
    [(CapacityError("no room"), True), (QuotaError("the quota"), False), (LIMIT, False)],
)
def test_only_a_lack_of_room_is_evidence_about_a_pool(error: RefusedError, is_scarce: bool) -> None:
    job = LoneJob(one_later)
    job.after(0)
    job.cloud.fails[SMALL.zone] = error
    job.after(300)
    (refused,) = (each for each in job.service.state.account.entries if each.kind is EntryKind.REFUSED)
    assert refused.reason == (None if is_scarce else str(error))
    for state in (job.service.state, JobState(job.setting, job.log.records)):
        kept, regime = refusals(state, job.at_s)
        assert (kept, regime > 1.0) == (1.0, True) if is_scarce else (0.0, False)


def test_an_order_that_is_filled_in_part_is_no_evidence_until_the_next_one_says_why() -> None:
    """A quota sells a part, too, as to a new account, and says nothing about the pool."""

    def three(now_s: int, view: MarketView) -> Decision:
        missing = 3 - len(view.holdings)
        return Decision((Request(SMALL, 1, ON_DEMAND, missing),) if missing else (), "three", now_s + 300)

    for error, is_scarce in ((QuotaError("the quota"), False), (CapacityError("no room"), True)):
        job = LoneJob(three)
        job.cloud.most[SMALL.zone] = 2
        job.after(0)
        assert job.cloud.zones() == ["on-demand", SMALL.zone, SMALL.zone]
        assert refusals(job.service.state, job.at_s)[0] == 0
        job.cloud.fails[SMALL.zone] = error
        job.after(300)
        assert (refusals(job.service.state, job.at_s)[1] > 1.0) is is_scarce


def test_an_order_that_a_job_which_ends_did_not_place_is_no_evidence() -> None:
    def two_later(now_s: int, view: MarketView) -> Decision:
        wanted = () if now_s == BEGIN_S else (Request(SMALL, 1, ON_DEMAND), Request(SMALL, 1, 2 * ON_DEMAND))
        return Decision(wanted, "two", now_s + 300)

    job = LoneJob(two_later)
    job.after(0)
    job.cloud.fails["acquire"] = UnknownOutcomeError("AWS answers RequestLimitExceeded")
    job.after(300)
    job.cloud.fails.clear()
    job.engine.finished_s = job.at_s
    job.after(10)
    assert job.service.state.closed is not None
    assert any(each.kind is EntryKind.REFUSED for each in job.service.state.account.entries)
    assert refusals(job.service.state, job.at_s)[0] == 0


def test_a_policy_whose_orders_a_limit_refuses_decides_less_and_less_often() -> None:
    """A pool that is full is left alone by its market, and another one may have room: there a pause costs time."""

    def always(now_s: int, view: MarketView) -> Decision:
        return Decision((Request(SMALL, 1, ON_DEMAND),), "one", now_s + 3600)

    for error, most in ((LIMIT, 6), (CapacityError("no room"), 61)):
        job = LoneJob(always)
        job.cloud.fails[SMALL.zone] = error
        job.after(0)
        job.after(10, times=60)
        assert len(job.of(Decided)) == most
    job = LoneJob(always)
    job.cloud.fails[SMALL.zone] = LIMIT
    job.after(0)
    job.after(10, times=60)
    del job.cloud.fails[SMALL.zone]
    job.after(600)
    assert len(job.cloud.running) == 2
    job.cloud.fails[SMALL.zone] = LIMIT
    job.after(3600)
    before = len(job.of(Decided))
    job.after(10)
    assert len(job.of(Decided)) == before + 1, "it begins anew"
