"""A market that fails while a job runs on it, for a while or for good, and a bill that cannot be written."""

import threading
from pathlib import Path

import pytest

from agileml.errors import RunError
from agileml.events.market import (
    InstancesBought,
)
from agileml.events.run import Warned
from agileml.events.schema import Log, events_of
from agileml.market import outage
from agileml.market import service as market_service
from bidbrain.live.cloud import CloudError
from tests.agileml.market.jobs import job
from tests.agileml.market.market_rig import (
    HELD,
    MarketRig,
    reference,
)

NEVER = 1 << 40  # calls between two failures


def refusals(log: Log, sentence: str = "no credentials") -> list[Warned]:
    return [event for event in events_of(log, Warned) if sentence in event.reason]


def test_a_service_that_the_market_fails_goes_on_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on meanwhile; nothing is bought twice, and nothing is left."""
    monkeypatch.setattr(market_service, "AGAIN_S", 0.02)
    monkeypatch.setattr(market_service, "MOST_FAILURES", 10_000)
    rig = MarketRig(job(30, {"application": HELD}, job_hours=0.5), tmp_path)
    rig.backend.fails_every = 41
    monkeypatch.setattr(outage, "QUIET_S", 0.0)  # so each failure is an outage of its own
    rig.hold(25, lambda log: len(refusals(log)) >= 3)
    ran = rig.run()
    assert ran.sha256 == reference(rig.config)
    # (Whoever only looks at prices for the log meets some of the failures, and leaves them to the service.)
    assert 3 <= len(refusals(ran.events)) <= rig.backend.moody.failures
    bought = rig.backend.market.purchases
    assert len(ran.of(InstancesBought)) == len(bought) == len(set(bought))
    assert ran.settlement.bill.differences == ()
    assert rig.backend.market.held() == ()


def test_credentials_that_expire_pause_buying_until_they_are_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the market refuses meanwhile, the machines that are there train on."""
    monkeypatch.setattr(market_service, "AGAIN_S", 0.1)
    monkeypatch.setattr(market_service, "MOST_FAILURES", 3)
    monkeypatch.setattr(outage, "QUIET_S", 0.5)
    # No bought hour ends while the service is away: it is played slowly.
    rig = MarketRig(job(30, {"application": HELD}, job_hours=0.02, speed=20), tmp_path)
    rig.backend.fails_every = NEVER

    renewed = threading.Event()

    def refused(log: Log) -> bool:
        """More often than would end the run; then they are renewed."""
        if rig.backend.moody.failures > 8:
            renewed.set()
        return renewed.is_set() and bool(refusals(log, "answers again"))

    def expire(clock: int) -> None:
        rig.backend.moody.every = 1 if clock >= 10 and not renewed.is_set() else NEVER

    rig.on_clock = expire
    rig.hold(20, refused)
    ran = rig.run()
    assert ran.sha256 == reference(rig.config)
    (said,) = refusals(ran.events, "no credentials just now")
    assert said.reason == "market: no credentials just now; it is asked again every 0.1 s"
    (over,) = refusals(ran.events, "answers again")
    assert int(over.reason.split()[5]) > 3
    assert ran.settlement.bill.differences == ()
    assert rig.backend.market.held() == ()


def test_credentials_that_never_sufficed_end_a_run_that_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing trains meanwhile, so waiting for somebody to renew them would cost the head for ever."""
    monkeypatch.setattr(market_service, "AGAIN_S", 0.02)
    monkeypatch.setattr(market_service, "MOST_FAILURES", 3)
    rig = MarketRig(job(8, job_hours=0.1), tmp_path)
    rig.backend.fails_every = 1

    def recover(clock: int) -> None:
        """So that a run which waits all the same comes to its end."""
        if rig.backend.moody.failures > 100:
            rig.backend.moody.every = NEVER

    rig.on_clock = recover
    rig.backend.may_leave = True
    with pytest.raises(RunError, match="market: no credentials just now"):
        rig.run()


def test_a_market_that_fails_for_good_ends_the_run_and_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(market_service, "AGAIN_S", 0.02)
    monkeypatch.setattr(market_service, "MOST_FAILURES", 3)
    rig = MarketRig(job(4000), tmp_path)
    rig.backend.fails_every = NEVER

    def fail(clock: int) -> None:
        if clock >= 10:
            rig.backend.moody.error = CloudError
            rig.backend.moody.every = 1

    rig.on_clock = fail
    rig.backend.may_leave = True
    with pytest.raises(RunError, match="market: no credentials just now"):
        rig.run()
    assert "machines may not have been given back (market: no credentials" in capsys.readouterr().err
    assert "job-0-0" in rig.fleet.left
    assert rig.fleet.code == 1


def test_a_bill_that_cannot_be_written_costs_the_bill_alone(tmp_path: Path) -> None:
    rig = MarketRig(job(8, job_hours=0.1), tmp_path)
    (rig.folder.path / "market" / "ledger.jsonl" / "in the way").mkdir(parents=True)
    with pytest.raises(RunError, match=r"market: its bill could not be written: .*ledger.jsonl"):
        rig.run()
    assert rig.fleet.code == 1
    assert rig.fleet.summary() is None
    assert not list((rig.folder.path / "market").glob("*.partial"))
