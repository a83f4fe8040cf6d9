"""Report and summary from made logs: right figures, one whole file, whatever came to pass."""

import json
import math
import os
import re
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.config.job import JobConfig, dump, from_values
from agileml.events.run import (
    BytesSent,
    ClockDone,
    CutCommitted,
    MachineLost,
    MachineNoticed,
    MachineReleased,
    MachinesJoined,
    MembershipChanged,
    PlanFinished,
    PlanFired,
    Process,
    RunFinished,
    RunStarted,
    UserCodeFailed,
    Warned,
)
from agileml.events.schema import Log, Logged, RunEvent, events_of, of_type
from agileml.events.terms import Cause, Loss, Tier, Trigger
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.owner import this_process
from agileml.runs.progress import (
    BARS,
    MOST_BARS,
    Losses,
    Progress,
    Rate,
    Snapshot,
    duration,
    line,
    parse_line,
)
from agileml.runs.report.page import ReportError, build_report, rebuild
from agileml.runs.summary import summarize
from tests.agileml.events.samples import changed
from tests.agileml.runs.report.frozen import frozen

CONFIG = from_values(
    {
        "application": "mlr",
        "clocks": 400,
        "machines": {"reliable": 1, "transient": 0, "max": 8},
        "stage_thresholds": [1, 3],
        "plan": [
            {"at_clock": 100, "join": 2},
            {"at_clock": 180, "join": 3},
            {"at_clock": 260, "notice": 2, "warning_s": 30},
            {"at_clock": 320, "notice": "all", "warning_s": 30},
            {"at_clock": 399, "kill_controller": True},
        ],
    }
)


def made_log(config: JobConfig = CONFIG) -> list[Logged[RunEvent]]:
    """A run that goes 1 -> 2 -> 3 -> 1, loses a machine on the way and redoes 6 clocks."""
    rng = np.random.default_rng(3)
    log: list[Logged[RunEvent]] = [
        Logged(0.0, RunStarted("demo", {"ray": "2"}, 1e9, Process("here", 1, 1e9)))
    ]
    now_s, epoch, transient, names = 14.0, 0, 0, iter(f"m{n}" for n in range(99))

    def say(event: RunEvent) -> None:
        log.append(Logged(round(now_s, 4), event))

    def change(stage: int, trigger: Trigger, base: int, **more: Any) -> None:
        nonlocal epoch, now_s
        epoch, now_s = epoch + 1, now_s + 0.05
        say(changed(epoch, trigger, stage=stage, transient=transient, base=base, **more))

    say(MachinesJoined({next(names): Tier.RELIABLE}))
    change(1, Trigger(Cause.START), 0)
    clock = 0
    at = {100: (0, 2), 180: (1, 3), 260: (2, -2), 320: (3, -2)}
    while clock < config.clocks:
        clock += 1
        now_s += float(rng.lognormal(-3, 0.3))
        say(ClockDone(clock, 0.1 + 2.2 * float(np.exp(-clock / 60)), examples=24, seconds=0.05))
        if clock in at:
            index, more = at.pop(clock)
            say(PlanFired(index, str(config.plan[index])))
            if more > 0:
                joined = tuple(next(names) for _ in range(more))
                trigger = Trigger(Cause.JOIN, joined)
                say(MachinesJoined(dict.fromkeys(joined, Tier.TRANSIENT)))
            else:
                trigger = Trigger(Cause.NOTICE, ("m1", "m2"))
                for machine in trigger.machines:
                    say(MachineNoticed(machine, 30.0))
            transient += more
            change({2: 2, 5: 3, 3: 2, 0: 1}[transient], trigger, clock)
            if more < 0:
                for machine in trigger.machines:
                    say(MachineReleased(machine))
            say(PlanFinished(index, str(config.plan[index])))
        if clock == 290 and transient == 3:
            say(MachineLost("m3", Loss.SILENT, "for 1 s"))
            transient -= 1
            now_s += 1.0
            change(2, Trigger(Cause.FAILURE, ("m3",)), 284, rolled_back=True, redone=6)
            clock = 284
        if clock % 64 == 0:
            say(CutCommitted(clock, 0.1))
            sent = {"pull": 9000 * clock, "push": 8000 * clock, "fetch": 70000, "cut": 900, "control": 55}
            say(BytesSent(sent))
    now_s += 0.2
    say(RunFinished(round(now_s, 4)))
    return log


def made_summary(log: Log, config: JobConfig = CONFIG) -> dict[str, Any]:
    return summarize(
        log, config, params_sha256="ab" * 32, metrics={"accuracy": 0.9611}, split={"train": 1437, "test": 360},
        versions={"ray": "2.60.0"},
    )  # fmt: skip


def test_a_planned_event_that_finished_has_fired_though_its_controller_died_before_the_log_had_that() -> None:
    log = made_log()
    lost = next(each for each in log if isinstance(each.event, PlanFired))
    log.remove(lost)
    assert made_summary(log)["plan"] == {"planned": 5, "fired": 4, "finished": 4}


def test_the_summary_says_what_the_events_say() -> None:
    log = made_log()
    summary = made_summary(log)
    assert summary["clocks"] == 400
    assert summary["clocks_redone"] == 6
    assert summary["stages"] == [1, 2, 3, 2, 1]
    assert summary["plan"] == {"planned": 5, "fired": 4, "finished": 4}
    assert summary["machines"] == {
        "reliable": {"started": 1, "joined": 0, "left": 0, "lost": 0},
        "transient": {"started": 0, "joined": 5, "left": 4, "lost": 1},
    }
    assert summary["bytes"]["push"] == 8000 * 384
    assert summary["seconds"] == log[-1].t_s
    assert summary["loss"] == events_of(log, ClockDone)[-1].loss
    times_s = [done.t_s for done in of_type(log, ClockDone)]
    assert summary["longest_gap_s"] == max(b - a for a, b in pairwise(times_s)) > 1.0
    assert "resumed_from" not in summary
    json.dumps(summary, allow_nan=False)


def test_a_sequential_run_and_one_that_never_began_have_summaries_too() -> None:
    log = [e for e in made_log() if isinstance(e.event, RunStarted | ClockDone | RunFinished)]
    summary = made_summary(log)
    assert (summary["stages"], summary["clocks_redone"], summary["machines"]) == ([], 0, {})
    nothing = made_summary([])
    assert (nothing["clocks"], nothing["loss"], nothing["longest_gap_s"], nothing["seconds"]) == (
        0,
        None,
        None,
        0.0,
    )


def test_the_report_is_the_live_page_with_everything_in_one_file() -> None:
    log = made_log()
    html = build_report(dump(CONFIG), log, made_summary(log))
    assert html == build_report(dump(CONFIG), log, made_summary(log))
    assert not re.findall(r"https?://|@import|url\(|src=|<link", html)  # nothing from outside
    assert "connect-src 'none'" in html and html.count("</script>") == 1
    shown = frozen(html)
    assert shown["state"] == "done" and shown["config"] == dump(CONFIG)
    assert ["stages", "1 → 2 → 3 → 2 → 1"] in shown["tiles"]
    assert ["params_sha256", "ab" * 32] in shown["summary"] and ["metrics.accuracy", "0.9611"] in shown[
        "summary"
    ]
    assert [(row[0], row[1]) for row in shown["plan"][:2]] == [
        ("100", "join 2, tier transient"), ("180", "join 3, tier transient"),
    ]  # fmt: skip
    assert shown["plan"][4] == ["399", "kill_controller", "-", "-"]
    assert shown["plan"][0][2] == f"{of_type(log, PlanFired)[0].t_s:.3f} s"
    assert [(stage, reliable + transient) for _, stage, reliable, transient in shown["members"]] == [
        (1, 1), (2, 3), (3, 6), (2, 4), (2, 3), (1, 1),
    ]  # fmt: skip
    told = [text for _, _, text, _ in shown["news"]]
    assert "m3 lost: silent (for 1 s)" in told and any("rolled back to clock 284" in text for text in told)
    assert shown["bytes"]["push"] == 8000 * 384
    clocks = of_type(log, ClockDone)
    assert shown["loss"] == [[e.t_s, e.event.loss, e.event.clock] for e in clocks]
    took_s = [(b.t_s - a.t_s) / max(1, b.event.clock - a.event.clock) for a, b in pairwise(clocks)]
    assert [point[1] for point in shown["took"]] == took_s
    assert shown["median_s"] == pytest.approx(np.median(took_s))


@pytest.mark.parametrize(
    "until", [None, RunStarted, ClockDone, MachineLost, MachinesJoined, MembershipChanged, MachineNoticed]
)
def test_a_run_that_broke_off_is_reported_as_far_as_it_came(until: type[RunEvent] | None) -> None:
    log = made_log()
    kinds = [type(each.event) for each in log]
    log = log[: kinds.index(until) + 1] if until else []
    if log:
        log.append(Logged(99.0, UserCodeFailed("m1", "</script><script>alert(1)</script>", "boom")))
    html = build_report(dump(CONFIG), log, {})
    assert html.count("</script>") == 1
    shown = frozen(html)
    assert shown["state"] == "did not end"
    assert shown["errors"] == (["machine m1: </script><script>alert(1)</script>"] if log else [])


def test_many_clocks_make_a_small_report() -> None:
    log = [Logged(n * 1e-3, ClockDone(n + 1, 1 / (n + 1), 1, None)) for n in range(60_000)]
    assert len(build_report(dump(CONFIG), log, {})) < 400_000


def test_neither_report_nor_summary_shows_the_signature_of_the_data() -> None:
    """Both are made to be shown to others; `mlr` names its data in the summary."""
    address = "https://me:word@host/a.npz?X-Amz-Signature=abcdef"
    config = from_values({"application": "mlr", "clocks": 400, "data": {"kind": "npz", "path": address}})
    log = made_log()
    digest, split = "ab" * 32, {"data": address, "train_examples": 5}
    summary = summarize(log, config, params_sha256=digest, metrics={}, split=split, versions={})
    shown = frozen(html := build_report(dump(config), log, summary))
    assert summary["split"] == {"data": "https://...@host/a.npz?...", "train_examples": 5}
    assert "path: https://...@host/a.npz?..." in shown["config"]
    assert "clocks: 400" in shown["config"]
    assert "abcdef" not in html and "word" not in html


def test_names_that_are_no_utf_8_are_in_the_report(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "job")
    name, reason = os.fsdecode(b"caf\xe9"), "Größe <b>"
    folder.events.write(RunStarted(name, {}, 0.0, this_process()))
    folder.events.write(Warned(reason))
    folder.events.close()
    folder.write_report(build_report("clocks: 1\n", read_events(folder.events.path), {}))
    text = (tmp_path / "run" / "report.html").read_text("utf-8")
    view = frozen(text)
    assert (view["name"], view["news"][0][2]) == (name, reason)
    assert "<b>" not in text


def test_rebuild_writes_the_same_report(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "demo")
    folder.write_config(dump(CONFIG))
    for each in made_log():
        folder.events.write(each.event, t_s=each.t_s)
    folder.events.close()
    events = read_events(folder.path / "events.jsonl")
    summary = made_summary(events)
    folder.write_summary(summary)
    folder.write_report(build_report(dump(CONFIG), events, summary))
    before = (folder.path / "report.html").read_text()
    (folder.path / "report.html").unlink()
    assert rebuild(folder.path).read_text() == before
    with pytest.raises(ReportError, match=r"holds no config\.yaml, expected the folder of a run"):
        rebuild(tmp_path)
    (folder.path / "events.jsonl").write_text("{broken\n")
    with pytest.raises(ReportError, match=r"events\.jsonl, line 1: found '\{broken', expected JSON"):
        rebuild(folder.path)


def test_plain_lines_come_at_changes_and_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    now = [0.0]
    with Progress(100, console=Console(width=200), every_s=5, clock_s=lambda: now[0]) as progress:
        for second in range(21):
            now[0] = float(second)
            stage = 1 if second < 12 else 2
            progress.show(Snapshot(second * 5, 100, 0.5, stage, 1, 2 * (stage - 1)))
    said = capsys.readouterr().out.splitlines()
    assert [int(re.match(r"clock (\d+)/100", text)[1]) for text in said] == [0, 25, 50, 60, 85, 100]
    assert said[0] == "clock 0/100, loss 0.5, stage 1, machines 1 reliable + 0 transient"
    assert (
        said[3] == "clock 60/100, loss 0.5, stage 2, machines 1 reliable + 2 transient, 5 clocks/s, 8 s left"
    )


@pytest.mark.parametrize("note", ["waits for [m0, m1]", "decided: [/data/x] [b]"])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_brackets_are_shown_as_they_are(note: str, is_terminal: bool) -> None:
    from rich.console import Console

    out = StringIO()
    with Progress(10, console=Console(file=out, force_terminal=is_terminal, width=200)) as progress:
        progress.show(Snapshot(1, 10, 0.5, 1, 1, 2, note))
    assert note in out.getvalue()


def test_a_terminal_shows_one_live_block() -> None:
    from rich.console import Console

    console = Console(force_terminal=True, width=100, record=True)
    with Progress(10, console=console) as progress:
        progress.show(Snapshot(4, 10, 0.25, 2, 1, 3, "2 of 3 machines"))
    text = console.export_text()
    assert "clock 4/10" in text
    assert "1 reliable, 3 transient" in text
    assert "2 of 3 machines" in text


def test_rate_forgets_what_is_old_and_starts_anew_after_a_rollback() -> None:
    rate = Rate()
    for second in range(60):
        rate.add(second, second * (1 if second < 30 else 2))
    assert rate.clocks_per_s == pytest.approx(2)
    rate.add(60, 3)
    assert rate.clocks_per_s is None
    assert [duration(s) for s in (0.2, 59.5, 185, 7385)] == ["1 s", "1:00", "3:05", "2:03:05"]
    assert line(Snapshot(0, 5, None, 0, 0, 0, "1 of 3 machines"), None) == "clock 0/5 (1 of 3 machines)"


def test_the_loss_so_far_is_a_line_of_bars() -> None:
    losses = Losses()
    for clock in range(8):
        losses.add(clock, 8.0 - clock)
        losses.add(clock, None)
    assert losses.bars() == BARS[::-1]
    losses.add(4, 1.0)  # after a rollback
    assert losses.bars() == "█▇▅▄▁"
    for clock in range(5, 100_000):
        losses.add(clock, 1.0 if clock < 50_000 else math.nan if clock % 2 else 3.0)
    bars = losses.bars()
    assert MOST_BARS / 2 <= len(bars) <= MOST_BARS
    assert bars[1] == BARS[0] and bars[-1] == BARS[-1]
    assert Losses().bars() == ""


def test_clocks_that_a_rollback_reports_at_once_are_no_rate() -> None:
    rate = Rate()
    for tenth in range(100):
        rate.add(tenth / 10, tenth)
    assert rate.clocks_per_s == pytest.approx(10)
    rate.add(10.0, 60)  # back to the cut; what was computed under the new view meanwhile comes in one report
    told = []
    for tenth in range(1, 60):
        rate.add(10 + tenth / 10, 93 + tenth)
        told.append(rate.clocks_per_s)
    assert told[0] is None  # it was 340
    assert [each for each in told if each is not None] == pytest.approx([10.0] * 40)  # from 2 s on


def test_the_time_in_which_machines_start_is_no_part_of_the_rate() -> None:
    rate = Rate()
    for second in range(20):  # machines start
        rate.add(second, 0)
    assert rate.clocks_per_s is None
    rate.add(20.0, 100)
    assert rate.clocks_per_s == 100  # since it was last at rest, not over 20 s
    rate.add(21.0, 100)
    assert rate.clocks_per_s == 50  # a pause in the middle does count


def test_a_run_that_resumes_has_not_computed_the_clocks_before_its_checkpoint() -> None:
    from rich.console import Console

    times = iter([0.0, 30.0, 31.0, 32.0])
    console = Console(file=StringIO(), record=True, width=200)
    with Progress(1000, console=console, every_s=0.0, clock_s=lambda: next(times)) as progress:
        progress.show(Snapshot(0, 1000, None, 0, 0, 0, "2 of 2 machines"))
        for clock in (900, 905, 910):
            progress.show(Snapshot(clock, 1000, 0.5, 1, 1, 1))
    waiting, *lines = console.export_text().splitlines()
    assert waiting == "clock 0/1000 (2 of 2 machines)"
    parsed = [parse_line(each) for each in lines]
    assert [each and each[1] for each in parsed] == [None, 5.0, 5.0]
