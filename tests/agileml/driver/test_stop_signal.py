"""A run that is stopped ends with its next cut, to the bit; a signal asks for that once, the second one ends it now."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agileml.core.cuts.run_end import RunEnding
from agileml.core.protocol.inputs import Stop
from agileml.core.protocol.view import INITIAL, CutId
from agileml.driver.stop_signal import COPY_S, LONGEST_S, StopSignal
from agileml.events.run import CutCommitted, StopAsked
from tests.agileml.process.engine_rig import LIMIT_S, Rig, reference

JOB: dict[str, Any] = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks_per_pass": 4,
    "slices": 4,
    "machines": {"reliable": 1, "transient": 2, "max": 4},
    "clocks": 1_000_000,
}


@pytest.mark.parametrize("stage", [1, 2])
def test_the_result_is_that_of_so_many_clocks(stage: int, tmp_path: Path) -> None:
    rig = Rig({**JOB, "stage": stage}, tmp_path)
    until_s = time.monotonic() + LIMIT_S
    while rig.head.state().clock < 20:
        assert time.monotonic() < until_s
        time.sleep(0.005)
    rig.head.tell(Stop())
    ran = rig.finish()
    clock = ran.of(CutCommitted)[-1].clock
    assert len(ran.of(StopAsked)) == 1
    assert 20 <= clock < JOB["clocks"]
    assert ran.sha256 == reference({**JOB, "clocks": clock})


def test_the_next_cut_is_the_last_or_at_the_deadline_the_one_there_is() -> None:
    ending = RunEnding(100)
    old, new = CutId(10, 1), CutId(20, 1)
    assert not ending.is_last(old, 0.0)
    assert ending.is_last(CutId(100, 1), 0.0)
    assert ending.stop(old, 50.0)
    assert not ending.stop(new, 60.0)  # said again: the earlier deadline stays
    assert not ending.is_last(old, 49.0)
    assert ending.is_last(old, 50.0)
    assert ending.is_last(new, 0.0)
    assert not ending.is_last(INITIAL, 1e9)  # nothing was computed


def test_sigterm_asks_once_and_ends_the_second_time() -> None:
    before = signal.getsignal(signal.SIGTERM)
    now_s = 100.0
    with StopSignal(lambda: now_s) as asked:
        assert asked.taken(0.0) is None
        os.kill(os.getpid(), signal.SIGTERM)
        stop = asked.taken(0.0)
        assert stop is not None and stop.deadline_s is not None
        assert asked.taken(0.0) is None
        os.kill(os.getpid(), signal.SIGTERM)  # a copy, as `timeout` sends it
        now_s += COPY_S
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray puts its own there
        asked.arm()
        with pytest.raises(SystemExit) as left:
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert LONGEST_S < 900  # Ray kills a job that takes longer


@pytest.mark.parametrize("set_by_s", [-7200.0, 7200.0])
def test_the_deadline_of_a_stop_is_as_far_away_however_the_clock_of_the_host_was_set(set_by_s: float) -> None:
    """The controller goes by the clock as it was when it began: set back, the run would end at once, with the cut
    before."""
    now_s, controller_s = 100.0, time.time() - set_by_s
    asked = StopSignal(lambda: now_s)
    asked.ask()
    now_s += 5.0  # while the machines start
    stop = asked.taken(controller_s)
    assert stop is not None and stop.deadline_s == controller_s + LONGEST_S - 5.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_ask_like_sigterm(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal() as asked:
        os.kill(os.getpid(), number)
        assert asked.is_asked
        assert asked.taken(0.0) is not None
        with pytest.raises(SystemExit) as left:
            os.kill(os.getpid(), number)
        assert left.value.code == 128 + number
    assert signal.getsignal(number) == before


def test_a_signal_while_a_run_stops_by_itself_is_the_first_one() -> None:
    """Early stopping asked: `proteus stop` just then must not cost the result."""
    with StopSignal() as asked:
        asked.ask()
        stop = asked.taken(0.0)
        assert stop is not None and not asked.is_signalled
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.is_signalled and asked.taken(0.0) is None
        with pytest.raises(SystemExit):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not asked.is_asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


CLOSED_TERMINAL = """
import os, sys, time
from agileml.driver.stop_signal import StopSignal
with StopSignal() as asked:
    print("ready", flush=True)
    while not asked.is_asked:  # not signal.pause(): a signal may come between the look and the pause
        time.sleep(0.01)
    print("to a terminal that is gone", flush=True)
    open(sys.argv[1], "w").write("ended well")
"""


def test_a_terminal_that_is_gone_is_not_written_to(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", CLOSED_TERMINAL, str(ended)])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 100)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ended.read_text() == "ended well"
