"""The compiled simulator against its plain twin, ledger line by ledger line, with the real policy objects."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.ledger import Entry, EntryKind
from bidbrain.history.generate import Character, generate
from bidbrain.instants import Interval
from bidbrain.policy.registry import SCHEMES
from bidbrain.setting import Bidding, Engine, Setting, Workload
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.makers import EVALUATE, ON_DEMAND, history_of, make_setting
from tests.thorough import examples

COMPILED = [name for name, scheme in SCHEMES.items() if scheme.compiled]


def both(setting: Setting, name: str, start_s: int) -> tuple[list[Entry], list[Entry]]:
    """Entries of both simulators, without the reasons that only a policy object gives; outcomes must agree."""
    scheme = SCHEMES[name]
    own = scheme.setting(setting)
    fast_outcome, fast = CompiledSimulator(own, scheme).ledger(start_s, "job")
    outcome, plain = simulate(own, name, scheme.make(own, start_s), start_s, scheme.reliable)
    assert fast_outcome == outcome
    assert fast.header == plain.header
    assert plain.micro_usd == outcome.micro_usd
    return list(fast.entries), [replace(entry, reason=None) for entry in plain.entries]


@pytest.mark.parametrize("rules", ["hourly_2016", "per_second", "per_second_paid"])
@pytest.mark.parametrize("name", COMPILED)
def test_every_line_is_the_same(turbulent, name: str, rules: str) -> None:
    setting = make_setting(turbulent, rules=rules)
    for number in range(6):
        fast, plain = both(setting, name, EVALUATE.start_s + 70_001 * number)
        assert fast == plain


@pytest.mark.parametrize("name", ["proteus", "renewal", "one_hour_oracle", "standard_agileml"])
def test_with_delays_floors_and_costs_of_change(turbulent, name: str) -> None:
    engine = Engine(boot_s=300, lambda_s=45, sigma_s=20)
    job = Workload(vcpus=300, hours=5.5, cap=1.3, phi=0.7, engine=engine)
    bidding = Bidding(min_delta=500, grant_delay_s=60, slot_vcpus=100)
    setting = make_setting(turbulent, job, bidding)
    for number in range(6):
        fast, plain = both(setting, name, EVALUATE.start_s + 50_021 * number)
        assert fast == plain


@pytest.mark.parametrize("name", ["proteus", "renewal", "one_hour_oracle"])
@pytest.mark.parametrize("vcpus", [1, 2])
def test_a_cap_below_the_share_of_a_request(turbulent, name: str, vcpus: int) -> None:
    setting = make_setting(turbulent, Workload(vcpus=vcpus, hours=1.0, cap=1.0))
    fast, plain = both(setting, name, EVALUATE.start_s)
    assert fast == plain
    assert {entry.vcpus for entry in fast if entry.kind is EntryKind.REQUEST} == {1}


def test_a_refused_request_is_no_first_allocation() -> None:
    """The first machines boot; later ones restart from a checkpoint. Those that were refused were never there."""
    start_s = EVALUATE.start_s
    rows = [(start_s - 100, 150_000), (start_s + 30, 300_000), (start_s + 600, 150_000)]
    history = history_of({"c4.xlarge@us-east-1a": rows}, start_s + 86_400)
    setting = make_setting(history, Workload(hours=2.0), Bidding(grant_delay_s=60))
    fast, plain = both(setting, "standard_checkpoint", start_s)
    assert fast == plain
    assert EntryKind.REFUSED in {entry.kind for entry in fast}


@pytest.mark.parametrize("rules", ["hourly_2016", "per_second"])
def test_a_charge_that_is_rounded_to_nothing_is_no_line(rules: str) -> None:
    start_s = EVALUATE.start_s
    history = history_of({"c4.xlarge@us-east-1a": [(start_s - 100, 1)]}, start_s + 86_400)
    setting = make_setting(history, Workload(vcpus=1, hours=2.5), rules=rules)
    fast, plain = both(setting, "standard_checkpoint", start_s)
    assert fast == plain


def test_slots_that_are_let_go_again_before_the_hours_of_others_end() -> None:
    """Grants take so long that three sets of slots are there at once, each of them the whole cap."""
    start_s, names = EVALUATE.start_s, [f"c4.xlarge@us-east-1{zone}" for zone in "abc"]
    rows: dict[str, list[tuple[int, int]]] = {name: [(start_s - 30 * 86_400, 200_000)] for name in names}
    for number in range(12):
        # A little before each decision another market becomes the cheapest by far.
        at_s = start_s + 3480 * number - 100
        rows[names[number % 3]].append((at_s, int(150_000 * 0.8**number)))
    setting = make_setting(
        history_of(rows, start_s + 40 * 3600),
        Workload(hours=6.0),
        Bidding(grant_delay_s=3479, slot_vcpus=39),
    )
    fast, plain = both(setting, "renewal", start_s)
    assert fast == plain


@pytest.mark.parametrize("name", ["renewal", "one_hour_oracle"])
def test_decisions_that_are_due_before_their_hour_begins_are_not_made(turbulent, name: str) -> None:
    job = Workload(hours=2.0, engine=Engine(boot_s=1800))
    setting = make_setting(turbulent, job, Bidding(grant_delay_s=3000))
    for number in range(4):
        fast, plain = both(setting, name, EVALUATE.start_s + 50_021 * number)
        assert fast == plain
        assert EntryKind.LET_GO not in {entry.kind for entry in fast}


@given(
    seed=st.integers(0, 10**6),
    character=st.sampled_from([Character.CALM, Character.TURBULENT]),
    name=st.sampled_from(COMPILED),
    rules=st.sampled_from(["hourly_2016", "per_second"]),
    offset=st.integers(0, 3 * 86_400),
)
@settings(deadline=None, derandomize=True, max_examples=examples(40))
def test_on_any_made_market(seed: int, character: Character, name: str, rules: str, offset: int) -> None:
    window = Interval.parse("2016-03-18/2016-03-25")
    markets = [(kind, zone, ON_DEMAND[kind]) for kind in ON_DEMAND for zone in ("us-east-1a", "us-east-1b")]
    history = generate(markets, window, character, seed)
    train = Interval.parse("2016-03-18/2016-03-20")
    setting = make_setting(history, Workload(hours=3.0), rules=rules, train=train)
    fast, plain = both(setting, name, EVALUATE.start_s + offset)
    assert fast == plain


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_on_many_starts(turbulent, name: str) -> None:
    setting = make_setting(turbulent, Workload(hours=20.0))
    for number in range(40):
        fast, plain = both(setting, name, EVALUATE.start_s + 20_011 * number)
        assert fast == plain


def test_a_job_that_outlives_the_history_is_unfinished_in_both(turbulent) -> None:
    setting = make_setting(turbulent, Workload(hours=20.0))
    fast, plain = both(setting, "proteus", turbulent.end_s - 7200)
    assert fast == plain
