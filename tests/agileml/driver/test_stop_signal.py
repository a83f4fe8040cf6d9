"""A run that is stopped ends with its next cut, to the bit; SIGTERM asks for that once, and ends it the second time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agileml.core.cuts.ending import Ending
from agileml.core.protocol.inputs import Stop
from agileml.core.protocol.view import INITIAL, CutId
from agileml.driver.stop_signal import LONGEST_S, StopSignal
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
    ending = Ending(100)
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
    with StopSignal() as asked:
        assert asked.taken() is None
        os.kill(os.getpid(), signal.SIGTERM)
        stop = asked.taken()
        assert stop is not None and stop.deadline_s is not None
        assert asked.taken() is None
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray puts its own there
        asked.arm()
        with pytest.raises(SystemExit) as left:
            os.kill(os.getpid(), signal.SIGTERM)
        assert left.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert LONGEST_S < 900  # Ray kills a job that takes longer
