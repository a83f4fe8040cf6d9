"""Workers as processes: the bits of one process; a worker that fails ends the run with one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.run.config import PipelineConfig, RunError
from pipeline.run.job import Job, StageShape
from pipeline.run.main import main
from pipeline.run.processes import messages_bytes, private_folder, restore, run_processes, save_start
from pipeline.run.result import minibatch_losses, read_report
from pipeline.run.sequential import run_sequential
from pipeline.run.tensor_files import digest, read_tensors


def a_job(name: str = "mlp", **changes: Any) -> Job:
    values = {"training": f"tests.pipeline.run.training:{name}", "minibatches": 4, **changes}
    return Job(PipelineConfig.model_validate(values))


def both(job: Job, replicas: tuple[int, ...], tmp_path: Path) -> tuple[str, str, int]:
    count = len(job.traced.layers)
    ends = tuple(count * (stage + 1) // len(replicas) for stage in range(len(replicas)))
    shape = StageShape(ends, replicas, (False,) * len(ends))
    run_processes(job, shape, tmp_path)
    found: dict[str, torch.Tensor] = {}
    for stage in range(len(ends)):
        found |= read_tensors(tmp_path / f"stage-{stage + 1}.safetensors")
    reports = [read_report(tmp_path / f"worker-{n}.json") for n in range(sum(replicas))]
    codes, lists = job.codes(shape), job.schedule(shape)
    workers = run_sequential(lists.schedule, lambda n, ends: job.worker(lists, shape, codes, n, ends))
    alone: dict[str, torch.Tensor] = {}
    for worker in workers[::-1]:
        alone |= {name: value.detach() for name, value in worker.weights.values().items()}
    alone |= {name: job.traced.values[name] for name in job.traced.changed}
    losses = [worker.losses for worker in workers if worker.losses]
    assert {b: x for report in reports for b, x in report.losses.items()} == {
        b: x for found in losses for b, x in found.items()
    }
    return digest(found), digest(alone), len(minibatch_losses(reports, job.config.parts))


@pytest.mark.slow  # test_cli_run.py has one such run
@pytest.mark.parametrize(
    ("name", "changes", "replicas"),
    [
        ("language", {"order": "zero-bubble"}, (1, 2)),
        ("mlp", {"mode": "stash", "minibatches": 9, "epoch": 6}, (2, 1)),
        ("mlp", {"threads": 2}, (1, 1)),
    ],
)
def test_processes_have_the_bits_of_one(
    name: str, changes: dict[str, Any], replicas: tuple[int, ...], tmp_path: Path
) -> None:
    job = a_job(name, **changes)
    apart, alone, minibatches = both(job, replicas, tmp_path)
    assert apart == alone
    assert minibatches == job.config.minibatches


def test_a_process_has_the_data_that_the_run_began_with_or_says_that_it_has_another(tmp_path: Path) -> None:
    job = a_job("from_numpy")
    shape = StageShape((len(job.traced.layers),), (1,), (False,))
    save_start(job, shape, tmp_path)
    again, _ = restore(tmp_path)
    assert again.data_digest() == job.data_digest() != a_job("from_numpy", seed=1).data_digest()
    save_start(a_job("without_seed"), shape, tmp_path)
    with pytest.raises(
        RunError, match=r"minibatch\(1\) of .*:without_seed is another one than where the run began"
    ):
        restore(tmp_path)


def test_messages_lie_where_there_is_room_for_them() -> None:
    job = a_job("mlp")
    count = len(job.traced.layers)
    one, two = (StageShape((2, count)[-n:], (1,) * n, (False,) * n) for n in (1, 2))
    assert messages_bytes(job, one) == 0
    size = messages_bytes(job, two)
    activations = sum(fact.size_bytes for fact in job.codes(two)[0].outgoing)
    assert 2 * 3 * activations < size < 2 * 3 * (activations + 4096)  # both ways, two in flight and one more
    shared = Path("/dev/shm")
    with private_folder(size) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent == shared or not os.access(shared, os.W_OK)
    with private_folder(1 << 60) as folder:
        assert folder.parent != shared
    assert not folder.exists()


def test_a_worker_that_fails_is_named_and_the_others_end(tmp_path: Path) -> None:
    job = a_job("fails_later")
    shape = StageShape((2, len(job.traced.layers)), (1, 1), (False, False))
    with pytest.raises(RunError, match=r"worker 1 ended with code 1: RuntimeError: no such target"):
        run_processes(job, shape, tmp_path)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"proteus-{os.getpid()}-")]


STARTS = """
import sys
from pathlib import Path
from pipeline.run.job import StageShape
from pipeline.run.processes import run_processes
from tests.pipeline.run.test_processes import a_job

job = a_job(minibatches=20_000)
run_processes(job, StageShape((2, len(job.traced.layers)), (1, 1), (False, False)), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTS, str(tmp_path)])
    until_s = time.monotonic() + 120
    while not (tmp_path / "worker-1.log").exists():
        assert parent.poll() is None and time.monotonic() < until_s
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _running(tmp_path) or list(Path("/dev/shm").glob(f"proteus-{parent.pid}-*")):
        assert time.monotonic() < until_s, _running(tmp_path)
        time.sleep(0.05)


def test_no_worker_begins_where_the_process_that_started_them_has_ended(tmp_path: Path) -> None:
    """It may be killed in the seconds in which torch is loaded for the workers: nobody would end them then."""
    (links := tmp_path / "links").mkdir()
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    if (starter := os.fork()) == 0:
        try:
            main(tmp_path, links, 1, parent=over.pid)
        finally:
            os._exit(2)
    _, status = os.waitpid(starter, 0)
    assert (os.waitstatus_to_exitcode(status), os.listdir(tmp_path)) == (1, [])


def _running(folder: Path) -> list[str]:
    """Processes that have the folder among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # it has ended
            continue
    return found
