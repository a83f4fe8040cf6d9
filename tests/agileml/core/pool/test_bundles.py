"""The pool of a view: every bundle is drawn once, whoever asks how often, and own ones come first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.pool.bundles import BundlePool
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.view import INITIAL, View
from tests.agileml.core.fixtures import make_job
from tests.thorough import examples

JOB = make_job("asppool", slices=8, clocks=6)  # draws of two units
VIEW = View(
    epoch=7,
    stage=1,
    members=("a", "b", "c"),
    owner=("a", "b"),
    backup=("a", "b"),
    share=(("a", 0x0F), ("b", 0x70), ("c", 0x80)),
    previous=("",) * 8,
    base=2,
    open=(),
    timeline=1,
    committed=INITIAL,
)
OPEN = replace(VIEW, open=((2, (("a", 0b10), ("d", 0x0C), ("b", 0xF0))), (3, ()), (4, (("c", 0x81),))))


def everything(view: View) -> Counter[tuple[int, int]]:
    """The bundles of all clocks from the base on."""
    deal = Deal(JOB, view)
    return Counter((c, bundle) for c in range(view.base, JOB.clocks) for _, bundle in deal.assignments(c))


def draw(pool: BundlePool, worker: str, number: int, *wants: tuple[int, int]) -> BundleDrawn | None:
    return pool.draw(worker, DrawBundle(7, number, wants))


@settings(deadline=None, max_examples=examples(60))
@given(st.sampled_from([VIEW, OPEN]), st.data())
def test_every_bundle_is_drawn_once_in_whatever_order_workers_ask(view: View, data: st.DataObject) -> None:
    pool, numbers, found = BundlePool(JOB, view), Counter[str](), Counter[tuple[int, int]]()
    ends: set[str] = set()
    while len(ends) < 3:
        worker = data.draw(st.sampled_from(sorted({"a", "b", "c"} - ends)))
        wants = data.draw(st.sampled_from([(), (2, 0x0C), (3, 0x30), (4, 0x81), (5, 0x80), (1, 3), (3, 7)]))
        answer = draw(pool, worker, numbers[worker], *([wants] if wants else []))
        if answer is None:
            ends.add(worker)
            continue
        again = draw(pool, worker, numbers[worker], *([wants] if wants else []))
        assert again == answer, "asked again"
        numbers[worker] += 1
        found[answer.clock, answer.bundle] += 1
    assert found == everything(view)
    assert pool.draws == numbers


def test_workers_get_their_own_first_and_then_those_of_the_slowest() -> None:
    pool = BundlePool(JOB, VIEW)
    own = [draw(pool, "a", number) for number in range(2)]
    assert [(answer.clock, answer.bundle) for answer in own if answer] == [(2, 0x03), (2, 0x0C)]
    assert draw(pool, "b", 0) == BundleDrawn(7, 0, 2, 0x10)
    third = draw(pool, "a", 2)
    assert third == BundleDrawn(7, 2, 2, 0x80), "c has drawn nothing"
    assert draw(pool, "c", 0) == BundleDrawn(7, 0, 2, 0x60), "its own of this clock is gone"
    assert draw(pool, "c", 1) == BundleDrawn(7, 1, 3, 0x80), "and it begins the next clock with its own"


def test_what_a_worker_had_begun_is_its_own_unless_another_has_drawn_it() -> None:
    pool = BundlePool(JOB, OPEN)
    assert draw(pool, "c", 0, (4, 0x81)) == BundleDrawn(7, 0, 4, 0x81), "of a later clock"
    assert draw(pool, "b", 0, (4, 0x81)) == BundleDrawn(7, 0, 2, 0xF0), "drawn already"
    assert draw(pool, "a", 0, (2, 0x0C)) == BundleDrawn(7, 0, 2, 0x0C), "of a machine that left"
    assert draw(pool, "b", 1, (5, 0x0F)) == BundleDrawn(7, 1, 2, 0b10), "cut otherwise now"


def test_old_questions_and_machines_that_do_not_compute_get_no_answer() -> None:
    pool = BundlePool(JOB, VIEW)
    assert draw(pool, "a", 0) is not None and draw(pool, "a", 1) is not None
    assert draw(pool, "a", 0) is None
    assert draw(pool, "d", 0) is None
    assert pool.draws == {"a": 2}
