"""Where to cut, before a run: from the measured layers, by the planner, a plan file, or given numbers of replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from pipeline.partition.plan import Plan, parse_plan
from pipeline.partition.planner import Options, top_plans
from pipeline.profile.layers import Profile
from pipeline.run.config import Mode, RunError
from pipeline.run.job import Job, StageShape
from pipeline.schedule.actions import Kind
from pipeline.schedule.policies import flush, long_enough, noam, one_f_one_b
from pipeline.schedule.timing import Network, StageCost, simulate
from pipeline.stages.cut import balanced_ends
from pipeline.stages.measure import layer_bytes, measured_profile
from pipeline.topology.levels import Topology, parse_bytes

_COPY_BYTES = 32 << 20
_LATENCY_S = 1e-4


@dataclass(frozen=True)
class Planned:
    """A shape with its reason in a sentence, the plan (None where the cut was given) and the predicted seconds of one
    minibatch."""

    shape: StageShape
    reason: str
    plan: Plan | None
    minibatch_s: float


def profile_of(job: Job, repeats: int = 5) -> Profile:
    """Seconds and bytes of the job's layers for one microbatch, on this device."""
    inputs, targets = job.microbatch(1, 0)
    return measured_profile(
        job.traced,
        job.loss,
        inputs,
        targets,
        model=type(job.model).__name__,
        batch=job.microbatch_items,
        repeats=repeats,
    )


def planned(job: Job, profile: Profile) -> Planned:
    """The stages of a run, as its config asks. Raises RunError, PlanError, PartitionError, StageError."""
    config = job.config
    check_profile(job, profile)
    if config.plan is not None:
        plan = read_plan(job, profile)
        return _of_plan(job, profile, plan, f"as {config.plan} says: {plan.config}")
    if config.stages == "auto" and config.replicas == "auto":
        plan = plan_of(job, profile)
        return _of_plan(job, profile, plan, plan.explain().splitlines()[0])
    replicas = config.replicas if config.replicas != "auto" else (1,) * int(config.stages)
    ends = balanced_ends([layer.compute_s for layer in profile.layers], replicas)
    recompute = (config.recompute == "always",) * len(ends)
    shape = _with_times(profile, StageShape(ends, replicas, recompute))
    reason = f"{len(ends)} stages as asked, cut where the slowest is fastest"
    return Planned(shape, reason, None, predicted_s(job, profile, shape))


def plan_of(job: Job, profile: Profile) -> Plan:
    """The planner's best plan for the config's workers on this host. Raises PartitionError, TopologyError."""
    config = job.config
    options = Options(
        memory_bytes=parse_bytes(config.memory, "memory") if config.memory else None,
        recompute=config.recompute if config.recompute == "auto" else config.recompute == "always",
        optimizer_factor=optimizer_factor(job),
        # Replicas of a layer that changes buffers or weights would each have their own.
        straight=bool(job.traced.changed or job.traced.rewritten),
        prefixes_only=True,
        # One that gets no microbatch of a minibatch would only wait.
        max_replicas=config.parts if config.mode is Mode.FLUSH else config.minibatches,
        group=config.parts if config.mode is Mode.FLUSH else None,
    )
    topology = Topology(((config.workers or 2, copy_bytes_per_s()),))
    return top_plans(profile, topology, 1, options)[0]


def read_plan(job: Job, profile: Profile) -> Plan:
    """The config's plan file, if it is one of this model at this batch. Raises RunError, PlanError."""
    path = job.config.plan
    assert path is not None
    try:
        plan = parse_plan(path.read_text())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RunError(f"{path} is not a plan: it is no text") from None
    if job.config.workers is not None and plan.workers > job.config.workers:
        raise RunError(f"{path} is a plan for {plan.workers} workers, and workers is {job.config.workers}")
    layers = [layer for stage in plan.stages for layer in stage.layers]
    if layers != list(range(len(profile.layers))):
        raise RunError(
            f"{path} is a plan of another model: it has {len(layers)} layers of {plan.model}, and this model "
            f"has layers 0 to {len(profile.layers) - 1}, which the stages must hold in this order"
        )
    for number, stage in enumerate(plan.stages, start=1):
        own = sum(profile.layers[i].parameter_bytes for i in stage.layers)
        sent = sum(profile.layers[i].activation_bytes for i in stage.layers)
        if stage.parameter_bytes != own:
            raise RunError(
                f"{path} is a plan of another model: its stage {number} has {stage.parameter_bytes:.0f} bytes of "
                f"weights, here these layers have {own:.0f}"
            )
        if stage.activation_bytes != sent:
            raise RunError(
                f"{path} is a plan for another batch: its stage {number} has {stage.activation_bytes:.0f} bytes of "
                f"activations, here these layers have {sent:.0f}"
            )
    return plan


def check_profile(job: Job, profile: Profile) -> None:
    """Raise RunError for a profile of another model, batch or device."""
    names = [layer.name for layer in job.traced.layers]
    if [layer.name for layer in profile.layers] != names:
        raise RunError(
            f"the profile has {len(profile.layers)} layers of {profile.model}, this model has {len(names)} others"
        )
    if profile.batch != job.microbatch_items:
        raise RunError(
            f"the profile was taken with {profile.batch} items, a microbatch here has {job.microbatch_items}: "
            "profile again"
        )
    if profile.device != "cpu":
        raise RunError(
            f"the profile was taken on {profile.device!r}, this run computes on the CPU: profile again"
        )
    for number, (layer, here) in enumerate(zip(profile.layers, layer_bytes(job.traced), strict=True)):
        there = layer.activation_bytes, layer.parameter_bytes
        for what, found, expected in zip(("output", "weights"), there, here, strict=True):
            if found != expected:
                raise RunError(
                    f"the profile is of another model: its layer {number} ({layer.name}) has {found:.0f} bytes of "
                    f"{what}, here it has {expected:.0f}: profile again"
                )


def predicted_s(job: Job, profile: Profile, shape: StageShape) -> float:
    """Seconds of one minibatch, by simulating the schedule with the profile's times and this host's copies."""
    codes = job.codes(shape)
    costs, device = [], 0
    for (first, last), replicas, code, again in zip(
        zip((0, *shape.ends[:-1]), shape.ends, strict=True),
        shape.replicas,
        codes,
        shape.recompute,
        strict=True,
    ):
        forward_s = sum(layer.forward_s for layer in profile.layers[first:last])
        backward_s = sum(layer.backward_s for layer in profile.layers[first:last])
        costs.append(
            StageCost(
                forward_s,
                backward_s + (forward_s if again else 0.0),
                float(sum(fact.size_bytes for fact in code.outgoing)),
                float(sum(job.traced.values[name].nbytes for name in code.parameters)),
                devices=tuple(range(device, device + replicas)),
                weights_s=backward_s / 2,
            )
        )
        device += replicas
    topology = Topology(((max(device, 2), copy_bytes_per_s()),))
    network = Network(topology, latency_s=_LATENCY_S, full_duplex=True)
    config = job.config
    if config.mode is Mode.FLUSH:
        zero = Kind.WEIGHTS in job.schedule(shape).schedule.kinds(1)
        one = flush(shape.replicas, config.parts, config.parts, zero_bubble=zero, in_flight=config.in_flight)
        return simulate(one, costs, network).makespan_s
    many = long_enough(shape.replicas, config.in_flight or noam(shape.replicas))
    return simulate(
        one_f_one_b(shape.replicas, many, in_flight=config.in_flight), costs, network
    ).seconds_per_minibatch()


def optimizer_factor(job: Job) -> float:
    """Bytes of optimizer state per byte of weights, from one step over a small parameter. Raises RunError."""
    parameter = torch.nn.Parameter(torch.zeros(64, 64))
    optimizer = job.optimizer([parameter])
    parameter.grad = torch.zeros(64, 64)
    try:
        optimizer.step()
    except RuntimeError as error:  # SparseAdam takes no other gradients than sparse ones
        raise RunError(f"optimizer.kind: {job.config.optimizer.kind} cannot step: {error}") from None
    state = sum(
        value.numel()
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor)
    )
    return state // parameter.numel()


@cache
def copy_bytes_per_s() -> float:
    """Bytes per second at which one process of this host copies memory, the best of three."""
    source, target = torch.ones(_COPY_BYTES // 4), torch.ones(_COPY_BYTES // 4)
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        target.copy_(source)
        best = max(best, _COPY_BYTES / (time.perf_counter() - begin))
    return best


def _of_plan(job: Job, profile: Profile, plan: Plan, reason: str) -> Planned:
    ends = tuple(stage.layers[-1] + 1 for stage in plan.stages)
    replicas = tuple(stage.replicas for stage in plan.stages)
    recompute = tuple(stage.recompute for stage in plan.stages)
    shape = _with_times(profile, StageShape(ends, replicas, recompute))
    return Planned(shape, reason, plan, predicted_s(job, profile, shape))


def _with_times(profile: Profile, shape: StageShape) -> StageShape:
    """The shape with its stages' seconds, from which the order of start-up follows."""
    bounds = list(zip((0, *shape.ends[:-1]), shape.ends, strict=True))
    forward = _sums([layer.forward_s for layer in profile.layers], bounds)
    backward = _sums([layer.backward_s for layer in profile.layers], bounds)
    return StageShape(shape.ends, shape.replicas, shape.recompute, forward, backward)


def _sums(seconds: Sequence[float], bounds: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    return tuple(max(sum(seconds[first:last]), 1e-9) for first, last in bounds)
