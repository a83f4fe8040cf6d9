"""The memory of a stage: predicted from its weights, versions and what autograd keeps of a microbatch, and measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch.autograd import ProfilerConfig, ProfilerState
from torch.utils._pytree import tree_leaves

from pipeline.run.config import Mode
from pipeline.run.job import KEPT_MINIBATCHES, Job, StageShape
from pipeline.run.planning import optimizer_factor
from pipeline.schedule.versions import Trace
from pipeline.stages.passes import StageCompute, leaves_of


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one microbatch at a stage.

    incoming, outgoing: of the messages over its two cuts. kept: what autograd saves between forward and backward,
    without weights, buffers, data and what came in. step: the most that one forward with its backward takes, from the
    kept activations to the gradients of the weights.
    """

    incoming: int
    outgoing: int
    kept: int
    step: int


def stage_bytes(job: Job, shape: StageShape) -> list[StageBytes]:
    """The bytes of a microbatch at each stage, from one forward and backward; buffers are as before."""
    inputs, targets = job.microbatch(1, 0)
    flat = job.traced.flat_inputs(inputs)
    before = {name: job.traced.values[name].clone() for name in job.traced.changed}
    given = [t for t in (*flat, *tree_leaves(targets)) if isinstance(t, torch.Tensor)]
    known = {value.untyped_storage().data_ptr() for value in (*job.traced.values.values(), *given)}
    values: list[torch.Tensor] = []
    found = []
    for code, again in zip(job.codes(shape), shape.recompute, strict=True):
        compute = StageCompute(job.traced, code, loss=job.loss, recompute=again)
        saved: dict[int, int] = {}
        incoming = {value.untyped_storage().data_ptr() for value in values}

        def note(
            tensor: torch.Tensor, saved: dict[int, int] = saved, incoming: set[int] = incoming
        ) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known | incoming:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        weights = leaves_of(job.traced.values, code.parameters)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            kept = compute.forward(weights, values, flat, targets, 0)
        outgoing = [value.detach() for value in kept.outgoing]
        gradients = [torch.ones_like(value) for value in outgoing]
        del kept

        def step(
            compute: StageCompute = compute,
            weights: list[torch.Tensor] = weights,
            values: list[torch.Tensor] = values,
            gradients: list[torch.Tensor] = gradients,
        ) -> object:
            return compute.backward(compute.forward(weights, values, flat, targets, 0), gradients)

        came, goes = sum(f.size_bytes for f in code.incoming), sum(v.nbytes for v in outgoing)
        found.append(
            StageBytes(came, 0 if code.is_last else goes, sum(saved.values()), _most_allocated(step))
        )
        values = outgoing
    for name, value in before.items():
        job.traced.values[name].copy_(value)
    return found


def predicted_bytes(job: Job, shape: StageShape, traced: Trace) -> list[int]:
    """Bytes of each stage on one replica: versions of weights, optimizer state, sums of gradients, activations of the
    minibatches in flight, one step's own memory, messages, and the minibatches that are held."""
    schedule, factor = traced.schedule, optimizer_factor(job)
    inputs, targets = job.minibatch(1)
    data = sum(t.nbytes for t in tree_leaves((inputs, targets)) if isinstance(t, torch.Tensor))
    held = data * min(KEPT_MINIBATCHES, job.config.minibatches)
    found = []
    for stage, (code, one) in enumerate(zip(job.codes(shape), stage_bytes(job, shape), strict=True)):
        own = sum(job.traced.values[name].nbytes for name in code.parameters)
        worker = schedule.first_workers[stage]
        # Besides the newest gradient, which belongs to a step, the tree holds at most one sum per level.
        sums = (-(-job.config.parts // schedule.replicas[stage]) - 1).bit_length()
        # No more than a replica's share of what there is between two flushes, or drains.
        there = (
            job.config.parts if job.config.mode is Mode.FLUSH else job.config.epoch or schedule.minibatches
        )
        in_flight = min(schedule.in_flight[stage], -(-there // schedule.replicas[stage]))
        messages = in_flight * one.incoming + one.outgoing
        weights = own * (traced.peak[worker] + factor + sums)
        reads = held if code.inputs or code.is_last else 0
        found.append(int(weights + (in_flight - 1) * one.kept + one.step + messages + reads))
    return found


def _most_allocated(step: Callable[[], object]) -> int:
    """The most bytes of tensors that a call holds at a time, beyond those that are there before."""
    # torch's own records of its allocator; the public profiler starts threads and prints.
    config = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
    )
    torch.autograd._enable_profiler_legacy(config)
    try:
        step()
    finally:
        records = torch.autograd._disable_profiler_legacy()
    changes = [r.cpu_memory_usage() for thread in records for r in thread if r.kind() == "memory_alloc"]
    return max(accumulate(changes), default=0)


class MemoryMeter:
    """The most memory that this process takes from here on, besides what it has now and pages of programs."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
        except OSError:
            self._before = None
        else:
            self._before = _status("VmRSS") - _status("RssFile")

    def peak_bytes(self) -> int | None:
        """None where the system does not tell."""
        return None if self._before is None else _status("VmHWM") - _status("RssFile") - self._before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0
