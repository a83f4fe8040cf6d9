"""A live job weighs the traffic that it measures, and finds it in its ledger, its budget and its explanation."""

from dataclasses import replace

import pytest

from bidbrain.accounts.ledger import EntryKind
from bidbrain.accounts.rebill import rebill
from bidbrain.live.decide import Measurements
from bidbrain.live.explain import explain
from bidbrain.live.guards import Guards, spent
from bidbrain.live.journal import Decided, Draining
from bidbrain.live.service import Service
from bidbrain.live.state import JobState
from bidbrain.policy.registry import find_scheme
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of
from tests.bidbrain.makers import pool
from tests.bidbrain.policy.test_today import setting_of

NEAR, FAR = "us-east-1a", "us-east-1b"


class Measuring(LiveRig):
    """A job that measures its traffic: nothing at first, later what is set."""

    def __init__(self, setting, start_s: int) -> None:
        super().__init__(setting, start_s)
        self.gb_per_h: float | None = None
        report = self.engine.report
        self.engine.report = lambda now_s: replace(
            report(now_s), measured=Measurements(traffic_gb_per_h=self.gb_per_h)
        )


def started(gb_per_h: float | None, scheme_name: str = "expected_cost", guards: Guards | None = None):
    traces = [pool(NEAR, [16] * 300), pool(FAR, [8] * 300)]
    shares = {NEAR: 0.3, FAR: 0.25}
    setting = setting_of(traces, spot_shares=shares, traffic_gb_per_h=1.0)
    scheme = find_scheme(scheme_name)
    setting = scheme.setting(setting.with_job(replace(setting.job, traffic_gb_per_h=0.0, deadline=None)))
    rig, log = Measuring(setting, 3600), Memory()
    rig.gb_per_h = gb_per_h
    service = Service(plan_of(setting, scheme, 3600, guards), rig.replay, rig.engine, rig, log)
    rig.state = service.state
    return service, rig, log


def test_what_a_job_measures_brings_its_fleet_together() -> None:
    service, rig, log = started(None)
    wait = rig.wait

    def measured_later(until_s: int, market: bool) -> None:
        if rig.at_s >= 3600 + 1500:
            rig.gb_per_h = 20.0
        wait(until_s, market)

    rig.wait = measured_later
    service.run()
    decisions = [record for record in log.records if isinstance(record, Decided)]
    torn = [each for each in decisions if "traffic" in each.reason]
    assert decisions[0].figures.traffic_gb_per_h == 0.0
    assert torn[0].figures.traffic_gb_per_h == 20.0
    assert torn[0].at_s >= 3600 + 1500
    assert "traffic 0.0000 $/h instead of " in torn[0].reason
    held = {entry.allocation: entry.market.zone for entry in service.state.account.entries if entry.market}
    ended = [e for e in service.state.account.entries if e.kind is EntryKind.TERMINATION]
    ends = [each for each in ended if each.at_s >= torn[0].at_s]
    assert ends
    assert {held[each.allocation] for each in ends} == {FAR}
    ledger = service.state.ledger()
    assert rebill(ledger, service._job.plan.setting.history).differences == ()
    assert ledger.header.traffic.rates == ((torn[0].at_s, 20.0),)
    # Eight beside eight, from the measurement until the others were ready.
    assert 0 < ledger.traffic_micro_usd < 2_000_000
    assert spent(service.state.account) == ledger.micro_usd
    assert any("20 GB/h" in line.text for line in explain(log.records))
    # Whoever goes on from the journal has the same.
    again = JobState(service._job.plan.setting, log.records)
    assert again.ledger() == ledger
    assert again.account.carried == service.state.account.carried


def test_a_budget_is_reached_by_traffic_too() -> None:
    costs = {}
    for gb_per_h in (None, 50.0):
        service, rig, log = started(gb_per_h, "elastic", Guards(budget=11_000_000, reserve_s=300))
        wait = rig.wait

        def looks_each_minute(until_s: int, market: bool, rig=rig, wait=wait) -> None:
            wait(min(until_s, rig.at_s + 60), market)

        rig.wait = looks_each_minute
        service.run()
        costs[gb_per_h] = service.state.ledger().micro_usd
        assert any(isinstance(record, Draining) for record in log.records) is (gb_per_h is not None)
        assert costs[gb_per_h] <= 11_000_000
    assert costs[None] == pytest.approx(9_000_000, rel=0.1)


def test_nothing_is_said_where_nothing_is_measured() -> None:
    service, _, _ = started(None)
    service.run()
    ledger = service.state.ledger()
    assert ledger.header.traffic is None
    assert ledger.traffic_micro_usd == 0
