"""Who computed what and who waited, from a log of events."""

from __future__ import annotations

import pytest

from agileml.core.node.work_log import WorkRow
from agileml.driver.work_table import WorkTable
from agileml.events.run import ClockDone, Work, WorkDone
from agileml.events.schema import Logged, RunEvent
from agileml.events.terms import Cause, Trigger
from agileml.runs.trace import controller_events
from agileml.runs.work import WorkWindow, machines_of, waiting, waiting_share, work_windows
from tests.agileml.events.samples import changed


def test_rows_of_one_window_add_up_and_come_in_their_order() -> None:
    table = WorkTable()
    table.add("m1", [WorkRow(2, 8, 1, 4, 1.0, 0.5), WorkRow(2, 9, 1, 4, 1.0, 0.25)])
    table.add(
        "m0", [WorkRow(2, 8, 1, 2, 1.0, 0.0), WorkRow(2, 8, 1, 1, 0.5, 0.0), WorkRow(1, 30, 2, 8, 1.0, 0.0)]
    )
    assert table.take() == [
        WorkDone(1, 32, 2, {"m0": Work(8, 1.0, 0.0)}),
        WorkDone(2, 9, 1, {"m1": Work(4, 1.0, 0.5), "m0": Work(3, 1.5, 0.0)}),
        WorkDone(2, 10, 1, {"m1": Work(4, 1.0, 0.25)}),
    ]
    assert table.take() == []


def log() -> list[Logged[RunEvent]]:
    """Four clocks; after two of them a change to epoch 2 does the second again. m1 waits half of its time."""

    def work(machine: str, units: int, wait_s: float) -> dict[str, Work]:
        return {machine: Work(units, 1.0, wait_s)}

    events = [
        (1.0, changed(1, Trigger(Cause.START))),
        (2.0, ClockDone(1, 0.5, 9, 1.0)),
        (3.0, ClockDone(2, 0.5, 9, 1.0)),
        (3.5, changed(2, Trigger(Cause.FAILURE, ("m2",)), base=1)),
        (5.0, ClockDone(2, 0.5, 9, 1.0)),
        (6.0, ClockDone(3, 0.5, 9, 1.0)),
        (7.0, WorkDone(1, 1, 1, work("m0", 6, 0.0) | work("m1", 2, 1.0))),
        (7.0, WorkDone(1, 2, 1, work("m0", 6, 0.0))),
        (7.0, WorkDone(2, 2, 1, work("m0", 6, 0.0))),
        (8.0, WorkDone(1, 2, 1, work("m1", 2, 1.0))),
        (9.0, WorkDone(2, 3, 1, work("m0", 6, 0.0))),
        (9.0, WorkDone(2, 4, 1, {})),  # nobody has reported it
    ]
    return [Logged(t_s, event) for t_s, event in events]


def test_a_clock_that_is_done_again_has_a_window_in_each_epoch() -> None:
    windows = work_windows(log())
    assert [(w.epoch, w.clock, w.start_s, w.end_s) for w in windows] == [
        (1, 1, 1.0, 2.0), (1, 2, 2.0, 3.0), (2, 2, 3.5, 5.0), (2, 3, 5.0, 6.0),
    ]  # fmt: skip
    assert windows[1].by_machine == {"m0": Work(6, 1.0, 0.0), "m1": Work(2, 1.0, 1.0)}
    assert waiting(windows[1].by_machine["m1"]) == 0.5
    assert waiting_share(windows) == pytest.approx(2 / 8)
    assert waiting_share([]) is None
    assert machines_of(windows, 1) == ["m0"] and machines_of(windows, 9) == ["m0", "m1"]


def test_of_many_machines_those_with_most_units_have_a_curve() -> None:
    many = [WorkWindow(1, 1, 1, 0.0, 1.0, {f"m{n}": Work(n + 1, 1.0, 0.0) for n in range(12)})]
    assert machines_of(many, 3) == ["m9", "m10", "m11"]


def test_the_trace_has_a_graph_of_both() -> None:
    graphs = [event for event in controller_events(log()) if event["ph"] == "C"]
    at = {(event["name"], event["ts"]) for event in graphs}
    assert {("waiting, %", 2_000_000), ("units per clock", 3_500_000)} <= at
    assert graphs[1]["args"] == {"m0": 0.0, "m1": 50.0}
