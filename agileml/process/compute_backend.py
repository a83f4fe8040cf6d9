"""How a machine computes: with a thread of its own process, or with several compute processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from agileml.config.hardware import Hardware, splits_of
from agileml.core.async_stages.walkers import stage_walker
from agileml.core.compute.pace import Pace
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.commands import NodeEvent
from agileml.core.protocol.messages import Failure
from agileml.process.compute import ComputeThread
from agileml.process.compute_pool.orders import Start
from agileml.process.compute_pool.pool import ComputePool
from agileml.process.rendezvous import NoRooms, Rooms
from agileml.process.spec import RunSpec
from agileml.process.warm_up import load_kernels

ComputeBackend = ComputeThread | ComputePool


def _stage_thread(
    me: str,
    spec: RunSpec,
    work: UnitComputer,
    report: Callable[[NodeEvent | Failure], None],
    kernels: Callable[[], None],
    pace: Pace,
) -> ComputeThread:
    from agileml.process.stage_thread import StageThread  # imports torch

    rules = spec.job(work.application).pipeline
    assert spec.stages is not None and rules is not None
    walker = stage_walker(me, work.application, spec.stages, work, rules)
    return StageThread(walker, work, report, kernels, pace)


def start_compute(
    me: str,
    spec: RunSpec,
    work: UnitComputer,
    hardware: Hardware,
    report: Callable[[NodeEvent | Failure], None],
    died: Callable[[str], None],
) -> tuple[ComputeBackend, Rooms]:
    """Start the compute thread or processes; returned with the memory of their parameters. Raises ConfigError."""
    splits = splits_of(spec.config, hardware.cores)
    kernels = partial(load_kernels, spec.job(work.application))
    pace = Pace(spec.pace_s, hardware.speed)
    if spec.config.pipeline is not None:
        return _stage_thread(me, spec, work, report, kernels, pace), NoRooms(work.layout)
    if splits[0].workers > 1:
        pool = ComputePool(Start(spec, splits, hardware.speed), work, report, kernels, died)
        return pool, pool.tables
    threads = splits[0].threads if hardware.cores > 1 else 0
    return ComputeThread(work, report, kernels, pace, threads), work
