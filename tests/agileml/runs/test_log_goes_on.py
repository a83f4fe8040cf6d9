"""The log of a run whose head died goes on in the next process, and the figures are those of the whole run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.config.job import from_values
from agileml.events.run import (
    BytesSent,
    ClockDone,
    MachineLost,
    MachineReleased,
    MachinesJoined,
    Process,
    RunFinished,
    RunRestarted,
    RunStarted,
    RunStopped,
)
from agileml.events.schema import Logged, RunEvent, events_of
from agileml.events.sums import ClocksDone
from agileml.events.terms import Cause, Loss, Tier, Trigger
from agileml.runs.callbacks import Callback
from agileml.runs.event_log import EVENTS, EventLog, cut_half_line, read_events
from agileml.runs.folder import FolderError, RunFolder
from agileml.runs.history import ClockRow
from agileml.runs.loggers.files import CsvLogger, JsonlLogger
from agileml.runs.owner import owner_of, this_process
from agileml.runs.report.view import PageView
from agileml.runs.status import snapshot_of
from agileml.runs.summary import machines, resumed_from, summarize
from agileml.runs.supervision import SUPERVISION, Restart, Supervision
from agileml.session.continued import Continued
from agileml.session.one_process import end_of
from tests.agileml.events.samples import changed

HERE = Process("here", 7, 1.0)


def test_the_next_process_appends_and_time_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "job")
    folder.events.write(RunStarted("job", {}, 0.0, HERE))  # in 1970
    folder.events.write(ClockDone(1, 0.5, 8, None), t_s=2.0)
    folder.events.close()
    with (tmp_path / EVENTS).open("a") as killed_while_writing:
        killed_while_writing.write('{"t_s": 3.0, "kind": "clo')
    again = RunFolder.reopen(tmp_path)
    assert again.events.now_s > 50 * 365 * 86400
    again.events.write(ClockDone(2, 0.25, 8, None))
    again.events.close()
    log = read_events(tmp_path / EVENTS)
    assert [each.event.kind for each in log] == ["run_started", "clock", "clock"]
    assert events_of(log, ClockDone)[-1].clock == 2
    assert log[-1].t_s > 50 * 365 * 86400


def test_a_log_goes_on_whose_next_file_had_no_name_yet(tmp_path: Path) -> None:
    """The process was killed after it had given the full file its new name."""
    log = EventLog(tmp_path / EVENTS, segment_bytes=1000)
    log.write(RunStarted("job", {}, 0.0, HERE))
    for clock in range(1, 20):
        log.write(ClockDone(clock, 0.5, 8, None), t_s=float(clock))
    log.close()
    (tmp_path / EVENTS).rename(tmp_path / f".{EVENTS}.tmp")
    whole = [each.clock for each in events_of(read_events(tmp_path / EVENTS), ClockDone)]
    again = RunFolder.reopen(tmp_path)
    again.events.write(ClockDone(20, 0.5, 8, None))
    again.events.close()
    assert whole == [*range(1, 20)]
    assert [each.clock for each in events_of(read_events(tmp_path / EVENTS), ClockDone)] == [*whole, 20]


@pytest.mark.parametrize("left", ["", '{"log": "prot'])
def test_a_log_goes_on_whose_next_file_lost_its_first_line(tmp_path: Path, left: str) -> None:
    """The power failed before the disk had what was written to the file that was just begun."""
    log = EventLog(tmp_path / EVENTS, segment_bytes=1)
    log.write(RunStarted("job", {}, 0.0, HERE))
    log.close()
    (tmp_path / EVENTS).write_text(left)
    again = RunFolder.reopen(tmp_path)
    again.events.write(ClockDone(1, 0.5, 8, None))
    again.events.close()
    assert [each.event.kind for each in read_events(tmp_path / EVENTS)] == ["run_started", "clock"]


def test_time_goes_on_while_the_computer_is_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for the controller, whose events come with a time of their own."""
    before = RunFolder.create(tmp_path / "run", "job").events
    real = time.clock_gettime
    suspended_s = {time.CLOCK_BOOTTIME: 3600.0}  # no other clock counts that
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + suspended_s.get(clock, 0.0))
    assert 3600.0 <= before.now_s < 3700.0
    before.close()


@pytest.mark.parametrize("is_new", [False, True])
def test_what_a_killed_process_was_writing_goes(tmp_path: Path, *, is_new: bool) -> None:
    """Each restart of a process that runs out of memory while it writes the model would leave a copy of it."""
    folder = RunFolder.create(tmp_path, "job")
    folder.events.write(RunStarted("job", {}, 0.0, HERE))
    folder.events.close()
    own = [".model.safetensors.notes.tmp", ".mine.5.tmp", f".{SUPERVISION}.5.tmp"]  # the supervisor lives
    for name in [".model.safetensors.5.tmp", ".best.safetensors.67.tmp", ".optimizer.pt.8.tmp", *own]:
        (tmp_path / name).touch()
    if is_new:
        RunFolder.clear(tmp_path)
    else:
        RunFolder.reopen(tmp_path).events.close()
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*own} | (set() if is_new else {EVENTS})


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="holds no run to go on with"):
        RunFolder.reopen(tmp_path)


@given(st.lists(st.binary(max_size=20)), st.binary(max_size=20).filter(lambda rest: b"\n" not in rest))
def test_only_the_half_line_at_the_end_is_removed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rest: bytes
) -> None:
    file = tmp_path_factory.mktemp("log") / "log"
    whole = b"".join(line + b"\n" for line in lines)
    file.write_bytes(whole + rest)
    cut_half_line(file)
    assert file.read_bytes() == whole


def test_a_half_line_longer_than_a_block_is_removed(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"{}\n" + b"x" * (3 << 18))
    cut_half_line(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"{}\n"


def test_the_end_of_the_log_says_where_the_run_was(tmp_path: Path) -> None:
    record = Supervision(this_process(), 10, (Restart(5.0, "killed", 20),))
    (tmp_path / SUPERVISION).write_text(record.to_text())
    with_log(tmp_path, [changed(3, Trigger(Cause.START)), ClockDone(31, 0.5, 8, 0.1)])
    went_on = Continued.of(tmp_path, record.restarts[-1])
    assert (went_on.clock, went_on.least_epoch, went_on.count) == (31, 3, 1)
    event = went_on.event(HERE)
    assert (event.clock, event.redone, event.count) == (20, 11, 1)
    assert owner_of(tmp_path) == this_process()  # not the process that has died


def test_a_log_with_a_damaged_line_is_one_sentence(tmp_path: Path) -> None:
    """As a power failure may leave one in the middle of a block."""
    with_log(tmp_path, [changed(3, Trigger(Cause.START))])
    with (tmp_path / EVENTS).open("ab") as damaged:
        damaged.write(b"\0\0\0\n")
    with pytest.raises(FolderError, match=r"holds no run to go on with \(.*events\.jsonl: found"):
        Continued.of(tmp_path, Restart(5.0, "killed", 20))


@pytest.mark.parametrize(("made", "name"), [(CsvLogger, "clocks.csv"), (JsonlLogger, "metrics.jsonl")])
def test_series_go_on_behind_the_last_whole_line(made: type[Callback], name: str, tmp_path: Path) -> None:
    first, again = made(), made()
    first.on_start(tmp_path, {})
    first.on_clock(ClockRow(1, 0.5, 8, 0.1, 80.0, 0.1, 2))
    whole = (tmp_path / name).read_bytes()
    with (tmp_path / name).open("ab") as lost_its_power:
        lost_its_power.write(whole.splitlines()[-1][:5])
    (tmp_path / SUPERVISION).write_text(Supervision(this_process(), 10, (Restart(5.0, "", 0),)).to_text())
    again.on_start(tmp_path, {})
    again.on_clock(ClockRow(1, 0.5, 8, 0.1, 80.0, 0.1, 2))
    assert (tmp_path / name).read_bytes() == whole + whole.splitlines(keepends=True)[-1]


def with_log(folder: Path, events: list[RunEvent]) -> None:
    log = EventLog(folder / EVENTS)
    log.write(RunStarted("job", {}, 0.0, HERE))
    for event in events:
        log.write(event)
    log.close()


ONE_RESTART: list[tuple[float, RunEvent]] = [
    (0.0, RunStarted("job", {}, 0.0, HERE)),
    (1.0, MachinesJoined({"m0": Tier.RELIABLE, "m1": Tier.TRANSIENT})),
    (1.0, changed(1, Trigger(Cause.START))),
    (2.0, ClockDone(30, 0.5, 8, 0.1)),
    (2.0, MachineLost("m1", Loss.NODE_GONE, "")),
    (2.5, BytesSent({"push": 100})),
    (4.0, RunRestarted("killed", 20, 10, 1, HERE)),
    (8.0, MachinesJoined({"m0-r1": Tier.RELIABLE})),
    (8.0, changed(5, Trigger(Cause.START))),
    (9.0, ClockDone(21, 0.4, 8, None)),
    (9.5, BytesSent({"push": 7, "pull": 1})),
]


def test_the_summary_counts_over_both_processes() -> None:
    log = [Logged(t_s, event) for t_s, event in ONE_RESTART]
    config = from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 40})
    found = summarize(log, config, params_sha256="", metrics={}, split={}, versions={})
    assert found["restarts"] == {"count": 1, "longest_s": 7.0}
    assert found["clocks_redone"] == 10
    assert found["bytes"] == {"push": 107, "pull": 1}
    assert found["machines"]["reliable"] == {"started": 2, "joined": 0, "left": 0, "lost": 1}
    assert found["machines"]["transient"] == {"started": 1, "joined": 0, "left": 0, "lost": 1}


@pytest.mark.parametrize(("base", "said"), [(0, {}), (900, {"resumed_from": 900})])
def test_a_resumed_run_began_from_its_first_checkpoint_whatever_restarts_follow(
    base: int, said: dict[str, int]
) -> None:
    log = [
        Logged(1.0, changed(1, Trigger(Cause.START), base=base)),
        Logged(5.0, RunRestarted("its process died", 950, 10, 1, Process("h", 1, 0.0))),
        Logged(6.0, changed(2, Trigger(Cause.START), base=950)),
    ]
    assert resumed_from(log) == said


def test_a_machine_that_has_left_is_not_lost_as_well_unless_it_joins_again() -> None:
    events: list[RunEvent] = [
        MachinesJoined({"t1": Tier.TRANSIENT}),
        MachineReleased("t1"),
        MachineLost("t1", Loss.GONE_BEFORE, ""),  # as a new controller may say
    ]
    log = [Logged(float(t_s), event) for t_s, event in enumerate(events)]
    assert machines(log) == {"transient": {"started": 1, "joined": 0, "left": 1, "lost": 0}}
    log += [Logged(5.0, events[0]), Logged(6.0, events[2])]
    assert machines(log)["transient"]["lost"] == 1


def test_a_stopped_run_has_the_clocks_of_its_model_whatever_a_long_log_adds_up() -> None:
    log = [Logged(float(t_s), event) for t_s, (_, event) in enumerate(ONE_RESTART[:3])]
    log += [
        Logged(4.0, ClocksDone(1, 30, 0.5, 8, 3.0, 0.1)),
        Logged(5.0, ClocksDone(31, 40, 0.5, 8, 1.0, 0.1)),
    ]
    log += [Logged(6.0, RunStopped(36))]
    config = from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 100})
    found = summarize(log, config, params_sha256="", metrics={}, split={}, versions={})
    assert found["stopped"] and found["clocks"] == 36


def test_a_stop_whose_process_died_before_the_result_is_no_end_of_a_run_that_went_on() -> None:
    """The process was short of memory when it put the result together. The same command went on with the run."""
    stopped: list[tuple[float, RunEvent]] = [(3.0, RunStopped(20)), *ONE_RESTART[6:]]
    rest: list[tuple[float, RunEvent]] = [(20.0, ClockDone(40, 0.1, 8, 0.1)), (21.0, RunFinished(21.0))]
    log = [Logged(t_s, event) for t_s, event in (*ONE_RESTART[:6], *stopped, *rest)]
    config = from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 40})
    found = summarize(log, config, params_sha256="", metrics={}, split={}, versions={})
    assert (found["stopped"], found["clocks"], found["loss"]) == (False, 40, 0.1)
    now = snapshot_of(log, 40)
    assert (now.clock, now.loss) == (40, 0.1)
    assert end_of(log, 40) == 40


def test_a_run_without_restarts_says_nothing_of_them() -> None:
    log = [Logged(t_s, event) for t_s, event in ONE_RESTART[:6]]
    config = from_values({"application": "mlr", "data": {"kind": "digits"}, "clocks": 40})
    assert "restarts" not in summarize(log, config, params_sha256="", metrics={}, split={}, versions={})


def test_the_live_page_ends_the_lanes_of_machines_that_went_with_the_head() -> None:
    view = PageView("job")
    for t_s, event in ONE_RESTART:
        view.add(Logged(t_s, event))
    lanes = {lane[0]: lane[2:5] for lane in view.as_json()["lanes"]}
    assert lanes == {"m0": [1.0, 4.0, "head lost"], "m1": [1.0, 2.0, "node gone"], "m0-r1": [8.0, None, ""]}
    told = [text for _, _, text, _ in view.as_json()["news"]]
    assert "killed; goes on from clock 20, 10 clocks again (restart 1)" in told
