"""The bill of a job in a cloud is what the cloud bills: each machine from its launch to its own end, 60 s at least."""

from __future__ import annotations

import pytest

from bidbrain.accounts.ledger import EntryKind, Ledger, lines_of
from bidbrain.accounts.rebill import rebill
from bidbrain.billing import Ending
from bidbrain.history.prices import History
from bidbrain.live.cloud import Instance
from bidbrain.live.explain import explain
from bidbrain.live.journal import Answered, Closed, Closing, Ended, Opened, Ordered
from bidbrain.live.state import JobState
from bidbrain.money import HOUR_S
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, LoneJob, lone_setting

NO_HISTORY = History({}, BEGIN_S)


def checked(job: LoneJob) -> Ledger:
    """The ledger of a job that is over, billed again, from the journal, and from a file."""
    assert job.service.state.closed is not None
    ledger = job.service.state.ledger()
    assert not rebill(ledger, NO_HISTORY).differences
    assert list(lines_of(JobState(job.setting, job.log.records).ledger())) == list(lines_of(ledger))
    return ledger


def finish(job: LoneJob, after_s: int) -> Ledger:
    job.at_s += after_s
    job.engine.finished_s = job.at_s
    job.after(0)
    return checked(job)


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
