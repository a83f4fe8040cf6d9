"""Machines with several compute processes: the bits of one process, and processes that live and die together."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agileml.config.hardware import Split
from agileml.core.protocol.commands import Computed, CoresSplit, HaltKind
from agileml.core.protocol.messages import Failure
from agileml.events.run import MachinesJoined, SplitDecided
from agileml.process.head import HeadState
from agileml.runs.report.sentences import sentence
from straggler.coverage import span
from tests.agileml.process.compute_pool.alone import LIMIT_S, Alone
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MF, MLR, FaultRig, job

# Without a library whose loading takes seconds in each process.
COUNTS = {"application": "tests.agileml.process.compute_pool.failing:Counts"}
TORCH = {
    "application": "torch",
    "data": {"kind": "digits", "shape": [1, 8, 8]},
    "model": {"module": "agileml.apps.torch.models:cnn", "arguments": {"size": 8}, "batch_size": 64},
    "optimizer": {"kind": "momentum", "learning_rate": 0.01},
    "clocks_per_pass": 4,
}


class WholeRig(FaultRig):
    """Machines of two cores, in this process."""

    cores = 2


@pytest.mark.parametrize(
    ("base", "joins"),
    [
        pytest.param(MF, 0, id="mf"),  # each process more is seconds of loading
        pytest.param(MLR, 1, id="mlr", marks=pytest.mark.slow),
        pytest.param(TORCH, 1, id="torch", marks=pytest.mark.slow),
    ],
)
def test_machines_of_two_processes_have_the_bits_of_one_process(
    base: Mapping[str, Any], joins: int, tmp_path: Path
) -> None:
    machines = {"reliable": 1, "transient": 1, "max": 3}
    plan = [{"at_clock": 6, "join": 1}] * joins + [{"at_clock": 10, "kill": 1}]
    values = job(base, clocks=16, units_per_slice=2, machines=machines, plan=plan)
    ran = WholeRig(values, tmp_path).finish()
    assert ran.sha256 == reference(values), ran.halted
    assert len(ran.of(MachinesJoined)) == 1 + joins


def test_one_contribution_leaves_the_machine_and_a_dead_process_is_reported() -> None:
    before = set(psutil.Process().children())
    alone = Alone(COUNTS)
    try:
        answer = alone.compute(span(0, 8))
        assert isinstance(answer, Computed) and answer.bundle == span(0, 8)
        assert sum(part.examples for _, part in answer.contributions) > 0
        assert not alone.pool.is_at_work(0)
        victim, other = set(psutil.Process().children()) - before
        victim.kill()
        assert "ended by itself (exit code -9)" in alone.deaths.get(timeout=LIMIT_S)
        assert not psutil.wait_procs([victim, other], timeout=LIMIT_S)[1]
    finally:
        alone.pool.stop()


@pytest.mark.slow
def test_a_process_that_ends_while_it_computes_is_no_failure_of_user_code() -> None:
    alone = Alone({"application": "tests.agileml.process.compute_pool.failing:EndsAtUnit5"})
    try:
        alone.load(span(0, 8))
        alone.ask_for(0, span(0, 8))
        assert alone.deaths.get(timeout=LIMIT_S) == "compute process 1 of 2 ended by itself (exit code 7)"
        alone.pool._thread.join(LIMIT_S)
        assert alone.heard.empty()
    finally:
        alone.pool.stop()


def test_a_process_that_ends_before_it_has_begun_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "never")  # no interpreter begins with it
    alone = Alone(COUNTS)
    try:
        assert "of 2 ended by itself (exit code 1)" in alone.deaths.get(timeout=LIMIT_S)
        alone.pool._thread.join(LIMIT_S)
        assert alone.heard.empty()
    finally:
        alone.pool.stop()


def open_results() -> set[int]:
    """The results of processes that this process has open, by inode; a map of one has a descriptor of its own."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            if "proteus-results" in os.readlink(each):
                found.add(each.stat().st_ino)
    return found


def test_an_application_is_told_how_many_threads_a_process_has() -> None:
    application = "tests.agileml.process.compute_pool.failing:CountsThreads"
    alone = Alone({"application": application, "deterministic": False}, (Split(2, 3),))
    try:
        found = alone.compute(span(0, 8))
    finally:
        alone.pool.stop()
    assert isinstance(found, Computed), found
    assert sum(part.loss for _, part in found.contributions) / 8 == 3


@pytest.mark.slow
def test_the_quickest_split_stays_and_the_other_processes_end() -> None:
    values = {
        "application": "tests.agileml.process.compute_pool.failing:CountsThreads",
        "deterministic": False,
    }
    gc.collect()  # pools of other tests have had results, too
    before, open_before = set(psutil.Process().children()), open_results()
    alone = Alone(values, (Split(2, 1), Split(1, 2)))
    try:
        found = alone.compute(span(0, 8))
        children = set(psutil.Process().children()) - before
        assert len(children) == 2
        threads = []
        for clock in range(1, 30):
            assert isinstance(found, Computed), found
            assert sum(part.examples for _, part in found.contributions) == 8
            threads.append(sum(part.loss for _, part in found.contributions) / 8)
            found = alone.compute_at(clock, span(0, 8))
            if isinstance(found, CoresSplit):
                break
        assert isinstance(found, CoresSplit)
        # Each split has two clocks to settle, and four that are measured.
        assert threads == [0.0] * 6 + [2.0] * 6
        assert (found.workers, found.threads) in {(2, 1), (1, 2)}
        assert "units/s with 2 processes of 1 thread, " in found.reason
        while len(psutil.wait_procs(children, timeout=0.1)[1]) > found.workers:
            pass  # the others are ending
        assert len(open_results() - open_before) == found.workers, (
            "their results would keep as much memory as the parameters need"
        )
        last = alone.heard.get(timeout=LIMIT_S)  # the clock that was computed meanwhile
        assert isinstance(last, Computed)
        last = alone.compute_at(30, span(0, 8))
        assert isinstance(last, Computed)
        assert sum(part.loss for _, part in last.contributions) == 8 * found.threads
        assert alone.deaths.empty()
    finally:
        alone.pool.stop()


@pytest.mark.slow
def test_user_code_that_fails_is_one_sentence_and_each_process_sees_one_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,7")
    alone = Alone({"application": "tests.agileml.process.compute_pool.failing:FailsAtUnit5"})
    try:
        failure = alone.compute(span(0, 8))
        assert isinstance(failure, Failure)
        assert failure.problem == "clock 0, slice 5, part 0: RuntimeError: GPUs 7"
        assert "failing.py" in failure.trace
        assert alone.deaths.empty()
    finally:
        alone.pool.stop()


@pytest.mark.slow
@pytest.mark.parametrize("base", [MLR, TORCH], ids=["mlr", "torch"])
def test_each_machine_of_a_run_chooses_its_split_and_says_so(base: Mapping[str, Any], tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": 1, "max": 2}
    values = job(base, deterministic=False, clocks=5000, units_per_slice=2, machines=machines)
    chosen: dict[str, SplitDecided] = {}

    def watch(rig: FaultRig, state: HeadState) -> None:
        found = [each.event for each in state.events if isinstance(each.event, SplitDecided)]
        chosen.update({event.machine: event for event in found})
        if chosen.keys() == {"m0", "m1"}:
            rig.ask_to_stop()

    ran = WholeRig(values, tmp_path, watch).finish()
    assert ran.tables is not None, ran.halted
    assert ran.clocks < 5000
    assert all((each.workers, each.threads) in {(2, 1), (1, 2)} for each in chosen.values())
    assert all(sentence(each) for each in chosen.values())


@pytest.mark.slow
def test_a_run_whose_user_code_fails_ends_with_that_sentence(tmp_path: Path) -> None:
    values = job({"application": "tests.agileml.process.compute_pool.failing:FailsAtUnit5"})
    ran = WholeRig({**values, "machines": {"reliable": 1, "transient": 0, "max": 1}}, tmp_path).finish()
    assert ran.halted is not None and ran.halted.kind is HaltKind.USER_CODE
    assert "slice 5, part 0: RuntimeError" in ran.halted.reason


def test_no_process_outlives_a_machine_that_is_killed() -> None:
    program = (
        "import psutil, time\n"
        "from straggler.coverage import span\n"
        "from tests.agileml.process.compute_pool.alone import Alone\n"
        f"alone = Alone({COUNTS})\n"
        "alone.compute(span(0, 8))\n"
        "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    machine = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert machine.stdout is not None
        children = [psutil.Process(int(pid)) for pid in machine.stdout.readline().split()]
        assert len(children) == 2
    finally:
        machine.send_signal(signal.SIGKILL)
        machine.communicate()
    assert not psutil.wait_procs(children, timeout=LIMIT_S)[1]
