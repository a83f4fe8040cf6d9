"""A run in a process of its own, beside the user's Ray: callbacks, results, errors and signals come through."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

import agileml
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.errors import RunError
from agileml.runs.history import ClockRow
from agileml.session.beside import Answered, Called, received, run_beside, send
from agileml.session.beside_process import CallbackElsewhere
from tests.faults.fault_rig import MLR, job


class Counting(agileml.Callback):
    """Remembers what it is told, in this process."""

    def __init__(self, interrupt_at: int = 0) -> None:
        self.clocks: list[int] = []
        self.ends: list[Any] = []
        self._interrupt_at = interrupt_at

    def on_clock(self, row: ClockRow) -> None:
        self.clocks.append(row.clock)
        if row.clock == self._interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)

    def on_end(self, result: Any) -> None:
        self.ends.append(result)


class Twice(Counting):
    """Is interrupted again when it hears that the run ends, and answers when the run's process has ended."""

    def on_fail(self, reason: str) -> None:
        (child,) = psutil.Process().children()
        os.kill(os.getpid(), signal.SIGINT)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


class Ending(agileml.Callback):
    """Ends the run, and then fails."""

    def on_clock(self, row: ClockRow) -> str | None:
        if row.clock == 7:
            return "seven is enough"
        assert row.clock < 7, "more than seven"
        return None


def beside(tmp_path: Path, *callbacks: agileml.Callback, **more: Any) -> agileml.Result:
    config = from_values(job(MLR, out=str(tmp_path / "out"), **more))
    return run_beside(config, None, callbacks, name="run", sequential=True)


@pytest.mark.slow
def test_the_users_callbacks_are_called_here_and_may_end_the_run(tmp_path: Path) -> None:
    counting = Counting()
    result = beside(tmp_path, counting, Ending())
    assert counting.clocks == list(range(1, 8)) and counting.ends == [result]
    assert result.summary["stopped"] and result.summary["clocks"] == 7
    assert result.history[6]["learning_rate"] == 0.05
    assert result.application is not None and result.application.describe()["data"]
    log = (tmp_path / "out" / "events.jsonl").read_text()
    assert "seven is enough" in log


class Failing(agileml.Callback):
    """Fails at its end, or says what is no sentence."""

    def __init__(self, answer: Any = None) -> None:
        self.answer, self.ends = answer, 0

    def on_clock(self, row: ClockRow) -> Any:
        return self.answer

    def on_end(self, result: Any) -> None:
        self.ends += 1
        raise OSError("no space")


@pytest.mark.slow
def test_callbacks_that_fail_at_the_end_take_no_result_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing, talking, counting = Failing(), Failing(open), Counting()
    result = beside(tmp_path, failing, talking, counting)
    assert counting.ends == [result]
    assert (failing.ends, talking.ends) == (1, 0)
    assert "proteus: the callback Failing is called no more: OSError: no space" in capsys.readouterr().err
    log = (tmp_path / "out" / "events.jsonl").read_text()
    assert "the callback Failing is called no more: it returned <built-in function open>" in log


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Counting, Twice])
def test_a_signal_goes_to_the_run(kind: type[Counting], tmp_path: Path) -> None:
    counting = kind(interrupt_at=3)
    with pytest.raises(KeyboardInterrupt):  # as in this process: only a run on machines ends in order
        beside(tmp_path, counting, clocks=10**6)
    assert counting.clocks[:3] == [1, 2, 3] and not counting.ends
    assert "RunFinished" not in (tmp_path / "out" / "events.jsonl").read_text()


def test_an_answer_to_a_call_that_was_interrupted_is_none_to_the_next() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        callback = CallbackElsewhere(theirs, 0, itertools.count(7))
        send(ours, Answered("late", "failed", call=6))
        send(ours, Answered("enough", call=7))
        assert callback.on_evaluate(3, {}) == "enough"
        assert received(ours) == Called(0, "on_evaluate", (3, {}), 7)


@pytest.mark.slow
def test_errors_come_through(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        beside(tmp_path, profile=True)
    assert told.value.key == ("profile",)
    config = from_values(job(MLR, out=str(tmp_path / "gone")))
    with pytest.raises(RunError, match="the run's process ended with exit code 3"):
        run_beside(config, Leaving(), (), name="run", sequential=True)


class Leaving(agileml.Application):
    """Ends the process that unpickles it."""

    def __init__(self) -> None: ...

    def __reduce__(self) -> Any:
        return os._exit, (3,)

    def tables(self) -> Any: ...
    def load(self, slice_index: int) -> Any: ...
    def process(self, unit: Any, items: Any, parameters: Any) -> Any: ...


SCRIPT = """
import os, sys
import ray, torch
import numpy as np
import agileml
from agileml.apps.torch.module import TorchModule

x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

def make():  # of the script itself, so it travels by value
    return torch.nn.Linear(4, 2)

def train(out):
    config = {"application": "torch", "model": {"batch_size": 16}, "clocks": 6, "out": out}
    machines = {"reliable": 1, "transient": 1, "max": 2}
    app = TorchModule(build=make, dataset=(x, (x[:, 0] > 0).astype(np.int64)))
    checkpoint = {"path": out + "/saved", "every_s": 60.0}
    return agileml.run(config, app, machines=machines, checkpoint=checkpoint)

@ray.remote
class Kept:
    def value(self):
        return 42

if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    kept = Kept.remote()
    assert ray.get(kept.value.remote()) == 42
    before = {name: value for name, value in os.environ.items() if "RAY" in name}
    result = train(sys.argv[1] + "/one")
    again = result.resume(clocks=9, optimizer={"learning_rate": 0.01}, out=sys.argv[1] + "/two")
    assert again.summary["clocks"] == 9 and again.history[-1]["learning_rate"] == 0.01
    assert isinstance(again.module(), torch.nn.Linear)
    assert ray.get(kept.value.remote()) == 42
    assert before == {name: value for name, value in os.environ.items() if "RAY" in name}
    ray.shutdown()
    train(sys.argv[1] + "/three")  # in this process
    assert before == {name: value for name, value in os.environ.items() if "RAY" in name}
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    assert ray.get(Kept.remote().value.remote()) == 42
    print("all is well")
"""


@pytest.mark.cluster
@pytest.mark.slow
def test_the_users_own_ray_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all is well\n")
