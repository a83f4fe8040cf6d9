"""The workers of a pipeline as processes of this host.

The parent writes the config, the stages and the schedule into the run's folder and starts `main.py`, which forks the
workers. Each makes the same job from the folder, connects to its neighbours and runs its list. Weights and reports come
back as files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from pipeline.profile.user_model import looked_in
from pipeline.run.config import RunError, saved_config
from pipeline.run.job import Job, StageShape
from pipeline.run.links import Traffic
from pipeline.run.memory import MemoryMeter
from pipeline.run.result import report_of, write_report
from pipeline.run.routes import Route, most_used, routes, slots
from pipeline.run.sequential import ends_of
from pipeline.run.shape_text import parse_shape, shape_text
from pipeline.run.shared_memory import SharedReceiver, SharedSender, slot_bytes
from pipeline.run.tensor_files import write_tensors
from pipeline.schedule.rules import update_members
from pipeline.schedule.versions import Trace
from pipeline.stages.cut import StageCode
from pipeline.stages.layering import Fact
from pipeline.whole_file import write_text

CONFIG, SHAPE, START, DATA = "config.json", "shape.txt", "start.safetensors", "data.sha256"
NEIGHBOUR_GONE = 3  # exit code of a worker whose neighbour ended early
_STARTER_LOG = "starter.log"  # in the private folder: it matters only where no worker came to be
_LONGEST_BASE = 60  # bytes of a path below which sockets lie: the system allows 107 of theirs
# Big arrays are freed and made again all the time: keep their pages.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": "67108864"}


def run_processes(job: Job, shape: StageShape, folder: Path) -> None:
    """Run a job's pipeline; afterwards `folder` has weights and a report of each worker.

    Raises RunError when a worker fails: the sentence names it and its log.
    """
    save_start(job, shape, folder)
    with private_folder(messages_bytes(job, shape)) as links:
        starter = _start(folder, links, sum(shape.replicas))
        try:
            _wait(starter, folder, links, sum(shape.replicas))
        finally:
            _stop(starter)


def save_start(job: Job, shape: StageShape, folder: Path) -> None:
    """Write what a run begins with: config, stages, weights and buffers, a digest of the data. Raises OSError with the
    name of a file."""
    write_text(folder / CONFIG, job.config.model_dump_json())
    write_text(folder / SHAPE, shape_text(shape))
    write_text(folder / DATA, job.data_digest() + "\n")
    write_tensors(folder / START, {name: value.clone() for name, value in job.traced.values.items()})


def restore(folder: Path) -> tuple[Job, StageShape]:
    """The job and the stages that a run's folder began with. Raises RunError."""
    missing = [name for name in (CONFIG, SHAPE, START) if not (folder / name).is_file()]
    if missing:
        raise RunError(f"{folder} is not the folder of a pipeline's run: it has no {missing[0]}")
    job = Job(saved_config(folder / CONFIG))
    job.load(folder / START)
    if (data := folder / DATA).is_file():  # runs of earlier versions have none
        job.check_data(data.read_text().strip())
    return job, parse_shape((folder / SHAPE).read_text())


def work(folder: Path, links: Path, number: int) -> None:
    """The body of worker `number`."""
    job, shape = restore(folder)
    torch.set_num_threads(job.config.threads)
    codes, traced = job.codes(shape), job.schedule(shape)
    facts = facts_of(job, traced, codes)
    mine = [route for route in routes(traced.schedule) if number in (route.source, route.target)]
    held = slots(traced.schedule)
    receiving = {r: SharedReceiver(links / r.name, facts(r), held) for r in mine if r.target == number}
    sending = {r: SharedSender(links / r.name, facts(r), held) for r in mine if r.source == number}
    worker = job.worker(traced, shape, codes, number, ends_of(number, sending, receiving))
    gc.collect()
    gc.freeze()
    meter = MemoryMeter()
    while not worker.is_done:
        worker.step()
    changed = {
        name: job.traced.values[name] for name in codes[worker.stage].buffers if name in job.traced.changed
    }
    if number == traced.schedule.first_workers[worker.stage]:
        write_tensors(folder / f"stage-{worker.stage + 1}.safetensors", worker.weights.values() | changed)
    peak = meter.peak_bytes()
    own = sum(value.nbytes for value in worker.weights.values().values())
    shown = None if peak is None else peak + own - sum(end.touched_bytes for end in sending.values())
    write_report(folder / f"worker-{number}.json", report_of(worker, shown))


def facts_of(job: Job, traced: Trace, codes: Sequence[StageCode]) -> Callable[[Route], Sequence[Fact]]:
    """A function that gives the tensors of a route's messages: shape, strides and dtype of each."""
    schedule = traced.schedule

    def sums(stage: int) -> list[Fact]:
        one = [
            Fact(tuple(t.shape), t.stride(), t.dtype, False)
            for t in (job.traced.values[name] for name in codes[stage].parameters)
        ]
        most = len(update_members(schedule, stage, 1, traced.group))
        return one * -(-most // schedule.replicas[stage])

    def found(route: Route) -> Sequence[Fact]:
        stage = schedule.stage_of(route.source)
        if route.traffic is Traffic.ACTIVATIONS:
            return codes[stage].outgoing
        return codes[stage].incoming if route.traffic is Traffic.GRADIENTS else sums(stage)

    return found


def messages_bytes(job: Job, shape: StageShape) -> int:
    """The memory that the messages between the workers of a run take, at most."""
    traced = job.schedule(shape)
    facts = facts_of(job, traced, job.codes(shape))
    return sum(
        slot_bytes(facts(route)) * most_used(traced.schedule, route) for route in routes(traced.schedule)
    )


@contextlib.contextmanager
def private_folder(size_bytes: int) -> Iterator[Path]:
    """A folder that only this user can enter: in memory where that has so much room, since a process that writes to
    memory that is not there is killed, else among temporary files."""
    shared = Path("/dev/shm")
    is_roomy = os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= size_bytes
    temporary = Path(tempfile.gettempdir())
    if len(os.fsencode(temporary)) > _LONGEST_BASE:  # as a batch system may choose TMPDIR
        temporary = Path("/tmp")
    base = shared if is_roomy else temporary
    folder = base / f"proteus-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def log_of(folder: Path, number: int) -> Path:
    """Where worker `number` writes what it prints."""
    return folder / f"worker-{number}.log"


def _start(folder: Path, links: Path, count: int) -> subprocess.Popen[str]:
    """Start the process whose forks are the workers, as the leader of a group of their own."""
    # Without the working folder and the user's own, which may hold a pipeline.py; a worker looks there by itself.
    arguments = [str(folder), str(links), str(count), str(os.getpid())]
    command = [sys.executable, "-P", "-m", "pipeline.run.main", *arguments]
    paths = os.pathsep.join(["", *(p for p in sys.path if p and p not in looked_in)])
    environment = {**MALLOC, **os.environ, "PYTHONPATH": paths.lstrip(os.pathsep)}
    with (links / _STARTER_LOG).open("wb") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True, text=True
        )


def _wait(starter: subprocess.Popen[str], folder: Path, links: Path, count: int) -> None:
    """Until all have ended well. Raises RunError at the first that has not."""
    codes: dict[int, int] = {}
    assert starter.stdout is not None
    for line in starter.stdout:
        number, code = map(int, line.split())
        codes[number] = code
        # Neighbours of a worker that failed see that it is gone, and may end first: the cause is another one.
        if code not in (0, NEIGHBOUR_GONE):
            break
    failed = sorted(
        (number for number, code in codes.items() if code), key=lambda n: codes[n] == NEIGHBOUR_GONE
    )
    if failed:
        log = log_of(folder, failed[0])
        raise RunError(
            f"worker {failed[0]} ended with code {codes[failed[0]]}: {_last_line(log)} (its log is {log})"
        )
    if len(codes) < count:
        raise RunError(
            f"the process that starts the workers ended too early: {_last_line(links / _STARTER_LOG)}"
        )


def _last_line(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return text.rpartition("\n")[2][:300] or "it wrote nothing"


def _stop(starter: subprocess.Popen[str]) -> None:
    """End what still runs: the starter leads a group in which all workers are."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    assert starter.stdout is not None
    starter.stdout.close()
