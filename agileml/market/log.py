"""Writes the market's events to the run's log: decisions with reasons, purchases, ends, prices, spend, estimates.

A service is continued from its journal; people and the report read these events. Money in dollars, `market_s` is market
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from agileml.events.market import (
    AllocationEnded,
    Billed,
    DecisionTaken,
    EstimatesChanged,
    InstanceAtRisk,
    InstanceNoticed,
    InstancesBought,
    MarketClosing,
    MarketDraining,
    PricesChanged,
    PurchaseRefused,
    StepPassed,
    StrayFound,
)
from agileml.events.run import Warned
from agileml.events.schema import RunEvent
from agileml.events.terms import AllocationEnding
from agileml.runs.event_log import read_backwards
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Alert, Cloud, CloudError
from bidbrain.live.decide import Measurements
from bidbrain.live.guards import exposure
from bidbrain.live.job import Log
from bidbrain.live.journal import (
    Answered,
    Buy,
    BuyOnDemand,
    Closing,
    Decided,
    Draining,
    Ended,
    Mark,
    Noticed,
    Ordered,
    Passed,
    Record,
    Step,
    Stray,
    Troubled,
)
from bidbrain.live.state import JobState
from bidbrain.money import usd

SPEND_S = 120  # market seconds between two events of an unchanged spend
JUMP = 0.01


def last_measured(events: Path) -> Measurements:
    """The last measurements in the log of a run. Raises SchemaError, OSError."""
    for each in read_backwards(events):
        if isinstance(each.event, EstimatesChanged):
            found = each.event
            seconds = (found.lambda_s, found.sigma_s)
            return Measurements(found.phi, *seconds, dict(found.nu), found.traffic_gb_per_h)
    return Measurements()


class Writer(Protocol):
    """The run's log."""

    def write(self, event: RunEvent, *, t_s: float | None = None) -> None: ...


def show_step(step: Step) -> str:
    """One step of a decision for people."""
    match step:
        case Buy(market, vcpus, _, bid):
            return f"buy {vcpus} vCPUs of {market}, bid {usd(bid):.4f} $/h"
        case BuyOnDemand(vcpus):
            return f"buy {vcpus} vCPUs on demand"
        case Mark(what, number):
            return f"{what.value.replace('_', ' ')} allocation {number}"


class MarketLog:
    """Writes an event for each record of a journal, and for changes of prices, spend and estimates."""

    def __init__(self, log: Writer) -> None:
        self._log = log
        self.decision = ""  # the reason of the last decision with steps
        self.spent_usd = 0.0
        self.state: JobState | None = None  # as it is while a line is appended
        self._spend_due_s = 0
        self._ordered: dict[int, Ordered] = {}
        self._prices: dict[Market, int] = {}
        self._measured = Measurements()
        self._troubles: tuple[str, ...] = ()

    def of(self, journal: Log) -> Log:
        """A journal that appends to `journal` and writes each record as an event too."""
        return _LoggedJournal(journal, self.tell)

    def recall(self, records: Iterable[Record]) -> None:
        """Take up what an earlier process of the run has written."""
        for record in records:
            match record:
                case Decided() if record.steps:
                    self.decision = record.reason
                case Ordered():
                    self._ordered[record.order] = record
                case Troubled():
                    self._troubles = record.sentences

    def tell(self, record: Record) -> None:
        """Write a record of the journal as an event of the run."""
        match record:
            case Decided():
                self._decided(record)
            case Ordered():
                self._ordered[record.order] = record
            case Answered():
                self._answered(record)
            case Ended():
                allocation = None if self.state is None else self.state.account.find(record.number)
                market = "-" if allocation is None else str(allocation.market)
                ending = AllocationEnding(record.ending.value)
                self._log.write(AllocationEnded(record.at_s, record.number, ending, market))
            case Noticed():
                for notice in record.notices:
                    kind = InstanceAtRisk if notice.alert is Alert.REBALANCE else InstanceNoticed
                    self._log.write(kind(record.at_s, notice.instance_id, notice.deadline_s))
            case Passed():
                self._log.write(StepPassed(record.at_s, record.why))
            case Stray():
                self._log.write(StrayFound(record.at_s, record.instance.instance_id))
            case Troubled():
                self._troubled(record.sentences)
            case Draining():
                self._log.write(MarketDraining(record.at_s, record.reason, record.code))
            case Closing():
                self._log.write(MarketClosing(record.at_s, record.reason, record.code))
            case _:
                pass

    def _decided(self, record: Decided) -> None:
        steps = tuple(show_step(step) for step in record.steps)
        if steps:
            self.decision = record.reason
        figures = record.figures
        self._log.write(
            DecisionTaken(
                record.at_s,
                steps,
                record.reason,
                offers=figures.offers,
                held_vcpus=figures.held_vcpus,
                phi=figures.phi,
                lambda_s=figures.lambda_s,
                sigma_s=figures.sigma_s,
            )
        )

    def _troubled(self, sentences: tuple[str, ...]) -> None:
        """Log troubles that are new, and those that are over."""
        for sentence in sentences:
            if sentence not in self._troubles:
                self._log.write(Warned(f"market: {sentence}"))
        for sentence in self._troubles:
            if sentence not in sentences:
                self._log.write(Warned(f"market: no longer so: {sentence}"))
        self._troubles = sentences

    def _answered(self, record: Answered) -> None:
        ordered = self._ordered[record.order]
        market, bid_usd = str(ordered.market), usd(ordered.bid)
        if not record.instances:
            self._log.write(PurchaseRefused(record.at_s, market, bid_usd, ordered.reliable, record.why))
            return
        self._log.write(
            InstancesBought(
                record.at_s,
                market,
                tuple(instance.instance_id for instance in record.instances),
                self._allocations(record.order),
                price_usd_per_h=usd(record.price),
                bid_usd_per_h=bid_usd,
                reliable=ordered.reliable,
            )
        )

    def _allocations(self, order: int) -> tuple[int, ...]:
        pending = None if self.state is None else self.state.pending.get(order)
        return () if pending is None else tuple(pending.numbers)

    def stand(
        self, now_s: int, state: JobState, cloud: Cloud, measured: Measurements, *, is_last: bool = False
    ) -> None:
        """Write events of what changed since the last call; the spend in any case if `is_last`."""
        spent = exposure(state.account, now_s, now_s)
        if is_last:  # the ledger gives parts of the last hours back, the market does not
            spent += state.ledger().given_back
        before_usd, self.spent_usd = self.spent_usd, round(usd(spent), 6)
        # Reliable machines cost a little all the time, spot machines cost by the hour.
        jumped = abs(self.spent_usd - before_usd) > JUMP * before_usd
        if jumped or is_last or now_s >= self._spend_due_s:
            self._spend_due_s = now_s + SPEND_S
            self._log.write(Billed(now_s, self.spent_usd, state.account.spot_vcpus))
        try:
            prices = {offer.market: offer.price for offer in cloud.quotes(now_s).offers}
        except CloudError:
            prices = self._prices  # the service gets the same error, and decides what to do
        if new := {str(m): usd(price) for m, price in prices.items() if self._prices.get(m) != price}:
            self._log.write(PricesChanged(now_s, new))
        self._prices = prices
        if measured != self._measured:
            self._measured = measured
            self._log.write(
                EstimatesChanged(
                    *(now_s, measured.phi, measured.lambda_s, measured.sigma_s),
                    *(measured.nu, measured.traffic_gb_per_h),
                )
            )


class _LoggedJournal:
    """A journal that passes each record on."""

    def __init__(self, journal: Log, tell: Callable[[Record], None]) -> None:
        self._journal, self._tell = journal, tell
        self._records = list(journal.records)

    @property
    def records(self) -> tuple[Record, ...]:
        """All records so far, from which the next service is continued."""
        return tuple(self._records)

    def append(self, record: Record) -> None:
        self._journal.append(record)
        self._records.append(record)
        self._tell(record)
