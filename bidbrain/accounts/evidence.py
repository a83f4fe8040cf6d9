"""The risk of pools as one job's ledger shows it: the same entries give the same odds, simulated or live. Pure."""

from __future__ import annotations

from collections.abc import Callable

from bidbrain.accounts.account import JobAccount
from bidbrain.accounts.ledger import ENDINGS, Entry, EntryKind
from bidbrain.history.prices import Market
from bidbrain.risk.book import Hazard, Known, RiskBook
from bidbrain.risk.tally import Tally, Watch
from bidbrain.setting import ON_DEMAND_ZONE


class LedgerRisk:
    """Reads an account's entries into a risk book, when it is asked. known: the observations before the job."""

    def __init__(
        self, account: JobAccount, vcpus_per_machine: Callable[[Market], int], known: Callable[[], Known]
    ) -> None:
        self._account, self._per_machine, self._known = account, vcpus_per_machine, known
        self._book: RiskBook | None = None
        self._read = 0
        self._seen, self._tallied = Watch(), 0  # what the first so many entries say, for other jobs

    def hazard(self, market: Market, now_s: int, age_h: float = 0.0) -> Hazard:
        """The odds of a machine of this age in a pool now, with all that the ledger says by now."""
        return self._following().hazard(market, now_s, age_h)

    def know(self, known: Known) -> None:
        """Other jobs saw more since."""
        self._following().know(known)

    def tally(self, now_s: int) -> Tally:
        """The losses and node hours of this job up to now, for other jobs to read. The book itself does not change."""
        for entry in self._account.entries[self._tallied :]:
            self._take(self._seen, entry)
            self._tallied += 1
        until_now = self._seen.copied()
        until_now.count(now_s)
        return until_now.tally

    def _following(self) -> RiskBook:
        if self._book is None:
            self._book = RiskBook(self._known())
        entries = self._account.entries
        while self._read < len(entries):
            self._take(self._book, entries[self._read])
            self._read += 1
        return self._book

    def _take(self, taker: RiskBook | Watch, entry: Entry) -> None:
        market, number = entry.market, entry.allocation
        if market is None or number is None or market.zone == ON_DEMAND_ZONE:
            return
        if entry.kind is EntryKind.GRANT:
            assert entry.vcpus is not None
            taker.granted(entry.at_s, number, market, -(-entry.vcpus // self._per_machine(market)))
        elif entry.kind is EntryKind.REFUSED:
            if entry.reason is None:  # else a quota or a limit refused, not the pool
                taker.refused(entry.at_s, market)
        elif entry.kind is EntryKind.NOTICE:
            taker.hinted(entry.at_s, market)
        elif entry.kind in ENDINGS:
            taker.ended(entry.at_s, number, evicted=entry.kind is EntryKind.EVICTION)
