"""A run's line of progress is also what others read it by: it parses back to what it was made of."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.runs.progress import Snapshot, line, parse_line
from tests.thorough import examples

COUNTS = st.integers(0, 10**6)
NOTES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip)
LARGEST = 1.797e308  # of what has four digits that are a float again
LOSSES = st.none() | st.floats(-LARGEST, LARGEST) | st.sampled_from([math.inf, -math.inf, math.nan])
POSITIVE = st.floats(1e-3, 1e6)


@settings(deadline=None, derandomize=True, max_examples=examples(400))
@given(
    st.builds(
        Snapshot,
        clock=COUNTS,
        clocks=COUNTS,
        loss=LOSSES,
        stage=st.integers(0, 3),
        reliable=COUNTS,
        transient=COUNTS,
        note=NOTES,
        spent_usd=st.none() | st.floats(0, 1e4),
    ),
    st.none() | POSITIVE,
)
def test_a_line_parses_back_to_the_digits_that_it_shows(snapshot: Snapshot, rate: float | None) -> None:
    snapshot = replace(snapshot, clocks=snapshot.clock + snapshot.clocks)
    parsed = parse_line(line(snapshot, rate))
    assert parsed is not None, line(snapshot, rate)
    again, rate_again = parsed
    for name in ("clock", "clocks", "stage", "reliable", "transient", "note"):
        assert getattr(again, name) == getattr(snapshot, name), name
    assert close(again.loss, snapshot.loss, 1e-3)
    assert close(rate_again, rate, 1e-2)
    assert close(again.spent_usd, snapshot.spent_usd, 1e-3)


def close(found: float | None, wanted: float | None, relative: float) -> bool:
    if found is None or wanted is None:
        return found is wanted
    if math.isnan(wanted):
        return math.isnan(found)
    return math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-4)


def test_other_text_is_no_line() -> None:
    for text in ("", "done: 6 clocks, 0 redone; accuracy 0.9", "clock of the wall", "proteus: no such file"):
        assert parse_line(text) is None
