"""A third party's bill: ours from the history alone, and a second one that steps through every second."""

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.ledger import EntryKind, Ledger, LedgerError, lines_of, read_ledgers, write_ledgers
from bidbrain.accounts.rebill import rebill
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.policy.base import Decision, GiveBack, MarketView, Request
from bidbrain.policy.registry import SCHEMES
from bidbrain.setting import Setting, Workload
from bidbrain.simulate.compiled import CompiledSimulator
from bidbrain.simulate.simulator import simulate
from tests.bidbrain.makers import EVALUATE, make_setting


def ledgers(setting: Setting, names: tuple[str, ...], jobs: int) -> list[Ledger]:
    found = []
    for name in names:
        scheme = SCHEMES[name]
        own = scheme.setting(setting)
        fast = CompiledSimulator(own, scheme)
        found += [fast.ledger(EVALUATE.start_s + 30_011 * n, f"{name}-{n}")[1] for n in range(jobs)]
    return found


def second_by_second(lines: list[dict], prices: dict[str, list[tuple[int, int]]]) -> int:
    """The bill of one job in micro-dollars, from its JSON lines and raw price rows; knows nothing of our code.

    Every allocation is walked one second at a time: a new hour starts every 3600 s at the last price seen.
    """
    from datetime import datetime

    head = lines[0]
    when = lambda line: int(datetime.fromisoformat(line["at"]).timestamp())  # noqa: E731
    half_up = lambda amount: int(amount + Fraction(1, 2)) if amount >= 0 else -int(-amount + Fraction(1, 2))  # noqa: E731
    ends = {
        line["allocation"]: line for line in lines if line["kind"] in ("eviction", "termination", "job_end")
    }
    total = 0
    for grant in (line for line in lines if line["kind"] == "grant"):
        kind, _, zone = grant["market"].partition("@")
        machines = Fraction(grant["vcpus"], head["types"][kind][1])
        end = ends[grant["allocation"]]
        if zone == "on-demand":
            seconds = when(end) - when(grant)
            total += half_up(machines * head["on_demand"][kind] * Fraction(seconds, 3600))
            continue
        rows = prices[grant["market"]]
        index = max(i for i, row in enumerate(rows) if row[0] <= when(grant))
        hour_price, used, hour, charged = rows[index][1], 0, 0, []
        for now in range(when(grant), when(end)):
            while index + 1 < len(rows) and rows[index + 1][0] <= now:
                index += 1
            if used == 3600:
                charged.append((hour, hour_price, 3600))
                hour, hour_price, used = hour + 1, rows[index][1], 0
            used += 1
        charged.append((hour, hour_price, used))
        for number, price, seconds in charged:
            last = number == charged[-1][0]
            whole = half_up(machines * price)
            if head["rules"] == "hourly_2016":
                if last and end["kind"] == "eviction" and seconds < 3600:
                    continue
                if last and end["kind"] == "job_end":
                    whole = half_up(machines * price * Fraction(seconds, 3600))
            else:
                free = head["rules"] == "per_second" and number == 0 and seconds < 3600
                if last and end["kind"] == "eviction" and free:
                    continue
                least = max(seconds, 60) if number == 0 else seconds
                whole = half_up(machines * price * Fraction(least, 3600))
            total += whole
    return total


@pytest.mark.parametrize(
    "rules", ["hourly_2016", pytest.param("per_second", marks=pytest.mark.slow), "per_second_paid"]
)
def test_both_bills_agree_to_the_micro_dollar(turbulent, rules: str) -> None:
    prices: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for at_s, kind, zone, _, price in rows_of(turbulent):
        prices[f"{kind}@{zone}"].append((at_s, price))
    setting = make_setting(turbulent, Workload(hours=3.3), rules=rules)
    for ledger in ledgers(setting, ("standard_checkpoint", "proteus", "renewal"), 2):
        audit = rebill(ledger, turbulent)
        assert audit.differences == ()
        assert audit.lines > 0
        assert audit.ledger_micro_usd == audit.history_micro_usd == ledger.micro_usd
        lines = [json.loads(line) for line in lines_of(ledger)]
        assert second_by_second(lines, prices) == ledger.micro_usd


@pytest.mark.parametrize("scale", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_many_jobs_of_each_scheme(turbulent, scale: int) -> None:
    setting = make_setting(turbulent, Workload(hours=2.0))
    for name in ("standard_checkpoint", "proteus", "renewal"):
        scheme = SCHEMES[name]
        fast = CompiledSimulator(scheme.setting(setting), scheme)
        for number in range(scale):
            audit = rebill(fast.ledger(EVALUATE.start_s + 5_003 * number, f"{number}")[1], turbulent)
            assert audit.differences == ()


class BackAtTheBoundary:
    """Holds one allocation, and gives it back at the instant at which its second hour begins."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self._end_s = start_s + 3600

    def decide(self, now_s: int, view: MarketView) -> Decision:
        offer = view.offers[0]
        if now_s >= self._end_s:
            return Decision(tuple(GiveBack(held.number) for held in view.holdings), "at the boundary")
        held = (Request(offer.market, 8, 10 * offer.on_demand),) if not view.holdings else ()
        return Decision(held, "one allocation", self._end_s)


@pytest.mark.parametrize("rules", ["hourly_2016", "per_second"])
def test_what_is_given_back_when_its_next_hour_has_begun(turbulent, rules: str) -> None:
    setting = make_setting(turbulent, Workload(vcpus=8, hours=9.0), rules=rules)
    start_s = EVALUATE.start_s
    _, ledger = simulate(setting, "back", BackAtTheBoundary(setting, start_s), start_s, True)
    assert [entry.at_s - start_s for entry in ledger.entries if entry.kind is EntryKind.TERMINATION] == [3600]
    audit = rebill(ledger, turbulent)
    assert audit.differences == ()
    assert audit.history_micro_usd == ledger.micro_usd


def test_a_ledger_survives_its_file(turbulent, tmp_path: Path) -> None:
    written = ledgers(make_setting(turbulent), ("proteus", "renewal"), 2)
    path = tmp_path / "ledger.jsonl"
    assert write_ledgers(path, written) == 4
    assert list(read_ledgers(path)) == written
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.jsonl"]


@pytest.fixture(scope="module")
def one_job(turbulent) -> Ledger:
    (ledger,) = ledgers(make_setting(turbulent, Workload(hours=3.0)), ("renewal",), 1)
    return ledger


@given(data=st.data())
@settings(deadline=None, derandomize=True, max_examples=25)
def test_any_change_of_a_ledger_is_found(turbulent, one_job: Ledger, data: st.DataObject) -> None:
    ledger = one_job
    money = [i for i, entry in enumerate(ledger.entries) if entry.micro_usd]
    index = data.draw(st.sampled_from(money))
    entry = ledger.entries[index]
    change = data.draw(
        st.sampled_from(
            [
                replace(entry, micro_usd=(entry.micro_usd or 0) + 1),
                replace(entry, at_s=entry.at_s + 1),
                None,
            ]
        )
    )
    entries = [*ledger.entries[:index], *([change] if change else []), *ledger.entries[index + 1 :]]
    audit = rebill(Ledger(ledger.header, tuple(entries)), turbulent)
    assert audit.differences
    assert all("\n" not in sentence for sentence in audit.differences)


def test_an_eviction_that_no_price_explains_is_named(turbulent) -> None:
    (ledger,) = ledgers(make_setting(turbulent, Workload(hours=3.0)), ("standard_agileml",), 1)
    entries = tuple(
        replace(entry, kind=EntryKind.EVICTION)
        if entry.kind is EntryKind.JOB_END and entry.allocation == 0
        else entry
        for entry in ledger.entries
    )
    audit = rebill(Ledger(ledger.header, entries), turbulent)
    assert any("evicted at" in sentence for sentence in audit.differences)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no jobs in this ledger"),
        ("[" * 200_000, "line 1: not a ledger line"),
        ("not json\n", "line 1: not a ledger line"),
        (
            '{"job": "a", "at": "2016-01-01", "kind": "grant"}\n',
            "line 1: an event of job 'a' without its header",
        ),
        ('{"kind": "job"}\n', "line 1: not a ledger line"),
        ("\x1f\udc8b\udcff", "line 1: not a ledger line"),  # as a .gz begins
        (
            '{"kind": "job", "job": "a", "scheme": "s", "at": "2016-01-01", "job_hours": 1, "rules": "per_second",'
            ' "types": {"m": [100, 0]}, "on_demand": {}}',
            "line 1: not a ledger line .*the type m has 0 vCPUs",
        ),
    ],
)
def test_what_is_no_ledger_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(LedgerError, match=sentence):
        list(read_ledgers(path))


def test_an_on_demand_machine_without_a_price_is_a_difference(turbulent) -> None:
    (ledger,) = ledgers(make_setting(turbulent), ("proteus",), 1)
    audit = rebill(replace(ledger, header=replace(ledger.header, on_demand={})), turbulent)
    assert "allocation -1: the header has no on-demand price of c4.xlarge" in audit.differences


def test_a_history_without_the_market_is_a_difference(turbulent, tmp_path: Path) -> None:
    (ledger,) = ledgers(make_setting(turbulent), ("proteus",), 1)
    other = turbulent.select([m for m in turbulent.markets if m.zone == "us-east-1b"])
    assert any("is not in the history" in sentence for sentence in rebill(ledger, other).differences)
    write_rows(tmp_path / "h.csv", rows_of(other))
