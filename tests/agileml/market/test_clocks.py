"""Events of a run become clocks that BidBrain's estimators can read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.protocol.commands import Happened
from agileml.events.run import ClockDone, MachineNoticed
from agileml.events.terms import Cause, Trigger
from agileml.market.clocks import RunClocks
from bidbrain.live.estimators import Clock, Disturbance, Estimator
from tests.agileml.events.samples import changed

VCPUS = {"spot": 32, "steady": 4}


def clocks_of(events: list[Happened], speed: float = 1.0, planned: set[str] | None = None) -> list[Clock]:
    kinds = {"r": "steady"}
    run = RunClocks(10.0, speed, lambda name: kinds.get(name, "spot"), planned or set())
    return [clock for event in events if (clock := run.happened(event)) is not None]


def view(at_s: float, workers: str, cause: Cause = Cause.JOIN, rolled_back: bool = False) -> Happened:
    names = tuple(workers.split())
    change = changed(1, Trigger(cause), workers=names, owners=names[-1:], rolled_back=rolled_back)
    return Happened(change, at_s)


def clock(at_s: float, number: int) -> Happened:
    return Happened(ClockDone(number, 0.5, 24, None), at_s)


def test_calm_clocks_are_one_stretch_in_market_time() -> None:
    found = clocks_of([view(0, "r a"), clock(5, 1), clock(6, 2), clock(8, 3)], speed=60)
    assert [c.seconds for c in found] == pytest.approx([60, 120])  # of the first one nothing is learned
    assert all(c.disturbance is Disturbance.NONE and c.work_vcpu_s == 10 for c in found)
    assert found[0].stretches[0].machines == {"steady": 1, "spot": 1}


def test_a_join_cuts_a_clock_in_two() -> None:
    found = clocks_of([view(0, "r a"), clock(1, 1), view(1.5, "r a b"), clock(3, 2)])
    (one,) = found
    assert [(s.seconds, dict(s.machines)) for s in one.stretches] == [
        (0.5, {"steady": 1, "spot": 1}),
        (1.5, {"steady": 1, "spot": 2}),
    ]
    assert (one.disturbance, one.events) == (Disturbance.CHANGE, 1)


def test_a_view_that_is_told_before_a_clock_that_was_done_before_it() -> None:
    """Clocks are reported in batches: the view of 2.5 must not cut the clock that ended at 2."""
    found = clocks_of([view(0, "r a"), clock(1, 1), view(2.5, "r a b"), clock(2, 2), clock(3, 3)])
    assert [c.disturbance for c in found] == [Disturbance.NONE, Disturbance.CHANGE]


def test_a_loss_is_an_eviction_and_clocks_done_again_belong_to_it() -> None:
    events = [
        view(0, "r a b"), clock(1, 1), clock(2, 2), clock(3, 3),
        view(3.5, "r a", Cause.FAILURE, rolled_back=True), clock(4, 2), clock(5, 3), clock(6, 4),
    ]  # fmt: skip
    found = clocks_of(events)[2:]
    assert [(c.disturbance, c.events, c.work_vcpu_s) for c in found] == [
        (Disturbance.EVICTION, 1, 0.0),
        (Disturbance.EVICTION, 0, 0.0),
        (Disturbance.NONE, 0, 10.0),
    ]


def test_who_is_warned_and_leaves_was_evicted_unless_we_gave_it_up() -> None:
    events = [
        view(0, "r a b"), clock(1, 1), Happened(MachineNoticed("b", 60.0), 1.2), view(1.5, "r a", Cause.NOTICE),
        clock(2, 2),
    ]  # fmt: skip
    assert [c.disturbance for c in clocks_of(events)] == [Disturbance.EVICTION]
    assert [c.disturbance for c in clocks_of(events, planned={"b"})] == [Disturbance.CHANGE]


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    nu=st.floats(8, 40),
    lost_s=st.floats(5, 60),
    pause_s=st.floats(0.5, 20),
    turns=st.lists(st.sampled_from(["join", "evict"]), min_size=6, max_size=12),
)
def test_true_figures_come_back(nu: float, lost_s: float, pause_s: float, turns: list[str]) -> None:
    """A run played with known figures, an eviction or a join every 20 clocks."""
    estimator = Estimator(VCPUS, 1000, 1.0)
    run = RunClocks(100.0, 1.0, lambda name: "spot")
    names, at_s, number, evictions, joins = ["a", "b"], 0.0, 0, 0, 0
    events = [view(0, "a b")]
    for turn in turns:
        for _ in range(20):
            number += 1
            at_s += 100.0 / (nu * len(names))
            events.append(clock(at_s, number))
        if turn == "evict" and len(names) > 1:
            evictions += 1
            names = names[:-1]
            events.append(view(at_s + 0.01, " ".join(names), Cause.FAILURE, rolled_back=True))
            at_s += lost_s
        else:
            joins += 1
            names = [*names, f"n{number}"]
            events.append(view(at_s + 0.01, " ".join(names)))
            at_s += pause_s
    for event in events:
        if (done := run.happened(event)) is not None:
            estimator.observe(done)
    said = estimator.measured()
    assert said.nu["spot"] == pytest.approx(nu, rel=0.15)
    if evictions > 2:
        assert said.lambda_s == pytest.approx(lost_s, rel=0.15)
    if joins > 2:
        assert said.sigma_s == pytest.approx(pause_s, rel=0.15, abs=0.1)
