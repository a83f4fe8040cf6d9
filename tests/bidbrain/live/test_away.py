"""A service that was away, or whose clock was set forward: machines that ended meanwhile cost until their end."""

from __future__ import annotations

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import CloudError, CredentialsError, UnknownOutcomeError
from bidbrain.live.guards import Guards, spent
from bidbrain.live.job import EXIT_BUDGET
from bidbrain.live.journal import Draining
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Decision, MarketView, Request
from tests.bidbrain.live.lone_cloud import ON_DEMAND, SMALL, LoneJob

BUDGET = 2_000_000


def four_at_first(now_s: int, view: MarketView) -> Decision:
    """Four spot machines, once."""
    wanted = () if view.holdings or now_s > 1_001_000 else (Request(SMALL, 1, ON_DEMAND, 4),)
    return Decision(wanted, "four", now_s + 300)


def away(job: LoneJob, hours: int, *, is_restarted: bool) -> None:
    """Nobody steps for so long; the machines' watchdogs end them after five minutes."""
    job.after(0)
    job.after(60, times=3)
    assert len(job.cloud.running) == 5
    job.at_s += 300
    for each in list(job.cloud.running):
        job.cloud.end(each, Ending.TERMINATED)
    job.at_s += hours * HOUR_S
    if is_restarted:
        job.restarted()


@pytest.mark.parametrize("is_restarted", [True, False])
def test_machines_that_ended_while_nobody_looked_reach_no_budget(is_restarted: bool) -> None:
    job = LoneJob(four_at_first, Guards(budget=BUDGET))
    away(job, 10, is_restarted=is_restarted)
    job.after(5)
    assert not job.of(Draining)
    assert job.service.state.has_reliable, "it goes on"
    assert spent(job.service.state.account) == pytest.approx(job.cloud.paid(), abs=10)


@pytest.mark.parametrize(
    "error", [UnknownOutcomeError("no answer"), CredentialsError("expired"), CloudError("closed")]
)
def test_a_budget_holds_while_the_cloud_does_not_say_what_has_ended(error: CloudError) -> None:
    job = LoneJob(four_at_first, Guards(budget=BUDGET))
    away(job, 10, is_restarted=True)
    job.cloud.fails["ended"] = error
    if isinstance(error, UnknownOutcomeError):
        job.after(5)
    else:
        with pytest.raises(type(error)):
            job.after(5)
    (draining,) = job.of(Draining)
    assert draining.code == EXIT_BUDGET
