"""Tallies of pools: hours and losses against counting second by second; merging; lines."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.history.prices import Market
from bidbrain.risk.tally import AGE_EDGES_H, Cell, Tally, TallyError, Watch, age_of
from tests.thorough import examples

A, B = Market("c5.xlarge", "us-east-1a"), Market("m5.xlarge", "us-east-1b")
LIVES = st.lists(
    st.tuples(
        st.sampled_from([A, B]),
        st.integers(0, 9000),
        st.integers(1, 60_000),
        st.integers(1, 3),
        st.booleans(),
    ),
    max_size=6,
)


def watched(lives) -> Watch:
    """A watch that was told these lives (pool, from, seconds, machines, evicted) in order of time."""
    watch = Watch()
    events = [(start, 0, i) for i, (_, start, *_) in enumerate(lives)]
    events += [(start + seconds, 1, i) for i, (_, start, seconds, *_) in enumerate(lives)]
    for at_s, is_end, i in sorted(events):
        market, _, _, machines, evicted = lives[i]
        if is_end:
            watch.ended(at_s, i, evicted=evicted)
        else:
            watch.granted(at_s, i, market, machines)
    return watch


@given(LIVES)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_node_hours_are_those_of_counting_second_by_second(lives) -> None:
    tally = watched(lives).tally
    seconds: dict[tuple[Market, int, int], int] = {}
    for market, start, length, machines, _ in lives:
        edges = sorted({start, start + length, *(start + int(e * 3600) for e in AGE_EDGES_H)})
        edges += [hour * 3600 for hour in range(start // 3600, (start + length) // 3600 + 1)]
        inside = sorted({edge for edge in edges if start <= edge <= start + length})
        for one, other in pairwise(inside):
            key = (market, one // 3600 * 3600, age_of((one - start) / 3600))
            seconds[key] = seconds.get(key, 0) + machines * (other - one)
    for (market, hour_s), cell in tally.cells.items():
        for age, (hours, _) in enumerate(cell.by_age):
            assert hours * 3600 == pytest.approx(seconds.get((market, hour_s, age), 0), abs=1e-6)
        assert cell.node_h == pytest.approx(sum(hours for hours, _ in cell.by_age))
    lost = sum(machines for _, _, _, machines, evicted in lives if evicted)
    assert sum(cell.lost for cell in tally.cells.values()) == lost


@given(LIVES, LIVES)
@settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_merging_adds_and_lines_read_back(some, others) -> None:
    one, other = watched(some).tally, watched(others).tally
    both, turned = Tally(), Tally()
    both.merge(one)
    both.merge(other)
    turned.merge(other)
    turned.merge(one)
    assert list(both.lines()) == list(turned.lines())
    again = Tally.parse(both.lines(), "a file")
    assert list(again.lines()) == list(both.lines())


def test_losses_close_together_are_one_event() -> None:
    watch = Watch()
    for number in range(4):
        watch.granted(0, number, A, 1)
    assert watch.ended(4000, 0, evicted=True)
    assert not watch.ended(4060, 1, evicted=True)
    assert watch.ended(8000, 2, evicted=True)
    cells = [cell for (market, _), cell in watch.tally.cells.items() if market == A]
    assert sum(cell.events for cell in cells) == 2
    assert sum(cell.lost for cell in cells) == 3
    assert sum(cell.extra for cell in cells) == 1
    assert sum(cell.beside for cell in cells) == 3 + 1
    assert watch.machines(A) == 1


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"pool": "c5@a"}',
        '{"pool": "c5@a", "hour_s": 0, "seen": [-1,0,0,0,0,0,0], "by_age": []}',
        '{"pool": "c5@a", "hour_s": 0, "seen": [NaN,0,0,0,0,0,0], "by_age": [[0,0],[0,0],[0,0],[0,0]]}',
        '{"pool": "c5@a", "hour_s": 0, "seen": [0,0,0,0,0,0,0], "by_age": [[0,1e999],[0,0],[0,0],[0,0]]}',
        '{"pool": "c5@a", "hour_s": 1e999, "seen": [0,0,0,0,0,0,0], "by_age": [[0,0],[0,0],[0,0],[0,0]]}',
    ],
)
def test_a_line_that_is_none_is_named(line: str) -> None:
    with pytest.raises(TallyError, match=r"risk\.jsonl line 1: not a line of a risk file"):
        Tally.parse([line], "risk.jsonl")


def test_a_weight_scales_everything() -> None:
    cell = Cell(2.0, 1.0, 1.0, 0.0, 3.0, 4.0, 5.0)
    half = Cell()
    half.add(cell, 0.5)
    half.add(cell, 0.5)
    assert half == cell
