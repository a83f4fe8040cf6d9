"""A profile: clocks of machines aligned, and a trace in the format that viewers read."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.config.text import ConfigError
from agileml.core.compute.spans import COLUMNS, NAMES, TRACKS, WORKER, Spans
from agileml.core.node.time_spent import DOING, Doing
from agileml.driver.last_spans import complete
from agileml.events.run import ClockDone, CutCommitted, MachineNoticed
from agileml.events.schema import Logged
from agileml.events.sums import ClocksDone, CutsCommitted
from agileml.events.terms import Cause, Trigger
from agileml.process.measurement.tracing import HeadClock, Pong
from agileml.process.steady_clock import wall_s
from agileml.runs.folder import TRACE
from agileml.runs.trace import Trace, controller_events, machine_events
from agileml.session import run
from tests.agileml.events.samples import changed
from tests.agileml.process.engine_rig import LIMIT_S, Ran, Rig
from tests.agileml.runs.full_disk import files_of_at_most

START_S = 1_700_000_000.0


def check_format(events: Iterable[Mapping[str, Any]]) -> None:
    """Chrome's trace event format, as far as we use it; spans of one thread contain each other or are apart."""
    open_until: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    named = set()
    complete = []
    for event in events:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        match event["ph"]:
            case "M":
                assert event["name"] in ("process_name", "thread_name")
                assert isinstance(event["args"]["name"], str)
                if event["name"] == "thread_name":
                    named.add((event["pid"], event["tid"]))
            case "X":
                assert isinstance(event["dur"], int)
                assert event["dur"] >= 0
                complete.append(event)
            case "i":
                assert event["s"] == "t"
            case "C":
                assert all(isinstance(value, float) for value in event["args"].values())
            case other:
                raise AssertionError(other)
    for event in sorted(complete, key=lambda event: (event["ts"], -event["dur"])):
        thread, end = (event["pid"], event["tid"]), event["ts"] + event["dur"]
        assert thread in named
        around = open_until[thread]
        while around and around[-1][0] <= event["ts"]:
            around.pop()
        assert not around or end <= around[-1][0], (around[-1], event)
        around.append((end, event["name"]))


def rows(*spans: tuple[int, str, int, float, float]) -> np.ndarray:
    """Spans with times in ms since the start."""
    return np.array(
        [
            (track, NAMES.index(name), clock, round(START_S * 1e6 + a * 1e3), round(START_S * 1e6 + b * 1e3))
            for track, name, clock, a, b in spans
        ],
        np.int64,
    )


def test_a_worker_s_clocks_hold_what_it_did_in_them() -> None:
    spans = rows(
        (WORKER, "pull", 0, 0, 2), (WORKER, "compute", 0, 2, 9), (WORKER, "push", 0, 9, 10), (WORKER, "pull", 1, 10, 12)
    )  # fmt: skip
    found = list(machine_events(3, "m2", spans, round(START_S * 1e6)))
    check_format(found)
    shown = [(e["name"], e["ts"], e["dur"], e["args"]["clock"]) for e in found if e["ph"] == "X"]
    assert shown == [
        ("clock 0", 0, 10_000, 0),
        ("clock 1", 10_000, 2_000, 1),
        ("pull", 0, 2_000, 0),
        ("compute", 2_000, 7_000, 0),
        ("push", 9_000, 1_000, 0),
        ("pull", 10_000, 2_000, 1),
    ]
    assert {e["pid"] for e in found} == {3}


def test_the_controller_s_track_comes_from_the_log() -> None:
    log = [
        Logged(1.0, changed(1, Trigger(Cause.START), seconds=0.25)),
        Logged(1.5, ClockDone(1, 0.5, 24, None)),
        Logged(1.6, CutCommitted(1, 0.1)),
        Logged(1.7, MachineNoticed("m1", 30.0)),
        Logged(700.0, ClocksDone(2, 90, 0.5, 24, 8.0, 1.0)),  # after ten minutes a line stands for several
        Logged(700.5, CutsCommitted(9, 80, 0.1)),
    ]
    found = list(controller_events(log))
    check_format(found)
    assert [(e["name"], e["ts"]) for e in found if e["ph"] != "M"] == [
        ("change to epoch 1: start", 750_000),
        ("clock 1", 1_500_000),
        ("cut 1", 1_600_000),
        ("clock 90", 700_000_000),
        ("cut 80", 700_500_000),
    ]


spans_of_any_kind = st.lists(
    st.tuples(
        st.integers(0, len(TRACKS) - 1),
        st.sampled_from(NAMES),
        st.integers(0, 9),
        st.floats(-5, 50),
        st.floats(0, 20),
    ),
    min_size=1,
)


@settings(deadline=None, derandomize=True)
@given(spans_of_any_kind)
def test_any_spans_make_a_good_trace(spans: list[tuple[int, str, int, float, float]]) -> None:
    array = rows(*((track, name, clock, a, a + length) for track, name, clock, a, length in spans))
    check_format(machine_events(1, "m0", array, round(START_S * 1e6)))


def test_a_trace_takes_no_more_than_it_is_told_and_says_so(tmp_path: Path) -> None:
    trace = Trace(START_S, most=3)
    two = rows((WORKER, "pull", 0, 0, 1), (WORKER, "compute", 0, 1, 2))
    for machine in ("m0", "m1"):
        trace.add(machine, Spans(two, 2))
    assert (trace.recorded, trace.dropped) == (3, 1)
    assert trace.write(tmp_path, []) == ["trace.json is full: 1 of its stretches are not in it"]
    written = json.loads((tmp_path / TRACE).read_text())
    assert written["otherData"] == {"dropped_spans": 1}
    check_format(written["traceEvents"])


def test_a_trace_that_does_not_fit_on_the_disk_takes_no_result_along(tmp_path: Path) -> None:
    trace = Trace(START_S)
    trace.add("m0", Spans(rows((WORKER, "pull", 0, 0, 1)), 1))
    with files_of_at_most(100):
        (told,) = trace.write(tmp_path, [])
    assert told.startswith(f"{tmp_path / TRACE} could not be written: ")
    assert not list(tmp_path.iterdir())
    assert trace.write(tmp_path, []) == []


@settings(deadline=None, derandomize=True)
@given(
    st.floats(-100, 100),
    st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(0, 1)), min_size=1, max_size=20),
)
def test_the_clock_of_another_host_is_known_to_half_the_shortest_way(
    offset_s: float, ways: list[tuple[float, float]]
) -> None:
    clock = HeadClock(is_same_host=False)
    for index, (way_s, there) in enumerate(ways):
        sent_s = START_S + index
        clock.answered(Pong(sent_s, sent_s + offset_s + there * way_s), sent_s + way_s)
    assert abs(clock.offset_s - offset_s) <= min(way_s for way_s, _ in ways) / 2 + 1e-6


def test_on_one_host_there_is_one_clock() -> None:
    clock = HeadClock(is_same_host=True)
    clock.answered(Pong(START_S, START_S + 5), START_S + 0.1)
    assert clock.offset_s == 0.0


JOB = {
    "application": "mlr",
    "clocks": 40,
    "machines": {"reliable": 1, "transient": 2, "max": 4},
    "stage": 2,
    "plan": [{"at_clock": 20, "join": 1}],
}


class Played(Rig):
    """A rig that keeps what it was told."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.start_s = wall_s()  # the clock of the spans
        super().__init__({**JOB, **values}, folder)
        self.trace = Trace(self.start_s)
        self.spent_s: dict[str, tuple[float, ...]] = {}
        state = self.head.state

        def kept() -> Any:
            found = state()
            self.spent_s |= found.spent_s
            for machine, spans in found.spans:
                self.trace.add(machine, spans)
            return found

        self.head.state = kept  # type: ignore[method-assign]

    def stop(self) -> None:
        """Wait until the first three have reported their work; take what machines recorded since, before they end."""
        until_s = time.monotonic() + LIMIT_S
        compute, none = DOING.index(Doing.COMPUTE), (0.0,) * len(DOING)
        while not all(self.spent_s.get(name, none)[compute] > 0 for name in ("m0", "m1", "m2")):
            assert time.monotonic() < until_s, self.spent_s
            self.head.state()  # which keeps what has come
            time.sleep(0.005)
        ends = {name: machine.last_spans() for name, machine in self.machines.items()}
        if self.spec.config.profile:
            assert complete(self.trace, ends, self.arriving, LIMIT_S) is None
        super().stop()

    def arriving(self) -> list[tuple[str, Spans]]:
        self.head.state()  # which keeps what has come
        return []

    def events(self, ran: Ran) -> list[Mapping[str, Any]]:
        log = [Logged(each.at_s - self.start_s, each.event) for each in ran.events]
        return list(self.trace.events(log))


def test_a_run_with_a_profile_shows_every_machine_and_clock(tmp_path: Path) -> None:
    rig = Played(tmp_path, profile=True)
    ran = rig.finish()
    assert ran.halted is None
    events = rig.events(ran)
    check_format(events)
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(names) == {"controller", "m0", "m1", "m2", "m3"}
    complete = [e for e in events if e["ph"] == "X"]
    worked = {e["args"]["clock"] for e in complete if e["pid"] == names["m0"] and e["name"] == "compute"}
    assert set(range(40)) <= worked
    seen = {e["name"] for e in complete}
    assert {"pull", "compute", "push", "fold", "cut", "change", "units", "answer", "take"} <= seen
    assert any(e["name"].startswith("change to epoch") for e in complete)
    until_us = (wall_s() - rig.start_s) * 1e6
    assert all(e["ts"] + e["dur"] <= until_us for e in complete)


def spans_of(count: int, recorded: int) -> Spans:
    return Spans(np.zeros((count, COLUMNS), np.int64), recorded)


def test_the_end_of_a_profile_waits_for_spans_on_their_way() -> None:
    trace = Trace(0.0)
    trace.add("m0", spans_of(3, 3))
    batches = iter([[], [("m0", spans_of(2, 5))], [("m0", spans_of(1, 6))]])
    assert complete(trace, {"m0": spans_of(4, 10)}, lambda: next(batches), 30.0) is None
    assert trace.recorded == 10
    assert not list(batches)


def test_spans_that_never_come_are_counted_and_said() -> None:
    trace = Trace(0.0)
    ends = {"m0": spans_of(4, 10), "m1": None, "m2": spans_of(2, 2)}
    assert complete(trace, ends, list, 0.0) == (
        "trace.json lacks the last spans of m1, 6 spans of m0, which did not come within 0 s"
    )


def test_spans_that_a_later_batch_has_overtaken_are_not_waited_for() -> None:
    """A controller that dies takes with it what it had not passed on; the next one gets later batches."""
    trace = Trace(0.0)
    trace.add("m0", spans_of(3, 3))
    trace.add("m0", spans_of(1, 6))
    assert complete(trace, {"m0": spans_of(4, 10)}, list, 300.0) == (
        "trace.json lacks 2 spans of m0, which a controller took with it when it died"
    )
    assert trace.recorded == 8


def test_without_a_profile_nothing_is_recorded_but_what_time_was_spent_with(tmp_path: Path) -> None:
    rig = Played(tmp_path, plan=[])
    ran = rig.finish()
    assert ran.halted is None
    assert rig.trace.recorded == 0
    assert set(rig.spent_s) == {"m0", "m1", "m2"}
    lived_s = wall_s() - rig.start_s
    for spent in rig.spent_s.values():
        by_name = dict(zip((doing.value for doing in DOING), spent, strict=True))
        assert by_name["compute"] > 0
        assert sum(spent) <= lived_s + 0.01


def test_a_sequential_run_has_no_machines_to_profile() -> None:
    with pytest.raises(ConfigError, match="profile: found true with --sequential"):
        run({"application": "mlr", "clocks": 1, "profile": True}, sequential=True)
