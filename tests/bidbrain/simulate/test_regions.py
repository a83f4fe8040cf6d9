"""Pools of several regions as one fleet: traffic in the bill, in the tables, and in what is bought."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.carried import traffic_lines
from bidbrain.accounts.ledger import Carriage, Entry, EntryKind, lines_of, read_ledgers, write_ledgers
from bidbrain.accounts.rebill import rebill
from bidbrain.billing.traffic import Routes, packaged_prices
from bidbrain.config import ConfigError, SimulateConfig
from bidbrain.history.locations import location_of
from bidbrain.history.prices import History, Market
from bidbrain.policy.registry import SCHEMES
from bidbrain.report.tables import rich_tables
from bidbrain.setting import Workload
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.experiment import compare, summarise
from bidbrain.simulate.plan import make_plan
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.simulator import simulate
from bidbrain.simulate.workers import Pool
from tests.bidbrain.makers import EVALUATE, HOUR, history_of, made_trace, make_setting, pool
from tests.bidbrain.policy.test_today import run, setting_of
from tests.thorough import examples

ZONES = ("us-east-1a", "us-east-1b", "us-west-2a")
TYPES = {"node": (1_000_000, 1), "big": (2_000_000, 2)}

STAYS = st.lists(
    st.tuples(
        st.sampled_from([*ZONES, "on-demand"]),
        st.sampled_from(["node", "big"]),
        *(st.integers(1, 4), st.integers(0, 200), st.integers(1, 200)),
    ),
    min_size=1,
    max_size=6,
)


def entries_of(stays) -> list[Entry]:
    found = []
    for number, (zone, kind, machines, begin_s, length_s) in enumerate(stays):
        what = (number, Market(kind, zone), machines * TYPES[kind][1])
        found.append(Entry(begin_s, EntryKind.GRANT, *what))
        found.append(Entry(begin_s + length_s, EntryKind.TERMINATION, *what))
    return sorted(found, key=lambda entry: entry.at_s)


@given(STAYS)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_the_lines_are_what_each_pair_of_machines_moves_second_by_second(stays) -> None:
    # A GB per second and machine, and from second 100 on two.
    carriage = Carriage(((0, 3600.0), (100, 7200.0)), "us-east-1b", packaged_prices())
    routes = Routes(carriage.home)
    expected: dict[str, float] = {}
    for second in range(400):
        machines = [
            "us-east-1b" if zone == "on-demand" else zone
            for zone, _, count, begin_s, length_s in stays
            if begin_s <= second < begin_s + length_s
            for _ in range(count)
        ]
        for i, one in enumerate(machines):
            for other in machines[:i]:
                if one != other:
                    key = ">".join(sorted((one, other)))
                    expected[key] = expected.get(key, 0.0) + (1 + (second >= 100)) / (len(machines) - 1)
    lines = traffic_lines(entries_of(stays), TYPES, carriage, 400)
    assert {line.route: line.megabytes for line in lines} == pytest.approx(
        {route: moved * 1000 for route, moved in expected.items()}, abs=1
    )
    for line in lines:
        one, other = (location_of(zone) for zone in line.route.split(">"))
        assert line.price == routes.price(one, other) == 20_000
        assert line.micro_usd == pytest.approx(line.price * line.megabytes / 1000, abs=1)


def two_regions(gb_per_h: float, near: float = 0.3, far: float = 0.28):
    """Pools that never fail, one in each region."""
    traces = [pool("us-east-1a_near", [16] * 60), pool("us-west-2a_far", [16] * 60)]
    shares = {"us-east-1a_near": near, "us-west-2a_far": far}
    more = {"traffic_gb_per_h": gb_per_h} if gb_per_h else {}
    return setting_of(traces, spot_shares=shares, **more)


def zones_held(ledger) -> set[str]:
    return {entry.market.zone for entry in ledger.entries if entry.kind is EntryKind.GRANT}


def test_a_job_goes_where_price_and_traffic_are_least() -> None:
    for gb_per_h in (0.0, 100.0):
        _, ledger = run(two_regions(gb_per_h), "expected_cost")
        # No reliable machine stays at home, so the whole fleet goes to the cheaper region, and no byte leaves it.
        assert zones_held(ledger) == {"us-west-2a_far"}
        assert ledger.traffic_micro_usd == 0


def test_a_fleet_is_not_torn_apart_for_a_price_that_is_a_little_less() -> None:
    counts = {"us-east-1a_near": [16] * 60, "us-west-2a_far": [8] * 60}
    traces = [pool(name, own) for name, own in counts.items()]
    shares = {"us-east-1a_near": 0.3, "us-west-2a_far": 0.28}
    bill = {}
    for gb_per_h in (0.1, 20.0):
        setting = setting_of(traces, spot_shares=shares, traffic_gb_per_h=gb_per_h)
        for scheme in ("expected_cost", "elastic"):
            outcome, ledger = run(setting, scheme)
            bill[scheme, gb_per_h] = outcome
            assert rebill(ledger, setting.history).differences == ()
            assert ledger.micro_usd == outcome.micro_usd
            assert ledger.traffic_micro_usd == outcome.traffic_micro_usd
    # elastic takes the cheaper nodes wherever they are; half of what each moves then goes between the regions.
    assert bill["elastic", 20.0].traffic_micro_usd > 2_000_000
    # expected_cost asks there too, is given half, and brings it back as soon as the others are ready.
    assert bill["expected_cost", 20.0].traffic_micro_usd < 600_000
    assert bill["expected_cost", 20.0].micro_usd < 0.85 * bill["elastic", 20.0].micro_usd
    assert bill["expected_cost", 0.1].traffic_micro_usd > 0.9 * bill["elastic", 0.1].traffic_micro_usd


def test_a_changed_line_of_traffic_is_found(tmp_path: Path) -> None:
    traces = [pool("us-east-1a", [8] * 60), pool("us-west-2a", [8] * 60)]
    setting = setting_of(traces, traffic_gb_per_h=5.0)
    _, ledger = run(setting, "elastic")
    write_ledgers(tmp_path / "ledger.jsonl", [ledger])
    (again,) = read_ledgers(tmp_path / "ledger.jsonl")
    assert again == ledger
    assert rebill(again, setting.history).differences == ()
    line = json.loads(list(lines_of(ledger))[-1])
    assert (line["kind"], line["route"]) == ("traffic", "us-east-1a>us-west-2a")
    dearer = replace(again.entries[-1], micro_usd=again.entries[-1].micro_usd + 1)
    (said,) = rebill(replace(again, entries=(*again.entries[:-1], dearer)), setting.history).differences
    assert "of traffic us-east-1a>us-west-2a, by its machines it is" in said
    (said,) = rebill(replace(again, entries=again.entries[:-1]), setting.history).differences
    assert "the ledger has 0.000000 $ of traffic" in said


def test_prices_of_two_regions_are_one_fleet_for_compiled_policies_too() -> None:
    rows = {
        "c4.xlarge@us-east-1a": [(0, 60_000)],
        "c4.xlarge@us-west-2a": [(0, 30_000)],
    }
    history: History = history_of(rows, EVALUATE.end_s)
    setting = replace(make_setting(history, Workload(hours=2.0)), routes=Routes("us-east-1a"))
    carrying = setting.with_job(replace(setting.job, traffic_gb_per_h=3.0))
    for name in ("proteus", "renewal"):
        scheme = SCHEMES[name]
        own, free = scheme.setting(carrying), scheme.setting(setting)
        start_s = EVALUATE.start_s
        fast, ledger = CompiledSimulator(own, scheme).ledger(start_s, "job")
        plain, _ = simulate(own, name, scheme.make(own, start_s), start_s, scheme.reliable)
        assert fast == plain == CompiledSimulator(own, scheme).outcomes([start_s])[0]
        cheap = CompiledSimulator(free, scheme).outcomes([start_s])[0]
        assert fast.micro_usd == cheap.micro_usd + fast.traffic_micro_usd
        assert fast.traffic_micro_usd == ledger.traffic_micro_usd > 0  # reliable machines stay at home


def test_the_tables_have_a_column_of_traffic_where_there_is_some() -> None:
    traces = [made_trace(name, 16, 400, 6.0, 2.0, 5) for name in ("us-east-1a", "us-west-2a", "eu-west-1a")]
    tables = {}
    for gb_per_h in (0.0, 2.0):
        more = {"traffic_gb_per_h": gb_per_h} if gb_per_h else {}
        config = SimulateConfig(job_hours=[5.0], starts=6, schemes=["elastic", "expected_cost"], **more)
        plan = make_pool_plan(config, traces)
        with Pool(1) as processes:
            results = plan.experiment.run(processes, lambda _: None)
        rows = {result.scheme: summarise(result, 0) for result in results}
        tables[gb_per_h] = rows
        (shown,) = rich_tables(list(rows.values()), "test")
        assert [column.header for column in shown.columns].count("traffic") == (gb_per_h > 0)
        assert compare(results, 0)
    assert tables[0.0]["elastic"].traffic == 0.0
    for row in tables[2.0].values():
        assert 0 < row.traffic < row.cost


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        (("a", "us-east-1a"), {"traffic_gb_per_h": 1.0}, "traffic: a names no zone of AWS"),
        (("us-east-1a",), {"home": "us-east-1a"}, "home is given without traffic_gb_per_h"),
        (("us-east-1a",), {"traffic_gb_per_h": 1.0, "home": "here"}, "traffic: here names no zone"),
        (
            ("us-east-1a", "me-south-1a"),
            {"traffic_gb_per_h": 1.0},
            "what data costs from me-south-1 to us-east-1 is not known",
        ),
        (
            ("us-east-1a",),
            {"traffic_gb_per_h": 1.0, "traffic_usd_per_gb": {"east>west": 1.0}},
            "found the route 'east>west', expected",
        ),
        (("us-east-1a",), {"spot_shares": {"us-east-1b": 0.2}}, "spot_shares: us-east-1b is no pool"),
    ],
)
def test_what_cannot_be_priced_is_one_sentence(names, options, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_pool_plan(SimulateConfig(job_hours=[2.0], **options), [pool(name, [4] * 900) for name in names])


def test_a_history_of_prices_takes_the_same_keys() -> None:
    end_s = EVALUATE.end_s
    rows = {f"c4.xlarge@{zone}": [(EVALUATE.start_s - 900 * HOUR, 50_000)] for zone in ZONES}
    windows = {"train": "2016-03-01/2016-03-20", "evaluate": "2016-03-20/2016-04-05"}
    config = SimulateConfig(job_hours=[2.0], traffic_gb_per_h=2.0, home="us-west-2a", **windows)
    setting = make_plan(config, history_of(rows, end_s)).experiment.setting
    assert setting.routes is not None
    home = setting.routes.place(setting.reliable.market)
    assert home.region == "us-west-2"
    places = [setting.routes.place(market) for market in setting.markets]
    assert np.count_nonzero(setting.routes.matrix(places)) == 6
