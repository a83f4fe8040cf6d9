"""The memory of a stage: predicted from its weights, versions and what autograd keeps of a microbatch, and measured."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline.run.job import Job, StageShape
from pipeline.run.planning import optimizer_factor
from pipeline.schedule.versions import Trace
from pipeline.stages.passes import StageCompute, leaves_of


def kept_bytes(job: Job, shape: StageShape) -> list[int]:
    """Bytes that each stage keeps of a microbatch between forward and backward: storages that autograd saves, without
    weights and buffers, and what came in. Runs one forward; buffers are as before."""
    inputs, targets = job.microbatch(1, 0)
    flat = job.traced.flat_inputs(inputs)
    before = {name: job.traced.values[name].clone() for name in job.traced.changed}
    known = {value.untyped_storage().data_ptr() for value in job.traced.values.values()}
    values: list[torch.Tensor] = []
    found = []
    for code, again in zip(job.codes(shape), shape.recompute, strict=True):
        compute = StageCompute(job.traced, code, loss=job.loss, recompute=again)
        saved: dict[int, int] = {}

        def note(tensor: torch.Tensor, saved: dict[int, int] = saved) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        for value in values:
            note(value)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            kept = compute.forward(leaves_of(job.traced.values, code.parameters), values, flat, targets, 0)
        found.append(sum(saved.values()))
        values = [value.detach() for value in kept.outgoing]
    for name, value in before.items():
        job.traced.values[name].copy_(value)
    return found


def predicted_bytes(job: Job, shape: StageShape, traced: Trace) -> list[int]:
    """Bytes of each stage on one replica: versions of weights, optimizer state, sums of gradients, and activations of
    the minibatches in flight."""
    schedule, factor = traced.schedule, optimizer_factor(job)
    found = []
    for stage, (code, kept) in enumerate(zip(job.codes(shape), kept_bytes(job, shape), strict=True)):
        own = sum(job.traced.values[name].nbytes for name in code.parameters)
        worker = schedule.first_workers[stage]
        # The tree holds one sum per level, and the newest gradient.
        sums = (job.config.parts // schedule.replicas[stage]).bit_length() + 1 if job.config.parts > 1 else 1
        in_flight = schedule.in_flight[stage]
        found.append(int(own * (traced.peak[worker] + factor + sums) + in_flight * kept))
    return found


class MemoryMeter:
    """The most memory that this process takes from here on, besides what it has now."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        except OSError:
            self._before = None
        else:
            self._before = _status("VmRSS")

    def peak_bytes(self) -> int | None:
        """None where the system does not tell."""
        return None if self._before is None else _status("VmHWM") - self._before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0
