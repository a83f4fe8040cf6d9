"""A live job on a replayed market is the simulated one: decisions and ledgers line by line, to the cent."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bidbrain.accounts.ledger import EntryKind, Ledger, lines_of
from bidbrain.accounts.rebill import rebill
from bidbrain.config import SimulateConfig
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History
from bidbrain.instants import Interval
from bidbrain.live.job import TrainerReport
from bidbrain.live.journal import Decided
from bidbrain.live.replay import InstantLauncher, MarketClock, Replay
from bidbrain.live.service import Service
from bidbrain.policy.registry import find_scheme
from bidbrain.setting import Bidding, Setting, Workload
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of, play, play_in
from tests.bidbrain.makers import EVALUATE, ON_DEMAND, made_trace, make_setting

SCHEMES = ("proteus", "renewal", "standard_checkpoint", "standard_agileml", "on_demand", "expected_cost")
RULES = ("hourly_2016", "per_second")


class Watched:
    """A policy that remembers what it decided."""

    def __init__(self, policy) -> None:
        self.policy, self.decisions = policy, []

    def decide(self, now_s, view):
        decision = self.policy.decide(now_s, view)
        self.decisions.append((now_s, decision))
        return decision


def compare(setting: Setting, name: str, start_s: int) -> Ledger:
    """Both ways; asserts that decisions and ledgers are the same. Returns the ledger."""
    scheme = find_scheme(name)
    own = scheme.setting(setting)
    simulated, lived = Watched(scheme.make(own, start_s)), Watched(scheme.make(own, start_s))
    outcome, expected = simulate(own, name, simulated, start_s, scheme.reliable)
    ground, log = LiveRig(own, start_s), Memory()
    closing, ledger = play(ground, replace(scheme, make=lambda _setting, _start_s: lived), log)
    for ours, theirs in zip(lived.decisions, simulated.decisions, strict=False):
        assert ours == theirs
    assert len(lived.decisions) == len(simulated.decisions)
    assert list(lines_of(ledger)) == list(lines_of(expected))
    assert (closing.at_s, closing.finished) == (outcome.end_s, outcome.finished)
    assert ledger.micro_usd == outcome.micro_usd
    assert not ground.launcher.running
    written = [record for record in log.records if isinstance(record, Decided)]
    assert [record.reason for record in written] == [d.reason for _, d in simulated.decisions]
    return ledger


@pytest.fixture(scope="module")
def settings(turbulent: History) -> dict[str, Setting]:
    return {rules: make_setting(turbulent, Workload(hours=2.0), rules=rules) for rules in RULES}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_replayed_job_is_the_simulated_one(settings, rules: str, name: str) -> None:
    kinds: Counter[str] = Counter()
    for number in range(6):
        ledger = compare(settings[rules], name, EVALUATE.start_s + 70_001 * number)
        kinds.update(entry.kind.value for entry in ledger.entries)
        audit = rebill(ledger, settings[rules].history)
        assert not audit.differences
    if name == "proteus":
        print(f"{rules} {name}: 6 jobs, {sum(kinds.values())} lines, {kinds['eviction']} evictions")
        assert kinds["eviction"]


def test_with_delays_until_grants_and_costs_of_change(turbulent: History) -> None:
    bidding = Bidding(min_delta=500, grant_delay_s=60, slot_vcpus=96)
    setting = make_setting(turbulent, Workload(vcpus=288, hours=3.0, phi=1.0), bidding)
    for name in ("proteus", "renewal", "standard_agileml", "expected_cost"):
        compare(setting, name, EVALUATE.start_s + 50_021)


@pytest.mark.parametrize("name", ["elastic", "spot_2026", "static_checkpoint", "expected_cost"])
def test_with_pools_that_come_and_go(name: str) -> None:
    traces = [made_trace(zone, 8, 60.0, 3.0, 2.0, seed=5) for zone in ("a", "b", "c")]
    config = SimulateConfig(job_hours=[2.0], starts=1, nodes=8)
    setting = make_pool_plan(config, traces).experiment.setting
    for start_s in (0, 3 * 3600, 7 * 3600):
        compare(setting, name, start_s)


def test_a_history_that_ends_before_the_job(settings, turbulent: History) -> None:
    compare(settings["hourly_2016"], "proteus", turbulent.end_s - 3600)
    ground, log = LiveRig(settings["hourly_2016"], turbulent.end_s - 3600), Memory()
    closing, _ = play(ground, find_scheme("proteus"), log)
    assert "history ends" in closing.reason
    assert closing.code == 4


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("later_s", [20, 3590, 7300])
def test_what_came_between_the_last_look_and_the_end_of_a_stopped_job_is_billed(
    settings, rules: str, later_s: int
) -> None:
    """An eviction, whose hour is refunded, and hours that began."""
    setting, evictions = settings[rules], 0
    for number in range(6):
        start_s = EVALUATE.start_s + 70_001 * number
        ground, log = LiveRig(setting, start_s), Memory()
        plan = plan_of(setting, find_scheme("proteus"), start_s)
        service = Service(plan, ground.replay, ground.engine, ground, log)
        ground.state, step = service.state, ground.wait

        def wait(until_s: int, market: bool, ground=ground, service=service, step=step) -> None:
            if ground.engine.draining:
                ground.at_s = min(ground.replay.next_eviction_s(ground.at_s), ground.at_s + 3600) + later_s
                return
            step(until_s, market)
            if ground.at_s > ground.start_s + 1800:
                service.stop("stopped by its user")

        ground.wait = wait  # type: ignore[method-assign]
        service.run()
        ledger = service.state.ledger()
        assert not rebill(ledger, setting.history).differences
        evictions += sum(entry.kind is EntryKind.EVICTION for entry in ledger.entries)
        assert not ground.launcher.running
    assert evictions


def test_the_journal_on_disk_gives_the_same_ledger(settings, tmp_path: Path) -> None:
    setting = settings["hourly_2016"]
    start_s = EVALUATE.start_s
    _, ledger = play_in(tmp_path, LiveRig(setting, start_s), find_scheme("proteus"))
    # A second service on a closed journal has nothing to do, and says the same.
    _, again = play_in(tmp_path, LiveRig(setting, start_s), find_scheme("proteus"))
    assert list(lines_of(again)) == list(lines_of(ledger))


class Until:
    """An engine that is done at an instant."""

    def __init__(self, done_s: int) -> None:
        self.done_s = done_s

    def report(self, now_s: int) -> TrainerReport:
        return TrainerReport(0.0, self.done_s if now_s >= self.done_s else None)

    def __getattr__(self, name: str):
        return lambda *arguments: None


@pytest.mark.parametrize("rules", RULES)
def test_while_time_passes_between_any_two_calls(settings, rules: str) -> None:
    """Every look at the clock costs over a second of market time; the bill is still what the history says."""
    setting, start_s = settings[rules], EVALUATE.start_s + 140_002
    wall = 0.0

    def clock() -> float:
        nonlocal wall
        wall += 0.001
        return wall

    def sleep(seconds: float) -> None:
        nonlocal wall
        wall += seconds

    market_time = MarketClock(start_s, 1200.0, 0.01, clock, sleep)
    launcher = InstantLauncher()
    market = Replay(setting, market_time.now_s, launcher)
    plan = plan_of(setting, find_scheme("proteus"), start_s)
    service = Service(plan, market, Until(start_s + 3 * 3600), market_time, Memory())
    assert service.run().finished
    ledger = service.state.ledger()
    audit = rebill(ledger, setting.history)
    assert not audit.differences and audit.lines > 5
    assert [e.at_s for e in ledger.entries] == sorted(e.at_s for e in ledger.entries)
    assert sum(e.kind is EntryKind.EVICTION for e in ledger.entries) > 2
    assert not launcher.running


@pytest.mark.slow
@pytest.mark.parametrize("rules", RULES)
def test_many_jobs(rules: str) -> None:
    jobs = 0
    window = Interval.parse("2016-03-18/2016-03-25")
    train = Interval.parse("2016-03-18/2016-03-20")
    markets = [(kind, zone, ON_DEMAND[kind]) for kind in ON_DEMAND for zone in ("us-east-1a", "us-east-1b")]
    for seed in range(10):
        history = generate(markets, window, [Character.CALM, Character.TURBULENT][seed % 2], seed)
        setting = make_setting(history, Workload(hours=3.0), rules=rules, train=train)
        for name in ("proteus", "renewal", "standard_agileml", "standard_checkpoint"):
            for number in range(3):
                compare(setting, name, EVALUATE.start_s + 41_011 * number + 977 * seed)
                jobs += 1
    print(f"{rules}: {jobs} jobs")
    assert jobs >= 50
