"""What must hold on any market, policy and job."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.ledger import ENDINGS, EntryKind, Ledger
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import Interval
from bidbrain.policy.registry import SCHEMES
from bidbrain.setting import Bidding, Engine, Setting, Workload
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.simulator import Outcome
from tests.bidbrain.makers import EVALUATE, ON_DEMAND, VCPUS, history_of, make_setting
from tests.thorough import examples

WINDOW = Interval.parse("2016-03-18/2016-03-25")
TRAIN = Interval.parse("2016-03-18/2016-03-20")
COMPILED = st.sampled_from([name for name, scheme in SCHEMES.items() if scheme.compiled])
PLENTY = settings(deadline=None, derandomize=True, max_examples=examples(60))


@st.composite
def made_histories(draw: st.DrawFn) -> History:
    character = draw(st.sampled_from([Character.CALM, Character.TURBULENT]))
    markets = [(kind, "us-east-1a", price) for kind, price in ON_DEMAND.items()]
    return generate(markets, WINDOW, character, draw(st.integers(0, 10**6)))


def run(setting: Setting, name: str, start_s: int) -> tuple[Outcome, Ledger]:
    scheme = SCHEMES[name]
    return CompiledSimulator(scheme.setting(setting), scheme).ledger(start_s, "job")


@given(made_histories(), st.integers(0, 500_000), st.integers(0, 500_000), st.integers(0, 86_400 * 5))
@PLENTY
def test_a_higher_bid_is_never_evicted_earlier(history: History, bid: int, more: int, offset: int) -> None:
    start = WINDOW.start_s + offset
    for steps in history.steps.values():
        assert steps.eviction_s(start, bid) <= steps.eviction_s(start, bid + more)


@given(made_histories(), COMPILED, st.integers(0, 2 * 86_400), st.sampled_from(["hourly_2016", "per_second"]))
@PLENTY
def test_no_charge_without_a_grant_and_no_refund_above_its_charge(
    history: History, name: str, offset: int, rules: str
) -> None:
    setting = make_setting(history, Workload(hours=3.0), rules=rules, train=TRAIN)
    outcome, ledger = run(setting, name, EVALUATE.start_s + offset)
    granted: set[int | None] = set()
    ended: set[int | None] = set()
    charges: dict[tuple[int | None, int | None], int] = defaultdict(int)
    for entry in ledger.entries:
        if entry.kind is EntryKind.GRANT:
            assert entry.price is not None
            assert entry.bid is None or entry.price <= entry.bid
            granted.add(entry.allocation)
        elif entry.kind is EntryKind.CHARGE:
            assert entry.allocation in granted
            assert entry.micro_usd is not None
            assert entry.micro_usd > 0
            charges[entry.allocation, entry.hour] += entry.micro_usd
        elif entry.kind is EntryKind.REFUND:
            assert entry.micro_usd is not None
            assert 0 < -entry.micro_usd <= charges[entry.allocation, entry.hour]
            charges[entry.allocation, entry.hour] += entry.micro_usd
        elif entry.kind in ENDINGS:
            assert entry.allocation in granted - ended
            ended.add(entry.allocation)
    assert granted == ended
    assert outcome.micro_usd == ledger.micro_usd >= 0
    assert [entry.at_s for entry in ledger.entries] == sorted(entry.at_s for entry in ledger.entries)


@given(
    made_histories(),
    COMPILED,
    st.integers(0, 2 * 86_400),
    st.floats(0.0, 1.0),
    st.integers(0, 600),
    st.integers(0, 300),
)
@PLENTY
def test_work_done_is_at_most_capacity_times_time(
    history: History, name: str, offset: int, phi: float, boot_s: int, lambda_s: int
) -> None:
    job = Workload(hours=3.0, phi=phi, engine=Engine(boot_s, lambda_s))
    setting = make_setting(history, job, train=TRAIN)
    outcome, ledger = run(setting, name, EVALUATE.start_s + offset)
    own = SCHEMES[name].setting(setting).job
    seconds = outcome.end_s - outcome.start_s
    done = [entry.done_vcpu_s or 0 for entry in ledger.entries if entry.kind is EntryKind.WORK]
    assert done[-1] <= own.cap_vcpus * seconds + 1
    assert done[-1] <= outcome.spot_vcpu_s + 1
    for entry in ledger.entries:
        if entry.kind is EntryKind.WORK:
            assert (entry.done_vcpu_s or 0) <= own.cap_vcpus * (entry.at_s - outcome.start_s) + 1
    if outcome.finished:
        assert done[-1] >= own.work_vcpu_s - 1


@given(
    st.dictionaries(st.sampled_from(sorted(ON_DEMAND)), st.floats(0.05, 0.9), min_size=1),
    st.floats(2.0, 24.0),
    st.integers(0, 86_400),
)
@PLENTY
def test_without_evictions_proteus_is_never_dearer_than_on_demand(
    shares: dict[str, float], hours: float, offset: int
) -> None:
    rows = {
        f"{kind}@us-east-1a": [(WINDOW.start_s, max(1, int(share * ON_DEMAND[kind])))]
        for kind, share in shares.items()
    }
    history = history_of(rows, WINDOW.end_s)
    setting = make_setting(history, Workload(hours=round(hours, 2)), train=TRAIN)
    outcome, _ = run(setting, "proteus", EVALUATE.start_s + offset)
    assert outcome.finished
    assert outcome.evictions == 0
    assert outcome.micro_usd <= setting.baseline_micro_usd()


@given(made_histories(), COMPILED, st.integers(0, 2 * 86_400), st.integers(2, 11))
@PLENTY
def test_prices_scaled_by_k_scale_costs_and_change_no_decision(
    history: History, name: str, offset: int, k: int
) -> None:
    scaled = History(
        {market: Steps(steps.times, k * steps.prices) for market, steps in history.steps.items()},
        history.end_s,
    )
    deltas = Bidding().deltas
    one = make_setting(history, Workload(hours=3.0), train=TRAIN)
    many = make_setting(
        scaled, Workload(hours=3.0), Bidding(tuple(k * delta for delta in deltas)), train=TRAIN, scale=k
    )
    start = EVALUATE.start_s + offset
    outcome, ledger = run(one, name, start)
    scaled_outcome, scaled_ledger = run(many, name, start)

    def plain(found: Ledger) -> list[tuple[object, ...]]:
        return [
            (entry.at_s, entry.kind, entry.allocation, entry.market, entry.vcpus, entry.hour)
            for entry in found.entries
        ]

    assert plain(ledger) == plain(scaled_ledger)
    # Each line is rounded on its own: half a micro-dollar a line, k times over.
    lines = sum(1 for entry in ledger.entries if entry.micro_usd is not None)
    assert abs(scaled_outcome.micro_usd - k * outcome.micro_usd) <= Fraction(k + 1, 2) * lines
    assert replace(outcome, micro_usd=0) == replace(scaled_outcome, micro_usd=0)


def test_every_type_here_has_vcpus() -> None:
    assert set(ON_DEMAND) == set(VCPUS)
    assert Market.parse("c4.xlarge@us-east-1a").instance_type in ON_DEMAND
