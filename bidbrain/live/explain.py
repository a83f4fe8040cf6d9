"""Explains a job's journal in sentences: why each machine was bought, kept and given back. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bidbrain.billing import Ending
from bidbrain.instants import show_instant
from bidbrain.live.journal import (
    Answered,
    Buy,
    BuyOnDemand,
    Closing,
    Decided,
    Draining,
    Ended,
    Mark,
    Marking,
    Noticed,
    Opened,
    Ordered,
    Passed,
    Record,
    Step,
    Stray,
    Troubled,
)
from bidbrain.money import usd
from bidbrain.setting import ON_DEMAND_ZONE

ENDINGS = {
    Ending.EVICTED: "taken by the market",
    Ending.TERMINATED: "given back",
    Ending.JOB_END: "given back at the job's end",
}
BY_ITSELF = "ended by itself or by hand, neither given back nor taken by the market"


@dataclass(frozen=True)
class ExplainedLine:
    """An event at `at_s` (Unix time). `level` 0: a decision; 1: one of its consequences."""

    at_s: int
    level: int
    text: str

    def __str__(self) -> str:
        return f"{show_instant(self.at_s)}  {'  ' * self.level}{self.text}"


@dataclass
class _Context:
    """The state between two lines: orders under way, the market of each allocation, decisions not shown yet, and the
    allocations that a decision lets go at the end of their hour."""

    ordered: dict[int, Ordered] = field(default_factory=dict)
    markets: dict[int, str] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    let_go: set[int] = field(default_factory=set)
    numbers: int = 0
    kept: int = 0

    def number(self, order: int, parts: int, market: str) -> None:
        """Number an order's allocations, as the account does."""
        self.first[order] = self.numbers
        for number in range(self.numbers, self.numbers + parts):
            self.markets[number] = market
        self.numbers += parts


def explain(records: Iterable[Record]) -> Iterator[ExplainedLine]:
    """A line for everything that was bought, refused, left or lost, under the decision that made it.

    Decisions that kept everything are counted, not listed.
    """
    context = _Context()
    for record in records:
        yield from _lines(record, context)


def _lines(record: Record, context: _Context) -> Iterator[ExplainedLine]:
    match record:
        case Opened(job, scheme, start_s):
            yield ExplainedLine(start_s, 0, f"{job}: {scheme} decides")
        case Decided():
            yield from _decided(record, context)
        case Ordered():
            context.ordered[record.order] = record
            if record.market.zone != ON_DEMAND_ZONE:
                context.number(record.order, record.parts, str(record.market))
        case Answered():
            yield from _answered(record, context)
        case Passed(at_s, why):
            yield ExplainedLine(at_s, 1, f"not done: {why}")
        case Ended(at_s, number, ending):
            market = context.markets.get(number, "on demand")
            is_ours = record.step or number in context.let_go or ending is not Ending.TERMINATED
            how = ENDINGS[ending] if is_ours else BY_ITSELF
            yield ExplainedLine(at_s, 1, f"{market}, allocation {number}: {how}")
        case Noticed(at_s, notices):
            for notice in notices:
                yield ExplainedLine(at_s, 1, f"notice: {notice.instance_id}, {notice.alert.value}")
        case Stray(at_s, instance):
            yield ExplainedLine(at_s, 1, f"{instance.instance_id} belongs to no order: given back")
        case Troubled(at_s, sentences):
            for sentence in sentences or ("all is well again",):
                yield ExplainedLine(at_s, 0, sentence)
        case Draining(at_s, _, reason) | Closing(at_s, _, reason):
            yield ExplainedLine(at_s, 0, f"the end: {reason}")


def _decided(record: Decided, context: _Context) -> Iterator[ExplainedLine]:
    marks = (step for step in record.steps if isinstance(step, Mark))
    context.let_go |= {mark.number for mark in marks if mark.what is Marking.LET_GO}
    if not record.steps:
        context.kept += 1
        return
    if context.kept:
        yield ExplainedLine(record.at_s, 0, f"({context.kept} decisions that changed nothing)")
        context.kept = 0
    figures = record.figures
    traffic = f"{figures.traffic_gb_per_h:g} GB/h, " if figures.traffic_gb_per_h else ""
    yield ExplainedLine(
        record.at_s,
        0,
        f"{record.reason}  [phi {figures.phi:.2f}, lambda {figures.lambda_s:.0f} s, "
        f"sigma {figures.sigma_s:.0f} s, {traffic}{usd(figures.spent):.2f} $ spent]",
    )
    for step in record.steps:
        yield ExplainedLine(record.at_s, 1, f"{_step(step, context)}")


def _step(step: Step, context: _Context) -> str:
    match step:
        case Buy(market, vcpus, _, bid):
            return f"ask for {vcpus} vCPUs of {market}, at most {usd(bid):.4f} $/h"
        case BuyOnDemand(vcpus):
            return f"ask for {vcpus} vCPUs on demand"
        case Mark(what, number):
            return f"{what.value.replace('_', ' ')} allocation {number} ({context.markets.get(number, 'on demand')})"


def _answered(record: Answered, context: _Context) -> Iterator[ExplainedLine]:
    ordered = context.ordered.pop(record.order)
    got = len(record.instances)
    if not got:
        yield ExplainedLine(record.at_s, 1, f"{ordered.market} refused: {record.why}")
        return
    if ordered.reliable:
        what = "reliable machines"
    else:
        parts = min(ordered.parts, got)  # a market may have room for some alone: for the first of them
        if record.order not in context.first:  # on demand: numbered when it is bought
            context.number(record.order, parts, "on demand")
        first, last = context.first[record.order], context.first[record.order] + parts - 1
        what = f"allocation {first}" if first == last else f"allocations {first} to {last}"
    yield ExplainedLine(
        record.at_s, 1, f"got {got} of {ordered.market} at {usd(record.price):.4f} $/h ({what})"
    )
