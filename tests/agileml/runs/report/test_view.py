"""The data of a run's page, folded from events: what is shown, where it lies in time, and that it stays small."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.events.market import (
    AllocationEnded,
    Billed,
    EstimatesChanged,
    InstancesBought,
    MarketOpened,
    PricesChanged,
)
from agileml.events.observed import Evaluated
from agileml.events.run import (
    BytesSent,
    ClockDone,
    HelpGiven,
    MachineLost,
    MachineNoticed,
    MachineReleased,
    MachinesJoined,
    RunRestarted,
    Work,
    WorkDone,
    WorkersSpent,
)
from agileml.events.schema import Logged, RunEvent
from agileml.events.sums import Standing
from agileml.events.terms import AllocationEnding, Cause, Loss, Tier, Trigger
from agileml.runs.owner import this_process
from agileml.runs.report.page import page
from agileml.runs.report.series import MOST_POINTS, Series, ValueSample
from agileml.runs.report.view import MOST_LANES, PageView
from agileml.runs.report.work_view import MOST_WINDOWS
from tests.agileml.events.samples import changed


def view_of(*events: tuple[float, RunEvent]) -> PageView:
    view = PageView("run")
    for t_s, event in events:
        view.add(Logged(t_s, event))
    return view


def test_machines_are_lanes_with_their_notices_and_reasons() -> None:
    shown = view_of(
        (1.0, MachinesJoined({"m0": Tier.RELIABLE, "m1": Tier.TRANSIENT, "m2": Tier.TRANSIENT})),
        (2.0, MachineNoticed("m1", 60.0)),
        (3.0, MachineReleased("m1")),
        (4.0, MachineLost("m2", Loss.SILENT, "")),
        (5.0, MachinesJoined({"m2": Tier.TRANSIENT})),
        (6.0, MachineLost("m2", Loss.EVICTED, "")),
    ).as_json()
    assert shown["lanes"] == [
        ["m0", "reliable", 1.0, None, "", [], False],
        ["m1", "transient", 1.0, 3.0, "left", [(2.0, "notice")], False],
        ["m2", "transient", 1.0, 6.0, "evicted", [(5.0, "back")], True],
    ]


def test_one_kill_is_drawn_once_and_a_head_takes_all_with_it() -> None:
    shown = view_of(
        (1.0, MachinesJoined({"m1": Tier.TRANSIENT, "m2": Tier.TRANSIENT})),
        (2.0, MachineLost("m1", Loss.SILENT, "")),
        (2.5, MachineLost("m1", Loss.PROCESS_DIED, "")),
        (2.8, BytesSent({"push": 5, "pull": 1})),
        (3.0, RunRestarted("killed", 10, 2, 1, this_process())),
        (4.0, BytesSent({"push": 2})),
    ).as_json()
    assert [(lane[0], lane[3], lane[4]) for lane in shown["lanes"]] == [
        ("m1", 2.0, "silent"),
        ("m2", 3.0, "head lost"),
    ]
    assert shown["restarts"] == [3.0]
    assert shown["bytes"] == {"push": 7, "pull": 1}  # the next head counts anew


def test_shares_of_work_waiting_and_help_are_of_the_newest_clocks() -> None:
    shown = view_of(
        (0.5, MachinesJoined({"m0": Tier.RELIABLE, "m1": Tier.TRANSIENT, "m2": Tier.TRANSIENT})),
        (1.0, WorkDone(1, 10, 10, {"m0": Work(99, 1.0, 0.0), "m1": Work(1, 1.0, 0.0)})),
        (2.0, WorkDone(1, 20, 10, {"m0": Work(30, 3.0, 1.0)})),
    )
    # Of the clocks before: m0 alone has reported the newest.
    assert set(shown.as_json()["work"]) == {"m0", "m1"}
    shown.add(Logged(2.1, WorkDone(1, 20, 10, {"m1": Work(10, 1.0, 1.0), "m2": Work(60, 2.0, 0.0)})))
    shown.add(Logged(2.2, HelpGiven(1, 20, 10, {"m2": {"m0": 4, "m1": 1}})))
    data = shown.as_json()
    assert data["work"] == {"m0": (0.3, 0.25, 0), "m1": (0.1, 0.5, 0), "m2": (0.6, 0.0, 5)}
    assert data["waiting"] == [(1.0, 0.0), (2.0, 0.25)]
    assert data["help"][0][:3] == ["m2", "m0", 4]
    shown.add(Logged(3.0, MachineLost("m2", Loss.EVICTED, "")))
    assert set(shown.as_json()["work"]) == {"m0", "m1"}


def test_units_for_others_are_of_the_newest_clocks_too() -> None:
    """Where nobody needs help any more no event says so."""
    work = {"m0": Work(30, 3.0, 1.0), "m1": Work(30, 3.0, 1.0)}
    shown = view_of((1.0, WorkDone(1, 10, 10, work)), (1.1, HelpGiven(1, 10, 10, {"m0": {"m1": 5}})))
    assert shown.as_json()["work"]["m0"][2] == 5
    shown.add(Logged(2.0, WorkDone(1, 20, 10, work)))
    assert shown.as_json()["work"]["m0"][2] == 0
    assert shown.as_json()["help"][0][:3] == ["m0", "m1", 5], "over the whole run"


def test_work_over_time_lies_at_its_clocks_whenever_machines_report() -> None:
    def work(machine: str, units: int, wait_s: float) -> dict[str, Work]:
        return {machine: Work(units, 1.0, wait_s)}

    shown = view_of(
        (1.0, changed(1, Trigger(Cause.START))),
        *((float(clock + 1), ClockDone(clock, 0.5, 9, 1.0)) for clock in (1, 2, 3)),
        (5.0, WorkDone(1, 1, 1, work("m0", 6, 0.0) | work("m1", 2, 1.0))),
        (5.0, WorkDone(1, 2, 1, work("m0", 6, 0.0))),
        (6.0, WorkDone(1, 3, 1, work("m0", 8, 0.0))),
        (7.0, WorkDone(1, 2, 1, work("m1", 2, 1.0))),
    ).as_json()
    assert shown["waiting_share"] == pytest.approx(2 / 6)
    assert shown["shares"] == {
        "names": ["m0", "m1"],
        "from_s": 1.0,
        "rows": [(2.0, [75.0, 25.0], [0.0, 50.0]), (3.0, [75.0, 25.0], [0.0, 50.0])],
    }


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3)), max_size=600), st.integers(1, 300))
def test_windows_that_become_one_keep_their_work(parts: list[tuple[int, int]], until: int) -> None:
    view = view_of(
        *((1.0, WorkDone(1, clock, 1, {f"m{machine}": Work(1, 2.0, 1.0)})) for clock, machine in parts)
    )
    for clock in range(until):
        view.add(Logged(2.0, WorkDone(2, clock + 1, 1, {f"m{n}": Work(1, 2.0, 1.0) for n in range(4)})))
    shown = view.as_json()
    assert len(shown["waiting"]) <= 2 * MOST_WINDOWS + 1
    assert shown["waiting_share"] == pytest.approx(1 / 3)


def test_prices_stand_beside_what_was_bought_for_them() -> None:
    shown = view_of(
        (1.0, PricesChanged(0, {"a": 0.1, "b": 0.3, "c": 0.2})),
        (2.0, InstancesBought(0, "b", ("i-1", "i-2"), (1, 2), 0.3, 0.5, reliable=False)),
        (3.0, PricesChanged(9, {"b": 0.4})),
    ).as_json()
    assert shown["market"] == [("b", 0.4, 2, 0.3, 0.5), ("a", 0.1, 0, None, None), ("c", 0.2, 0, None, None)]


def test_bids_last_from_their_purchase_to_their_end() -> None:
    shown = view_of(
        (1.0, MarketOpened(0, 3600.0, "proteus", {"c4.large": 2}, 2.0)),
        (2.0, PricesChanged(0, {"a": 0.1})),
        (3.0, InstancesBought(10, "a", ("i-1",), (7,), 0.1, 0.0, reliable=True)),
        (4.0, InstancesBought(20, "a", ("i-2", "i-3"), (8, 9), 0.1, 0.5, reliable=False)),
        (5.0, AllocationEnded(3725, 8, AllocationEnding.EVICTED, "a")),
        (6.0, EstimatesChanged(9, 0.9, None, 12.0, {"c4.large": 1.5})),
    ).as_json()
    assert shown["bids"] == [("a", 4.0, 5.0, 0.5, "evicted"), ("a", 4.0, None, 0.5, "")]
    assert shown["speeds"] == {"ν c4.large / 2": [(6.0, 0.75)], "φ": [(6.0, 0.9)]}
    assert shown["costs"] == {"an eviction": [], "a planned change": [(6.0, 12.0)]}
    assert shown["news"][0] == (5.0, "evicted", "allocation 8 (a)", "1:02:05")  # with the market's time


def test_evaluations_are_curves() -> None:
    shown = view_of(
        (2.0, Evaluated(10, {"accuracy": 0.5, "val_loss": 1.0})), (4.0, Evaluated(20, {"accuracy": 0.75}))
    )
    assert shown.as_json()["metrics"] == {"accuracy": [(2.0, 0.5), (4.0, 0.75)], "val_loss": [(2.0, 1.0)]}


def test_the_view_of_a_long_run_stays_small() -> None:
    view = PageView("run")
    for clock in range(1, 50_001):
        view.add(Logged(clock / 10, ClockDone(clock, 1 / clock, 64, 0.1)))
    for number in range(3 * MOST_LANES):
        view.add(Logged(6000.0 + number, MachinesJoined({f"m{number}": Tier.TRANSIENT})))
        if number >= 500:
            view.add(Logged(6000.0 + number, MachineLost(f"m{number - 500}", Loss.EVICTED, "")))
    shown = view.as_json()
    assert len(shown["loss"]) <= 2 * MOST_POINTS + 4
    assert shown["loss"][0] == (0.1, 1.0, 1) and shown["loss"][-1] == (5000.0, 1 / 50_000, 50_000)
    assert len(shown["lanes"]) <= MOST_LANES
    assert sum(lane[3] is None for lane in shown["lanes"]) == 500
    assert shown["items"][-1][1] == pytest.approx(640, rel=0.01)
    assert len(json.dumps(shown)) + len(page()) < 5_000_000


def test_dollars_stand_beside_what_on_demand_would_have_cost() -> None:
    shown = view_of(
        (10.0, MarketOpened(0, 3600.0, "proteus", {}, 2.0)), (12.0, Billed(7200, 1.25, 8))
    ).as_json()
    assert shown["spend"] == [(12.0, 1.25, 4.0)]


def test_the_projected_bill_of_a_run_that_resumes_is_that_of_its_own_clocks() -> None:
    view = view_of(
        (1.0, Standing(0, 1000, None, 0, 0, 0, "2 of 3 machines", 0.0)),
        (2.0, changed(1, Trigger(Cause.START), base=900)),
        (3.0, Standing(900, 1000, 0.5, 1, 1, 0, "", 0.5)),
    )
    assert view.as_json()["projected_usd"] is None
    view.add(Logged(9.0, Standing(910, 1000, 0.5, 1, 1, 0, "", 1.0)))
    assert view.as_json()["projected_usd"] == pytest.approx(10.0)


def test_the_time_of_a_clock_is_that_of_workers_with_work() -> None:
    spent = WorkersSpent({"m0": {"compute": 9.0, "pull": 1.0, "idle": 90.0}, "m1": {"idle": 5.0}})
    shown = view_of((1.0, spent), (2.0, WorkersSpent({"m2": {"compute": 1.0}}))).as_json()
    assert shown["spent"] == {"m0": {"compute": 9.0, "pull": 1.0}, "m2": {"compute": 1.0}}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(2, 40))
def test_a_series_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    series = Series(most)
    for at, value in enumerate(values):
        series.add(float(at), value)
    points = series.points()
    assert len(points) <= 2 * most + 4
    assert points == sorted(set(points)) and set(points) <= {(float(at), v) for at, v in enumerate(values)}
    assert (points[0], points[-1]) == ((0.0, values[0]), (len(values) - 1.0, values[-1]))
    kept = [value for _, value in points]
    assert (min(kept), max(kept)) == (min(values), max(values))
    if len(values) < 2 * most:
        assert kept == values


def test_points_that_are_no_numbers_are_left_out() -> None:
    series = Series()
    for point in ((0.0, float("nan")), (1.0, float("inf"), 3.0), (2.0, 5.0)):
        series.add(*point)
    assert series.points() == [(2.0, 5.0)]
    assert Series().points() == [] and ValueSample().median is None


def test_the_median_of_a_long_series_is_that_of_a_sample() -> None:
    sample = ValueSample(most=50)
    for value in range(10_001):
        sample.add(value % 101)
    assert sample.median == pytest.approx(50, abs=6)
