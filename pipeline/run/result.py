"""The result of a run in its folder, and the report of each worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from pipeline.run.job import Job, StageShape
from pipeline.run.sequential import run_sequential
from pipeline.run.tensor_files import read_tensors
from pipeline.run.worker import Worker, WorkSpan
from pipeline.schedule.actions import Action, Kind
from pipeline.whole_file import whole_file


@dataclass(frozen=True)
class WorkerReport:
    """The measurements of one worker. losses: by place of the schedule. versions: the most of its weights
    that it kept. memory_bytes: the most that weights and training took,
    None where that is not known."""

    number: int
    stage: int
    losses: dict[int, float]
    spans: tuple[WorkSpan, ...]
    versions: int
    memory_bytes: int | None

    @property
    def compute_s(self) -> float:
        """Seconds of computing and sending."""
        return sum(span.end_s - span.start_s for span in self.spans)

    @property
    def wait_s(self) -> float:
        """Seconds of waiting for messages."""
        return sum(span.start_s - span.wait_s for span in self.spans)

    def seconds(self, kind: Kind) -> float:
        """Seconds of all actions of a kind."""
        return sum(span.end_s - span.start_s for span in self.spans if span.action.kind is kind)


def report_of(worker: Worker, memory_bytes: int | None = None) -> WorkerReport:
    """The report of a worker whose list is at its end."""
    return WorkerReport(
        worker.number,
        worker.stage,
        dict(worker.losses),
        tuple(worker.spans),
        worker.weights.peak,
        memory_bytes,
    )


def write_report(path: Path, report: WorkerReport) -> None:
    """Write a worker's report under its name only when it is complete."""
    raw = asdict(report) | {
        "spans": [[str(s.action), s.wait_s, s.start_s, s.end_s] for s in report.spans],
        "losses": sorted(report.losses.items()),
    }
    _write_whole(path, json.dumps(raw).encode())


def read_report(path: Path) -> WorkerReport:
    """The report that `write_report` wrote."""
    raw = json.loads(path.read_text())
    spans = tuple(WorkSpan(Action(Kind(a[0]), int(a[1:])), *times) for a, *times in raw.pop("spans"))
    return WorkerReport(**raw | {"spans": spans, "losses": {int(b): loss for b, loss in raw["losses"]}})


def run_here(job: Job, shape: StageShape) -> tuple[dict[str, Tensor], list[WorkerReport]]:
    """Run all workers in this process; (weights and changed buffers, reports)."""
    codes, lists = job.codes(shape), job.schedule(shape)
    workers = run_sequential(lists.schedule, lambda n, ends: job.worker(lists, shape, codes, n, ends))
    tensors: dict[str, Tensor] = {}
    for worker in reversed(workers):
        tensors |= worker.weights.values()
    tensors |= {name: job.traced.values[name] for name in job.traced.changed}
    return tensors, [report_of(worker) for worker in workers]


def collected(folder: Path, shape: StageShape) -> tuple[dict[str, Tensor], list[WorkerReport]]:
    """Read the tensors and reports that the workers of a run left in its folder, and delete the files."""
    tensors: dict[str, Tensor] = {}
    for stage in range(len(shape.ends)):
        path = folder / f"stage-{stage + 1}.safetensors"
        tensors |= {name: value.clone() for name, value in read_tensors(path).items()}
        path.unlink()
    return tensors, [read_report(folder / f"worker-{n}.json") for n in range(sum(shape.replicas))]


def minibatch_losses(reports: Sequence[WorkerReport], parts: int) -> list[float]:
    """The mean loss of each minibatch."""
    places = {b: loss for report in reports for b, loss in report.losses.items()}
    return [
        sum(places[first + part] for part in range(parts)) / parts
        for first in range(1, len(places) + 1, parts)
    ]


def _write_whole(path: Path, data: bytes) -> None:
    with whole_file(path) as partial:
        partial.write_bytes(data)
