"""Policies of today's market: recorded capacity, losses, deadlines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.ledger import ENDINGS, EntryKind
from bidbrain.accounts.rebill import rebill
from bidbrain.config import SimulateConfig
from bidbrain.history.availability import Trace
from bidbrain.policy.registry import find_scheme
from bidbrain.setting import Setting
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.makers import TICK, made_trace, pool
from tests.thorough import examples


def setting_of(traces: list[Trace], **changes: object) -> Setting:
    config = SimulateConfig(job_hours=[2.0], starts=1, **changes)  # type: ignore[arg-type]
    return make_pool_plan(config, traces).experiment.setting


def run(setting: Setting, name: str, start_s: int = 0):
    scheme = find_scheme(name)
    own = scheme.setting(setting)
    return simulate(own, name, scheme.make(own, start_s), start_s, scheme.reliable)


def test_a_pool_that_never_fails_costs_its_share() -> None:
    setting = setting_of([pool("calm", [16] * 100)])
    outcome, _ = run(setting, "elastic")
    # 2 h of work, 180 s of boot billed: 0.3 $ x 16 nodes.
    assert outcome.end_s == 2 * 3600 + 180
    assert outcome.micro_usd == round(300_000 * 16 * outcome.end_s / 3600)
    assert outcome.evictions == 0


def test_a_loss_pauses_everyone_and_is_refilled_from_the_next_pool() -> None:
    one, other = pool("one", [16] * 6 + [10] * 60), pool("two", [8] * 66)
    outcome, ledger = run(setting_of([one, other]), "elastic")
    assert outcome.evictions == 6
    bought = [entry for entry in ledger.entries if entry.kind is EntryKind.GRANT and entry.at_s == 6 * TICK]
    assert {str(entry.market) for entry in bought} == {"node@two"}
    assert len(bought) == 6
    # Six nodes boot again for 180 s; all stop for 60 s.
    lost = 10 * 60 + 6 * 180
    assert outcome.end_s == -(-(2 * 3600 * 16 + 16 * 180 + lost) // 16)


def test_static_waits_for_all_nodes_in_one_pool_and_restarts_from_its_checkpoint() -> None:
    counts = [15] * 2 + [16] * 12 + [3] * 2 + [16] * 60
    outcome, ledger = run(setting_of([pool("p", counts)]), "static_checkpoint")
    grants = [entry.at_s for entry in ledger.entries if entry.kind is EntryKind.GRANT]
    assert grants == [2 * TICK, 16 * TICK]
    # 3600 s held, 180 s boot: 3420 s of work, of which the checkpoint at 1800 s is left; 300 s to restart.
    rate = 0.97
    left = (2 * 3600 - 1800 * rate) / rate
    assert outcome.end_s == pytest.approx(16 * TICK + 300 + left, abs=1)


def test_on_demand_fills_up_only_when_it_is_late() -> None:
    nothing = pool("p", [0] * 400)
    outcome, ledger = run(setting_of([nothing], deadline=2.0), "spot_2026")
    grants = [entry.at_s for entry in ledger.entries if entry.kind is EntryKind.GRANT]
    # Late: time left < 2 h + 30 min; the deadline is at 4 h; looked at every 300 s.
    assert set(grants) == {4 * 3600 - 2 * 3600 - 1800 + TICK}
    assert outcome.finished
    assert outcome.end_s <= 4 * 3600
    assert outcome.micro_usd == 2 * 16 * 1_000_000


def test_on_demand_is_given_back_when_spot_nodes_have_booted() -> None:
    counts = [0] * 20 + [16] * 400
    _, ledger = run(setting_of([pool("p", counts)], deadline=1.5), "spot_2026")
    bought = [e for e in ledger.entries if e.market is not None and e.market.zone == "on-demand"]
    kinds = [entry.kind for entry in bought]
    assert EntryKind.GRANT in kinds
    assert EntryKind.TERMINATION in kinds


@given(st.integers(0, 10**6), st.sampled_from([1.25, 1.5, 3.0]), st.integers(0, 200))
@settings(deadline=None, derandomize=True, max_examples=examples(40))
def test_the_deadline_is_kept_and_capacity_never_exceeded(seed: int, deadline: float, tick: int) -> None:
    traces = [made_trace(name, 16, 100, 1.5, 1.5, seed) for name in ("a", "b")]
    setting = setting_of(traces, deadline=deadline)
    start_s = tick * TICK
    outcome, ledger = run(setting, "spot_2026", start_s)
    assert outcome.finished
    assert outcome.end_s - start_s <= deadline * 2 * 3600
    held = dict.fromkeys((trace.market for trace in traces), 0)
    limits = {trace.market: trace for trace in traces}
    instants = sorted({entry.at_s for entry in ledger.entries})
    for now in instants:
        for entry in (e for e in ledger.entries if e.at_s == now and e.market in held):
            held[entry.market] += (entry.vcpus or 0) * (
                (entry.kind is EntryKind.GRANT) - (entry.kind in ENDINGS)
            )
        assert all(0 <= count <= limits[market].count_at(now) for market, count in held.items())
        assert sum(held.values()) <= 16
    assert rebill(ledger, setting.history).differences == ()
