"""The start of a run says what it waits for, shows the output of a process that does not come up, and gives up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import ray

from agileml.cluster.ray_cluster import GcsWatch
from agileml.driver.startup import CHECK_S, OUTPUT_S, SAY_S, Startup, newest_output
from agileml.driver.stop_signal import StopSignal
from agileml.errors import HeadLostError, RunError

WANTS = "wants 1 reliable + 2 transient machines"


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_it_speaks_once_shows_the_output_and_gives_up(tmp_path: Path) -> None:
    clock = Clock()
    said: list[str] = []
    startup = Startup(60.0, StopSignal(), said.append, clock_s=clock, logs=lambda: tmp_path)
    (tmp_path / "worker-1.err").write_text(":job_id:01\nImportError: this is the user's random.py\n")

    def look(after_s: float, up: int = 0, missing: str = WANTS) -> None:
        clock.now_s += after_s
        startup.look(up, missing)

    look(SAY_S - 1)
    assert not said
    look(1.0)
    look(0.1)
    assert said == [f"the run waits: it {WANTS}"]
    look(1.0, up=1)  # another process: the wait begins anew
    look(OUTPUT_S - 1, up=1)
    assert len(said) == 1
    look(1.0, up=1)
    assert "  ImportError: this is the user's random.py" in said
    assert not any(":job_id:" in line for line in said)
    shown = len(said)
    look(10.0, up=1)
    assert len(said) == shown
    with pytest.raises(RunError, match=r"machines.wait_s = 60 s: the run wants 1 reliable"):
        look(60.0, up=1)


def test_while_nothing_is_missing_it_never_gives_up() -> None:
    clock = Clock()
    said: list[str] = []
    startup = Startup(5.0, StopSignal(), said.append, clock_s=clock)
    for _ in range(10):
        clock.now_s += 100
        startup.look(3, "")
    assert not said


def test_a_head_that_is_silent_for_a_moment_ends_no_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the controller's process started, one answer that took longer than a second did."""
    clock = Clock()

    def wait(references: list[object], **_: object) -> tuple[list[object], list[object]]:
        clock.now_s += 0.2
        return [], references

    def nodes(_: float) -> frozenset[str] | None:
        since_s = clock.now_s - 100.0
        return None if 10 < since_s < 20 or since_s > 60 else frozenset({"n1"})

    monkeypatch.setattr(ray, "wait", wait)
    head = GcsWatch(nodes, clock)
    startup = Startup(600.0, StopSignal(), lambda sentence: None, clock_s=clock, logs=lambda: None)
    with pytest.raises(HeadLostError, match="has not answered for 40 s"):
        startup.result(object(), "the controller's process", head.live_nodes)
    assert clock.now_s - 100.0 == pytest.approx(60 + 40, abs=2 * CHECK_S)


def test_the_output_shown_is_the_newest_that_names_an_error(tmp_path: Path) -> None:
    now_s = time.time()
    for age_s, name, text in [
        (500, "worker-old.err", "ValueError: of an earlier run"),
        (20, "raylet.err", "of https://me:word@host/a?sig=abc\nModuleNotFoundError: No module named 'mine'"),
        (10, "worker-new.err", "a harmless warning"),
        (5, "worker-empty.err", ":job_id:01\n:actor_name:MachineActor\n"),
    ]:
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (now_s - age_s, now_s - age_s))
    shown = newest_output(tmp_path, now_s - 60)
    assert shown[0].endswith("raylet.err:")
    assert shown[1:] == ["  of https://...@host/a?...", "  ModuleNotFoundError: No module named 'mine'"]
    assert "no process has printed" in newest_output(tmp_path, now_s)[0]
    assert newest_output(None, now_s) == []
