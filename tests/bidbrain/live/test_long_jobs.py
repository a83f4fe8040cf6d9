"""A job of weeks: what it asks of its account again and again costs no more with each entry that there is."""

from __future__ import annotations

from typing import Any

from bidbrain.accounts.account import JobAccount
from bidbrain.accounts.carried import Carried, traffic_lines
from bidbrain.accounts.evidence import LedgerRisk
from bidbrain.accounts.ledger import Carriage, Entry
from bidbrain.billing import RULES, Ending
from bidbrain.billing.traffic import packaged_prices
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Order
from bidbrain.live.guards import Guards, affordable, exposure, spent
from bidbrain.live.replay import InstantLauncher, Replay
from bidbrain.money import HOUR_S
from bidbrain.risk.book import Known
from tests.bidbrain.makers import pool
from tests.bidbrain.policy.test_today import setting_of

MARKETS = [Market("c5.xlarge", f"us-east-1{zone}") for zone in "abc"]
TYPES = {"c5.xlarge": (170_000, 4)}


class Counted(list[Entry]):
    """Entries that count how many of them are looked at."""

    looked = 0

    def __iter__(self) -> Any:
        self.looked += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looked += len(found) if isinstance(at, slice) else 1
        return found


def live(account: JobAccount, first_h: int, hours: int) -> None:
    """Hours in each of which a machine is lost and another bought."""
    for hour in range(first_h, first_h + hours):
        now_s = hour * HOUR_S
        if len(account.open) == 6:
            account.end(now_s - 1200, account.open[0], Ending.EVICTED)
        for each in list(account.open):
            account.next_hour(now_s, each, 50_000 + hour)
        while len(account.open) < 6:
            market = MARKETS[hour % 3]
            what = account.request(now_s, market, 4, 4, 100_000, now_s, "cheap")
            account.grant(now_s, what, 50_000 + hour)


def account_of(hours: int) -> tuple[JobAccount, Counted]:
    account, entries = JobAccount(RULES["per_second"]), Counted()
    account.entries = entries
    live(account, 1, hours)
    entries.looked = 0
    return account, entries


def test_what_is_spent_is_known_without_adding_up_the_ledger() -> None:
    account, entries = account_of(60)
    guards = Guards(budget=10**9)
    assert affordable(guards, account, 60 * HOUR_S, 5) is None
    assert exposure(account, 60 * HOUR_S, 61 * HOUR_S) > spent(account) > 0
    assert entries.looked == 0
    assert spent(account) == sum(entry.micro_usd or 0 for entry in entries)


def test_traffic_reads_each_entry_once_and_comes_to_the_same() -> None:
    account, entries = account_of(0)
    rates: list[tuple[int, float]] = [(1800, 2.5)]
    carriage = Carriage(tuple(rates), "us-east-1a", packaged_prices())
    carried = Carried(TYPES, carriage)
    for hour in range(1, 40):
        live(account, hour, 1)
        now_s = hour * HOUR_S + 600
        if hour % 7 == 0:
            rates.append((hour * HOUR_S, 1.0 + hour))
        entries.looked = 0
        lines = carried.lines(entries, rates, now_s)
        assert entries.looked <= 20
        anew = Carriage(tuple(rates), "us-east-1a", packaged_prices())
        assert lines == traffic_lines(entries, TYPES, anew, now_s)
    assert len(lines) == 3


def test_a_rate_that_begins_before_what_was_read_counts_from_there_on() -> None:
    _, entries = account_of(10)
    rates = [(0, 2.0)]
    carried = Carried(TYPES, Carriage((), "us-east-1a", packaged_prices()))
    carried.lines(entries, rates, 11 * HOUR_S)
    rates.append((10 * HOUR_S - 3000, 90.0))
    carriage = Carriage(tuple(rates), "us-east-1a", packaged_prices())
    assert carried.lines(entries, rates, 11 * HOUR_S) == traffic_lines(
        list(entries), TYPES, carriage, 11 * HOUR_S
    )


def test_what_a_job_tells_other_jobs_of_its_pools_reads_each_entry_once() -> None:
    account, entries = account_of(48)
    risk = LedgerRisk(account, lambda market: 4, Known)
    first = list(risk.tally(48 * HOUR_S + 60).lines())
    assert entries.looked == len(entries)
    entries.looked = 0
    assert list(risk.tally(48 * HOUR_S + 60).lines()) == first
    assert entries.looked == 0
    live(account, 49, 2)
    entries.looked = 0
    later = risk.tally(50 * HOUR_S + 60)
    assert entries.looked < 40
    anew = LedgerRisk(account, lambda market: 4, Known).tally(50 * HOUR_S + 60)
    assert list(later.lines()) == list(anew.lines())
    assert sum(cell.lost for cell in later.cells.values()) == 49


def test_a_played_market_looks_at_what_lives_and_not_at_all_that_was_ever_bought() -> None:
    looked = 0

    class Lots(dict[str, Any]):
        def values(self) -> Any:
            nonlocal looked
            looked += len(self)
            return super().values()

        def items(self) -> Any:
            nonlocal looked
            looked += len(self)
            return super().items()

    now_s = 3600
    setting = setting_of([pool("a", [50] * 40)])
    replay = Replay(setting, lambda: now_s, InstantLauncher())
    replay._lots, replay._open = Lots(), Lots()
    by_purchase = []
    for number in range(120):
        looked, now_s = 0, now_s + 60
        replay.acquire(Order(f"job-{number}", setting.markets[0], 1, 1, 10**6))
        held = replay.held()
        assert replay.notices() == ()
        if len(held) > 3:
            replay.release((held[0].instance_id,))
        by_purchase.append(looked)
    assert by_purchase[-1] == by_purchase[9] < 60
    assert [each.token for each in replay.held()] == ["job-117", "job-118", "job-119"]
