"""What is durable reads back as it was written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.protocol.record import Record
from agileml.core.protocol.view import CutId, StageGroup, StagesFrom, View
from tests.thorough import examples

NAMES = st.text('abc-1é"', min_size=1, max_size=4)
UNITS = st.integers(1, (1 << 64) - 1)
CLOCKS = st.integers(0, 99)
NUMBERS = st.lists(CLOCKS, max_size=3).map(tuple)


@st.composite
def cuts(draw):
    return CutId(draw(st.integers(0, 99)), draw(st.integers(0, 99)))


def shares():
    return st.dictionaries(NAMES, UNITS, max_size=4).map(lambda share: tuple(share.items()))


@st.composite
def views(draw):
    some = lambda of, **size: tuple(draw(st.lists(of, max_size=5, **size)))  # noqa: E731
    return View(
        epoch=draw(st.integers(1, 99)),
        stage=draw(st.sampled_from([1, 2, 3])),
        members=some(NAMES),
        owner=some(NAMES),
        backup=some(NAMES),
        share=draw(shares()),
        previous=some(st.one_of(NAMES, st.just(""))),
        base=draw(st.integers(0, 99)),
        open=some(st.tuples(st.integers(0, 99), st.lists(st.tuples(NAMES, UNITS), max_size=3).map(tuple))),
        timeline=draw(st.integers(1, 99)),
        committed=draw(cuts()),
        stages=some(st.builds(StagesFrom, CLOCKS, NUMBERS, NUMBERS)),
        pipeline=some(st.builds(StageGroup, CLOCKS, CLOCKS, shares(), st.booleans())),
    )


@settings(deadline=None, derandomize=True, max_examples=examples(50))
@given(views())
def test_a_view_reads_back_as_it_was_written(view):
    assert View.from_text(view.to_text()) == view


@settings(deadline=None, derandomize=True, max_examples=examples(50))
@given(st.one_of(st.none(), views()), cuts(), st.booleans(), st.lists(st.integers(0, 9)).map(tuple))
def test_a_record_reads_back_as_it_was_written(view, committed, finished, fired):
    record = Record(7, "c é", 12, view, committed, fired, finished)
    assert Record.from_text(record.to_text()) == record


def test_a_cut_of_a_later_epoch_is_newer_whatever_its_clock():
    """An aborted cut of another time line is another cut."""
    assert CutId(5, 2) < CutId(3, 3) < CutId(4, 3)
