"""The risk book: a jump of the hazard is seen soon, refusals and hints count, and recorded pools are predicted."""

from pathlib import Path

import numpy as np
import pytest

from bidbrain.history.availability import Trace, read_trace
from bidbrain.history.prices import Market
from bidbrain.risk.book import Known, RiskBook
from bidbrain.risk.recorded import known_from_pools
from bidbrain.risk.tally import Cell, Tally
from tests.bidbrain.makers import TICK, made_trace, pool

POOL = Market("c5.xlarge", "us-east-1a")
RECORDED = Path(__file__).resolve().parents[4] / "shared" / "data" / "availability"


def known(hours: float, lost: float) -> Known:
    tally = Tally()
    tally.at(POOL, 0).add(Cell(hours, lost, lost))
    return Known.of_tally(tally, 3600)


def test_a_tenfold_hazard_is_seen_within_half_an_hour() -> None:
    book = RiskBook(known(10_000.0, 500.0))  # 0.05 losses per node hour
    for number in range(16):
        book.granted(3600, number, POOL, 1)
    before = book.hazard(POOL, 3600 + 6 * 3600).per_node_h
    at_s = 3600 + 6 * 3600
    for number in range(4):  # 16 nodes at 0.5 per hour: four losses in half an hour
        at_s += 450
        book.ended(at_s, number, evicted=True)
        book.granted(at_s + 200, 100 + number, POOL, 1)
    assert book.hazard(POOL, at_s + 200).per_node_h > 5 * before


def test_refusals_and_hints_raise_the_odds_and_refusals_in_a_row_count_once() -> None:
    quiet, refused, often, hinted = (RiskBook(known(100.0, 5.0)) for _ in range(4))
    refused.refused(4000, POOL)
    for second in range(5):
        often.refused(4000 + second, POOL)
    hinted.hinted(4000, POOL)
    odds = [book.hazard(POOL, 4010).per_node_h for book in (quiet, refused, often, hinted)]
    assert odds[1] > 1.5 * odds[0]
    assert odds[2] == odds[1]
    assert odds[3] == odds[1]


def test_giving_back_is_no_loss_and_asking_changes_nothing() -> None:
    book = RiskBook(known(100.0, 5.0))
    book.granted(4000, 1, POOL, 4)
    first = book.hazard(POOL, 9000)
    assert book.hazard(POOL, 9000) == first
    book.ended(9000, 1, evicted=False)
    book.ended(9000, 77, evicted=True)  # an allocation that it was never told of
    assert book.watch.tally.at(POOL, 9000).lost == 0
    assert book.hazard(POOL, 9000).per_node_h == pytest.approx(first.per_node_h)


def test_all_nodes_of_a_pool_may_go_at_once() -> None:
    seen = known_from_pools([pool("p", ([16] * 20 + [0]) * 30)], 600 * TICK)
    hazard = RiskBook(seen).hazard(Market("node", "p"), 600 * TICK)
    assert hazard.correlation > 0.8
    assert hazard.events_per_h(16) < 2 * hazard.per_node_h


def predicted_and_seen(traces: list[Trace], first: int, step: int):
    """(predicted share lost within the hour, seen share, nodes, one rate for all) from tick `first` on."""
    rows = []
    lost = sum(int(np.maximum(0, -np.diff(t.counts[:first])).sum()) for t in traces)
    hours = sum(float(t.counts[:first].sum()) * t.tick_s / 3600 for t in traces)
    one = 1 - np.exp(-lost / hours)
    for tick in range(first, min(len(t.counts) for t in traces) - 12, step):
        book = RiskBook(known_from_pools(traces, tick * TICK))
        for trace in traces:
            nodes = int(trace.counts[tick])
            if nodes:
                rate = book.hazard(trace.market, tick * TICK).per_node_h
                least = int(trace.counts[tick : tick + 13].min())
                rows.append((1 - np.exp(-rate), max(0, nodes - least) / nodes, nodes, one))
    return np.array(rows).T


def test_made_pools_are_predicted_better_than_by_one_rate() -> None:
    # Their stays are memoryless: the worst case for a model that expects bursts.
    traces = [made_trace(name, 16, 900, up, 2.0, 3) for name, up in zip("abcd", (2, 5, 10, 30), strict=True)]
    guess, seen, nodes, one = predicted_and_seen(traces, 5400, 61)
    assert nodes @ (guess - seen) ** 2 < nodes @ (one - seen) ** 2
    assert 0.6 < (guess @ nodes) / (seen @ nodes) < 1.4


@pytest.mark.skipif(not RECORDED.is_dir(), reason=f"there are no recordings in {RECORDED}")
def test_recorded_pools_are_predicted_within_a_fifth() -> None:
    recorded = read_trace(RECORDED / "aws_us-west-2a_v100_16nodes_2023-08.json")
    guess, seen, nodes, one = predicted_and_seen([recorded], 1420, 12)
    assert 0.8 < (guess @ nodes) / (seen @ nodes) < 1.2
    assert nodes @ (guess - seen) ** 2 < 0.5 * (nodes @ (one - seen) ** 2)
