"""The bill of a job in a cloud is what the cloud bills: each machine from its launch to its own end, 60 s at least."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bidbrain.accounts.ledger import EntryKind, Ledger, lines_of, read_ledgers, write_ledgers
from bidbrain.accounts.rebill import rebill
from bidbrain.billing import Ending
from bidbrain.history.prices import History, Steps
from bidbrain.live.cloud import Instance, UnknownOutcomeError
from bidbrain.live.explain import explain
from bidbrain.live.journal import Answered, Closed, Closing, Ended, Opened, Ordered
from bidbrain.live.state import JobState
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Decision, GiveBack, MarketView, Request
from tests.bidbrain.live.lone_cloud import BEGIN_S, LARGE, ON_DEMAND, SMALL, SPOT, LoneJob, lone_setting

NO_ANSWER = UnknownOutcomeError("AWS answers RequestLimitExceeded")
NO_HISTORY = History({}, BEGIN_S)


def checked(job: LoneJob) -> Ledger:
    """The ledger of a job that is over, billed again, from the journal, and from a file."""
    assert job.service.state.closed is not None
    ledger = job.service.state.ledger()
    assert not rebill(ledger, NO_HISTORY).differences
    assert list(lines_of(JobState(job.setting, job.log.records).ledger())) == list(lines_of(ledger))
    return ledger


def checked_on_spot(job: LoneJob) -> Ledger:
    """As `checked`, with the price of the spot machines, which stays."""
    steps = {market: Steps.from_rows([0], [SPOT]) for market in job.setting.markets}
    ledger = job.service.state.ledger()
    assert not rebill(ledger, History(steps, 1 << 40)).differences, "a cloud evicts below the bid"
    assert [each.at_s for each in ledger.entries] == sorted(each.at_s for each in ledger.entries)
    return ledger


def finish(job: LoneJob, after_s: int, check: Callable[[LoneJob], Ledger] = checked) -> Ledger:
    job.at_s += after_s
    job.engine.finished_s = job.at_s
    job.after(0)
    return check(job)


def test_an_on_demand_machine_that_ends_alone_is_billed_until_its_own_end() -> None:
    job = LoneJob(reliable=2)
    job.after(0)
    job.at_s += 60
    job.cloud.end("job-0-0", Ending.TERMINATED)
    job.after(5)
    assert job.engine.lost_ids == ["job-0-0"]
    assert [each.instance_id for each in job.service.state.open_instances()] == ["job-0-1"]
    ledger = finish(job, 10 * HOUR_S - 65)
    assert ledger.micro_usd == 10 * ON_DEMAND + round(ON_DEMAND / 60)
    told = [str(line) for line in explain(job.log.records)]
    assert any("on demand, allocation -1" in line for line in told)


@pytest.mark.parametrize("lived_s", [0, 30, 59, 60, 61])
def test_an_on_demand_machine_is_billed_a_minute_at_least(lived_s: int, tmp_path: Path) -> None:
    job = LoneJob()
    job.after(0)
    ledger = finish(job, lived_s)
    assert ledger.micro_usd == round(ON_DEMAND * max(60, lived_s) / HOUR_S)
    write_ledgers(tmp_path / "ledger.jsonl", [ledger])
    assert list(read_ledgers(tmp_path / "ledger.jsonl")) == [ledger]


def test_a_service_opens_a_cloud_with_that_minute_and_a_played_market_without() -> None:
    job = LoneJob()
    job.log.records = ()
    job.restarted()
    job.engine.finished_s = BEGIN_S
    job.service.run()
    assert [each.least_s for each in job.of(Opened)] == [60]
    job.log.records, job.cloud.together = (), True
    job.restarted().run()
    assert [each.least_s for each in job.of(Opened)] == [0]


def test_reliable_machines_that_come_again_take_a_free_number() -> None:
    job = LoneJob(reliable=2)
    job.after(0)
    job.at_s += 600
    for each in ("job-0-0", "job-0-1"):
        job.cloud.end(each, Ending.TERMINATED)
    job.after(0, times=2)
    ledger = finish(job, 600)
    grants = [entry.allocation for entry in ledger.entries if entry.kind is EntryKind.GRANT]
    assert grants == [-1, -2, -1, -2]
    assert ledger.micro_usd == pytest.approx(4 * ON_DEMAND / 6, abs=4)


def spot_too(now_s: int, view: MarketView) -> Decision:
    actions = () if view.holdings else (Request(SMALL, 1, ON_DEMAND, 2),)
    return Decision(actions, "two", now_s + 300)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("late_s", [0, 600, 3000, 9000])
def test_machines_are_billed_until_the_cloud_took_them_back(late_s: int, is_restarted: bool) -> None:
    job = LoneJob(spot_too)
    job.after(0)
    job.at_s += 600
    job.engine.finished_s = job.at_s
    if late_s:
        job.cloud.fails["release"] = NO_ANSWER
        job.after(0)
        job.after(300, times=late_s // 300)
    job.cloud.fails = {"price": NO_ANSWER, "ended": NO_ANSWER}
    job.after(0)
    assert not job.cloud.running, "the bill comes later, and is the same"
    if is_restarted:
        job.restarted()
    job.after(1000)
    job.cloud.fails.clear()
    job.after(10)
    ledger = checked_on_spot(job)
    assert [each.at_s for each in job.of(Ended)] == [BEGIN_S + 600 + late_s] * 3
    assert ledger.micro_usd == pytest.approx(job.cloud.paid(), abs=5)


def test_what_a_decision_gives_back_is_billed_until_it_has_left() -> None:
    """Each takes 50 s to leave; a purchase that the same decision names after them is no later for that."""

    def swap(now_s: int, view: MarketView) -> Decision:
        own = [each.number for each in view.holdings if each.market == SMALL]
        if not own:
            return Decision((Request(SMALL, 1, ON_DEMAND, 3),), "three", now_s + 600)
        return Decision((*map(GiveBack, own), Request(LARGE, 1, ON_DEMAND)), "swap", now_s + 600)

    job = LoneJob(swap)
    job.after(0)
    job.engine.leaving = lambda: setattr(job, "at_s", job.at_s + 50)
    job.after(600)
    assert [each.at_s - BEGIN_S for each in job.of(Ended)] == [650, 700, 750]
    assert job.cloud.zones().count("us-east-1a") == 1
    ledger = finish(job, 1000, check=checked_on_spot)
    assert ledger.micro_usd == pytest.approx(job.cloud.paid(), abs=5)


def test_what_the_cloud_took_before_us_is_billed_until_then() -> None:
    job = LoneJob(spot_too)
    job.after(0)
    job.at_s += 2 * HOUR_S
    job.engine.finished_s = job.at_s
    job.cloud.fails["release"] = NO_ANSWER
    job.after(0)
    job.after(100)
    job.cloud.end("job-1-0", Ending.EVICTED)
    job.cloud.end("job-1-1", Ending.TERMINATED)
    job.after(500)
    job.cloud.fails.clear()
    job.after(10)
    ledger = checked_on_spot(job)
    ends = {each.number: (each.at_s - BEGIN_S - 2 * HOUR_S, each.ending) for each in job.of(Ended)}
    assert ends == {0: (100, Ending.EVICTED), 1: (100, Ending.JOB_END), -1: (610, Ending.JOB_END)}
    assert ledger.micro_usd == pytest.approx(job.cloud.paid(), abs=5)


def test_a_journal_from_before_bills_its_on_demand_machines_as_one() -> None:
    """It ends the allocation of all of them once; its numbers and its bill stay what they were."""
    setting = lone_setting(reliable=2)
    market = setting.reliable.market
    both = tuple(Instance(f"job-0-{i}", "job-0", market, BEGIN_S) for i in range(2))
    end_s = BEGIN_S + 30
    records = [
        Opened("job", "test", BEGIN_S),
        Ordered(BEGIN_S, 0, market, 2, 1, ON_DEMAND, BEGIN_S, reliable=True),
        Answered(BEGIN_S, 0, ON_DEMAND, both),
        Closing(end_s, True, "the work is done", 0),
        Ended(end_s, -1, Ending.JOB_END),
        Closed(end_s, 0.0),
    ]
    state = JobState(setting, records)
    assert list(state.open_instances()) == []
    ledger = state.ledger()
    assert ledger.micro_usd == round(2 * ON_DEMAND * 30 / HOUR_S)
    assert not rebill(ledger, NO_HISTORY).differences
