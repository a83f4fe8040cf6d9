"""Logs of long runs: small, in several files, read from their end, and with the figures of the whole run."""

from __future__ import annotations

import gzip
import math
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.events.run import (
    BytesSent,
    CheckpointSaved,
    ClockDone,
    CutCommitted,
    MachineLost,
    MachinesJoined,
    MembershipChanged,
    Process,
    RunFinished,
    RunRestarted,
    StepsLogged,
    Work,
    WorkDone,
    WorkersSpent,
)
from agileml.events.schema import Logged, RunEvent, SchemaError, events_of
from agileml.events.sums import ClocksDone, Standing
from agileml.events.terms import Cause, Loss, Tier, Trigger
from agileml.runs.event_log import (
    EventLog,
    files_of,
    iterate_events,
    pack,
    read_backwards,
    read_events,
    read_first,
)
from agileml.runs.history import history
from agileml.runs.report.curves import Curves
from agileml.runs.report.page import rebuild
from agileml.runs.status import newest_events, snapshot_of
from agileml.runs.summary import longest_gap_s, restarts, spent_by_machine, summarize
from agileml.runs.thinning import HOUR_S, INTERVALS, Thinning, clocks_of, interval_s
from agileml.runs.work import work_windows

WEEK_S = 7 * 24 * HOUR_S
KINDS = ("pull", "compute", "push", "fold", "frozen", "idle")


def thin(events: list[tuple[float, RunEvent]]) -> list[Logged[RunEvent]]:
    thinning = Thinning()
    found = [line for t_s, event in events for line in thinning.take(t_s, event)]
    return [*found, *thinning.rest()]


def test_the_interval_grows_with_the_run() -> None:
    assert [interval_s(age_s) for age_s in (0, 599, 600, 6 * HOUR_S, 48 * HOUR_S, 1e9)] == [
        0,
        0,
        1,
        10,
        60,
        60,
    ]


@given(
    st.lists(st.tuples(st.floats(0.01, 40.0), st.booleans()), min_size=1, max_size=60),
    st.sampled_from(INTERVALS),
)
def test_every_clock_is_counted_and_no_time_is_lost(
    steps: list[tuple[float, bool]], interval: tuple[float, float]
) -> None:
    now_s, clock, events = interval[0] + 1.0, 0, []
    for took_s, goes_back in steps:
        now_s += took_s
        clock = max(1, clock - 3) if goes_back else clock + 1
        events.append((now_s, ClockDone(clock, took_s, 10, None if goes_back else took_s)))
    lines = thin(events)
    count = sum(
        each.event.clock - each.event.first + 1 if isinstance(each.event, ClocksDone) else 1 for each in lines
    )
    assert count == len(events)
    assert lines[-1].t_s == now_s
    total = sum(each.event.seconds or 0.0 for each in lines if isinstance(each.event, ClockDone | ClocksDone))
    assert math.isclose(total, sum(done.seconds or 0.0 for _, done in events))
    told = clocks_of(lines)
    assert told[-1].event.clock == clock
    if interval[1]:
        spans = [each for each in lines if isinstance(each.event, ClocksDone)]
        assert all(each.event.seconds - each.event.longest_s <= interval_s(each.t_s) + 40 for each in spans)


def test_a_change_of_members_comes_after_the_clocks_before_it() -> None:
    at_s = 700.0
    lines = thin([
        (at_s, ClockDone(1, 0.5, 4, None)), (at_s + 0.1, ClockDone(2, 0.3, 4, 0.1)),
        (at_s + 0.2, change(1)), (at_s + 0.3, ClockDone(2, 0.3, 4, None)),
    ])  # fmt: skip
    assert [each.event.kind for each in lines] == ["clocks", "change", "clock"]


def at_10_per_s(first: int, last: int, begin_s: float, seconds: float | None) -> list[tuple[float, RunEvent]]:
    """Clocks, the first one complete at `begin_s`, after so many seconds."""
    return [
        (begin_s + 0.1 * at, ClockDone(clock, 0.5, 64, 0.1 if at else seconds))
        for at, clock in enumerate(range(first, last + 1))
    ]


AGES_S = [since_s + 60.0 for since_s, _ in INTERVALS]


@pytest.mark.parametrize("age_s", AGES_S)
def test_the_time_without_a_controller_is_a_gap_however_old_the_run_is(age_s: float) -> None:
    """A new controller does not know how long its first clock took."""
    back_s = age_s + 99.9 + 90.0
    lines = thin([
        *at_10_per_s(1, 1000, age_s, None), (back_s - 0.1, change(2)), *at_10_per_s(1001, 3000, back_s, None)
    ])  # fmt: skip
    assert longest_gap_s(lines) == pytest.approx(90.0)
    assert longest_on_the_page(lines) == pytest.approx(90.0)


@pytest.mark.parametrize("age_s", AGES_S)
def test_a_restart_took_until_its_first_clock_however_old_the_run_is(age_s: float) -> None:
    died_s, back_s = age_s + 99.9, age_s + 99.9 + 30.0
    again = RunRestarted("its process died", 900, 100, 1, Process("h", 1, 0.0))
    lines = thin([
        *at_10_per_s(1, 1000, age_s, None), (died_s, change(2)), (back_s - 9.0, again), (back_s - 0.1, change(3)),
        *at_10_per_s(901, 3000, back_s, None),
    ])  # fmt: skip
    assert restarts(lines)["restarts"]["longest_s"] == pytest.approx(30.0)


@pytest.mark.parametrize("age_s", AGES_S)
def test_clocks_that_are_done_again_take_no_longer_on_the_page(age_s: float) -> None:
    back_s = age_s + 99.9 + 2.0
    lines = thin([
        *at_10_per_s(1, 1000, age_s, None), (back_s - 0.1, change(2)), *at_10_per_s(301, 1500, back_s, 2.0)
    ])  # fmt: skip
    assert longest_on_the_page(lines) == pytest.approx(2.0) == longest_gap_s(lines)


@pytest.mark.parametrize("age_s", AGES_S)
def test_the_history_has_no_clocks_that_a_rollback_undid(age_s: float) -> None:
    undone = [(t_s, replace(done, loss=9.0)) for t_s, done in at_10_per_s(301, 1000, age_s + 30.0, 0.1)]
    back_s = age_s + 99.9 + 2.0
    lines = thin([
        *at_10_per_s(1, 300, age_s, None), *undone, (back_s - 0.1, change(2)), *at_10_per_s(301, 1500, back_s, 2.0)
    ])  # fmt: skip
    rows = history(lines, lambda clock: 0.1)
    assert rows[-1]["clock"] == 1500
    assert max(row["loss"] for row in rows) < 9.0


def longest_on_the_page(lines: list[Logged[RunEvent]]) -> float:
    curves = Curves()
    for line in lines:
        curves.add(line.t_s, line.event)
    return max(took_s for _, took_s, _ in curves.as_json()["took"])


def test_totals_of_all_machines_are_not_written_anew_for_each_change_of_members() -> None:
    """With 500 machines they are 60 KB a line, and a job of weeks has ten thousand changes."""
    events: list[tuple[float, RunEvent]] = []
    for epoch in range(1, 41):
        at_s = 3 * 24 * HOUR_S + 30.0 * epoch
        events += [
            (at_s, WorkersSpent({f"m{epoch}": {"compute": float(epoch)}})),
            (at_s, Standing(epoch, 100, 0.5, 2, 1, 3, "", None)),
            (at_s + 1.0, change(epoch)),
        ]
    lines = thin(events)
    counts = Counter(each.event.kind for each in lines)
    assert counts[WorkersSpent.kind] == 2  # the first, and what was held back at the end
    assert counts[MembershipChanged.kind] == 40
    assert counts[Standing.kind] <= 22  # one a minute
    spent = spent_by_machine(sorted(lines, key=lambda line: line.t_s))
    assert {name: figures["compute"] for name, figures in spent.items()} == {
        f"m{epoch}": float(epoch) for epoch in range(1, 41)
    }


def change(epoch: int, count: int = 3) -> MembershipChanged:
    names = tuple(f"m{epoch + index}" for index in range(count))
    trigger = Trigger(Cause.JOIN, names[:1])
    return MembershipChanged(epoch, trigger, "joined", 0.2, 2, 1, count - 1, names, names, 10, 0, False)


def a_run(machines: int, seconds: float, clock_s: float) -> Iterator[tuple[float, RunEvent]]:
    """What a run of so many machines says; each machine stays for half a day on average."""
    draw, clock, epoch = random.Random(3), 0, 0
    now_s, change_s, spent_s = 0.0, 0.0, 0.0
    while now_s < seconds:
        now_s += clock_s
        clock += 1
        yield now_s, ClockDone(clock, 1 / clock, 1024, clock_s)
        yield now_s, CutCommitted(clock, 0.1)
        yield (
            now_s,
            BytesSent({"push": clock * 1000, "params": clock * 900, "cut": clock, "move": 1, "other": 1}),
        )
        yield now_s, Standing(clock, 10**7, 1 / clock, 2, 4, machines - 4, "", 1.25)
        if now_s >= spent_s:
            spent_s += 60.0
            names = range(epoch, epoch + machines)
            yield (
                now_s,
                WorkersSpent(
                    {f"m{i}": {kind: round(now_s * draw.random(), 6) for kind in KINDS} for i in names}
                ),
            )
            work = {f"m{i}": Work(8, round(9 * draw.random(), 6), round(draw.random(), 6)) for i in names}
            yield now_s, WorkDone(epoch, clock, 10, work)
        if now_s >= change_s:
            change_s += draw.expovariate(machines * 2 / (12 * HOUR_S))
            epoch += 1
            yield now_s, MachineLost(f"m{epoch}", Loss.EVICTED, "")
            yield now_s, MachinesJoined({f"m{epoch + machines}": Tier.TRANSIENT})
            yield now_s, change(epoch, machines)


def write_run(folder: Path, events: Iterable[tuple[float, RunEvent]], seconds: float) -> tuple[int, int]:
    """(bytes of text, bytes on the disk) of the log of a run whose clock the test moves."""
    log = EventLog(folder / "events.jsonl")
    for t_s, event in events:
        log.write(event, t_s=t_s)
    log.write(RunFinished(seconds), t_s=seconds)
    log.close()
    files = files_of(log.path)
    text = sum(len(gzip.decompress(f.read_bytes())) if f.suffix == ".gz" else f.stat().st_size for f in files)
    return text, sum(file.stat().st_size for file in files)


@pytest.mark.slow
def test_500_machines_for_a_week_stay_below_1_gb(tmp_path: Path) -> None:
    text, disk = write_run(tmp_path, a_run(500, WEEK_S, 2.0), WEEK_S)
    print(f"500 machines, a week: {text / 1e6:.0f} MB of text, {disk / 1e6:.0f} MB on the disk")
    assert text < 1e9 and disk < 0.4e9
    assert len(files_of(tmp_path / "events.jsonl")) > 3
    assert len(newest_events(tmp_path / "events.jsonl")) < 500


@pytest.mark.slow
def test_a_day_of_a_small_run_keeps_its_figures(tmp_path: Path) -> None:
    day_s = 24 * HOUR_S
    events = list(a_run(5, day_s, 10.0))
    write_run(tmp_path, events, day_s)
    log = read_events(tmp_path / "events.jsonl")
    clocks = int(day_s / 10.0)
    assert clocks_of(log)[-1].event.clock == clocks
    assert events_of(log, CutCommitted)[-1].clock <= clocks
    from agileml.config.job import from_values

    summary = summarize(
        log, from_values({"application": "mlr", "clocks": clocks}), params_sha256="", metrics={}, split={}, versions={}
    )  # fmt: skip
    assert (summary["clocks"], summary["cuts"], summary["bytes"]["push"]) == (clocks, clocks, clocks * 1000)
    assert longest_gap_s(log) == pytest.approx(10.0, abs=1e-3)
    last = [event for _, event in events if isinstance(event, WorkersSpent)][-1]
    spent = spent_by_machine(log)
    assert {name: spent[name] for name in last.by_machine} == last.by_machine
    told = sum(work.units for window in work_windows(log) for work in window.by_machine.values())
    given = sum(work.units for _, e in events if isinstance(e, WorkDone) for work in e.by_machine.values())
    assert told == given


def test_a_log_in_several_files_reads_as_one_from_both_ends(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", segment_bytes=4096)
    for clock in range(1, 401):
        log.write(ClockDone(clock, 0.5, 4, 0.1), t_s=clock / 10)
    log.close()
    files = files_of(log.path)
    assert len(files) > 3 and all(file.name.endswith(".gz") for file in files[:-1])
    read = [done.clock for done in events_of(iterate_events(log.path), ClockDone)]
    assert read == list(range(1, 401))
    assert [done.clock for done in events_of(read_backwards(log.path), ClockDone)] == read[::-1]
    assert [done.clock for done in events_of(read_first(log.path, 3), ClockDone)] == [1, 2, 3]
    with (tmp_path / "events.jsonl").open("a") as half:
        half.write('{"t_s": 99, "kind": "clo')
    assert [done.clock for done in events_of(read_backwards(log.path), ClockDone)] == read[::-1]


def test_the_end_of_a_log_says_how_the_run_stands(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    for clock in range(1, 3001):
        log.write(ClockDone(clock, 0.5, 4, 0.1), t_s=clock / 10)
        if clock % 10 == 0:
            log.write(Standing(clock, 5000, 0.5, 2, 1, 3, "decided", 1.5), t_s=clock / 10)
    log.close()
    end = newest_events(log.path)
    assert len(end) < 400
    now = snapshot_of(end, 5000)
    assert (now.clock, now.stage, now.reliable, now.transient, now.spent_usd) == (3000, 2, 1, 3, 1.5)


def test_a_log_goes_on_where_earlier_processes_left_it(tmp_path: Path) -> None:
    """A half-made new file of a killed process, older files that the user has removed, and a copy of the user's."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path, segment_bytes=600)
    for clock in range(1, 41):
        log.write(CheckpointSaved(clock))
    log.close()
    first = files_of(path)
    assert len(first) > 3
    first[0].unlink()
    kept = [each.event for each in iterate_events(path)]
    (tmp_path / ".events.jsonl.tmp").write_text("")
    (tmp_path / "events-copy.jsonl").write_text(path.read_text())
    again = EventLog(path, segment_bytes=600, continue_at_s=5.0)
    for clock in range(41, 81):
        again.write(CheckpointSaved(clock))
    again.close()
    assert [each.event for each in iterate_events(path)] == [*kept, *map(CheckpointSaved, range(41, 81))]
    assert len(files_of(path)) > len(first)
    assert not (tmp_path / ".events.jsonl.tmp").exists()


def a_log_in_files(folder: Path) -> Path:
    """A log of 80 clocks in several packed files and one that is not."""
    log = EventLog(folder / "events.jsonl", segment_bytes=1500)
    for clock in range(1, 81):
        log.write(ClockDone(clock, 0.5, 4, 0.1), t_s=clock / 10)
    log.close()
    assert len(files_of(log.path)) > 4
    return log.path


def test_a_file_that_is_packed_while_a_log_is_read_is_found(tmp_path: Path) -> None:
    path = a_log_in_files(tmp_path)
    *_, newest, _ = files_of(path)
    whole = newest.with_suffix("")
    for read in (iterate_events, read_backwards):
        whole.write_bytes(gzip.decompress(newest.read_bytes()))
        newest.unlink()
        events = read(path)
        first = next(events)
        pack(whole)
        assert len(events_of([first, *events], ClockDone)) == 80


def test_what_is_packed_is_on_the_disk_before_the_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = tmp_path / "events-000001.jsonl"
    segment.write_text("{}\n")
    fsync, durable = os.fsync, list[tuple[bool, bool]]()

    def watched(descriptor: int) -> None:
        durable.append((os.path.isdir(f"/dev/fd/{descriptor}"), segment.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    pack(segment)
    assert durable == [(False, True), (True, True)]  # the content, then its name, while the file is there
    assert os.listdir(tmp_path) == ["events-000001.jsonl.gz"]


@pytest.mark.parametrize("damage", [b"", b"\xff", b"\x1f\x8b"])
@pytest.mark.parametrize("place", ["packed", "newest"])
def test_a_damaged_file_of_a_log_is_one_sentence(tmp_path: Path, damage: bytes, place: str) -> None:
    path = a_log_in_files(tmp_path)
    file = files_of(path)[1 if place == "packed" else -1]
    half = file.read_bytes()[: file.stat().st_size // 2]
    file.write_bytes(half + damage + (b"" if place == "packed" else b"\n"))
    for read in (iterate_events, read_backwards):
        with pytest.raises(SchemaError, match=file.name) as found:
            list(read(path))
        assert "\n" not in str(found.value)


def test_steps_are_held_only_for_a_replay(tmp_path: Path) -> None:
    """A log of supersteps has a line for every 512 minibatches; a report that held them would not fit into memory."""
    log = EventLog(tmp_path / "events.jsonl")
    reads = tuple((1000 + n,) * 16 for n in range(512))
    for first in range(0, 60 * 512, 512):
        log.write(StepsLogged(0, 1, first, tuple(range(first, first + 512)), reads))
        log.write(ClockDone(first // 512 + 1, 0.5, 4, 0.1))
    log.close()
    (tmp_path / "config.yaml").write_text("clocks: 60\n")
    tracemalloc.start()
    rebuild(tmp_path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < log.path.stat().st_size
    assert len(events_of(read_events(log.path), ClockDone)) == 60
    assert len(events_of(read_events(log.path, steps=True), StepsLogged)) == 60
