"""What an order may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidbrain.history.prices import Market
from bidbrain.live.cloud import Order
from bidbrain.live.journal import HourPassed, Journal, read_journal
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.base import Action, Decision, MarketView, Request, RequestOnDemand
from tests.bidbrain.live.lone_cloud import ON_DEMAND, SMALL, LoneJob
from tests.bidbrain.live.lone_cloud import SPOT as PRICE

SPOT = Market("c5.xlarge", "us-east-1a")


def test_hours_that_end_while_an_order_is_placed_are_over_when_the_policy_is_asked() -> None:
    """A market that is played fast passes hours in a second, and a table of evictions has no minutes below 0."""
    left_s: list[int] = []

    def one_more(now_s: int, view: MarketView) -> Decision:
        left_s.extend(holding.hour_end_s - now_s for holding in view.holdings)
        actions = (Request(SMALL, 1, ON_DEMAND),) if len(view.holdings) < 3 else ()
        return Decision(actions, "three machines", now_s + 300)

    job = LoneJob(one_more, reliable=0)

    def passes() -> None:
        job.at_s += 8_000

    job.cloud.buying = passes
    job.after(10, times=5)
    assert len(job.cloud.running) == 3 and left_s and all(0 < left <= 3600 for left in left_s)
    ends = [record.at_s for record in job.of(HourPassed)]
    assert ends and ends == sorted(ends)


@pytest.mark.parametrize("wrong", [0, -40])
@pytest.mark.parametrize("name", ["vcpus", "vcpus_per_machine", "bid"])
def test_an_order_asks_for_something(name: str, wrong: int) -> None:
    size = {"vcpus": 8, "vcpus_per_machine": 4, "bid": 170_000}
    assert Order("a", SPOT, **size).instances == 2
    with pytest.raises(ValueError, match=f"^{name}: found {wrong}, expected more than 0$"):
        Order("a", SPOT, **{**size, name: wrong})


@pytest.mark.parametrize(
    "action", [Request(SMALL, 4, 0), RequestOnDemand("c5.xlarge", -4), RequestOnDemand("m5.xlarge", 4)]
)
def test_a_policy_that_asks_for_nothing_leaves_a_journal_that_can_be_continued(action: Action) -> None:
    """An order for nothing in it would fail each service that reads it, so nobody could give the machines back."""
    job = LoneJob(lambda now_s, view: Decision((action,), "for nothing", now_s + 300))
    with pytest.raises(PolicyError, match=r"expected (more than 0|c5.xlarge, the type of the reliable)"):
        job.after(0)
    assert job.cloud.running, "the reliable machine"
    job.engine.finished_s = job.at_s
    job.restarted()
    job.after(10)
    assert job.service.state.closed is not None and not job.cloud.running


def test_figures_that_a_policy_computes_leave_a_journal_that_can_be_read(tmp_path: Path) -> None:
    """A bid of one and a half times a price is no whole number, and no service could go on with the job."""

    def one(now_s: int, view: MarketView) -> Decision:
        actions = () if view.holdings else (Request(SMALL, 1.0, 1.5 * PRICE + 0.3),)
        return Decision(actions, "one machine", now_s + 150.5)

    job = LoneJob(one)
    job.after(10, times=30)
    with Journal(tmp_path) as journal:
        for record in job.log.records:
            journal.append(record)
    assert tuple(read_journal(tmp_path / "journal.jsonl")) == job.log.records
