"""The memory of a stage as predicted, beside what torch's allocator records."""

from __future__ import annotations

import gc
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.autograd import ProfilerConfig, ProfilerState

from pipeline.run.config import PipelineConfig
from pipeline.run.job import Job, StageShape
from pipeline.run.memory import predicted_bytes
from pipeline.run.planning import plan_of, profile_of
from pipeline.run.sequential import run_sequential


def most_allocated(job: Job, shape: StageShape) -> int:
    """The most bytes of tensors that a run in this process holds beyond its weights."""
    codes, lists = job.codes(shape), job.schedule(shape)
    Job._kept.cache_clear()  # what other tests hold would be given back while this one records
    gc.collect()
    config = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
    )
    torch.autograd._enable_profiler_legacy(config)
    try:
        run_sequential(lists.schedule, lambda n, ends: job.worker(lists, shape, codes, n, ends))
    finally:
        records = torch.autograd._disable_profiler_legacy()
    changes = [r.cpu_memory_usage() for thread in records for r in thread if r.kind() == "memory_alloc"]
    return max(accumulate(changes))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mode": "flush"}, marks=pytest.mark.slow),
        pytest.param({"mode": "flush", "microbatches": 1}, marks=pytest.mark.slow),
        pytest.param({"mode": "flush", "optimizer": {"kind": "Adam", "lr": 0.01}}, marks=pytest.mark.slow),
        {"mode": "flush", "recompute": "always"},
        {"mode": "stash"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_a_stage_takes_what_was_predicted(changes: dict[str, Any]) -> None:
    given = {"training": "tests.pipeline.run.training:wide", "minibatches": 6, **changes}
    job = Job(PipelineConfig.model_validate(given))
    shape = StageShape((len(job.traced.layers),), (1,), (job.config.recompute == "always",))
    predicted = predicted_bytes(job, shape, job.schedule(shape))[0]
    weights = sum(value.nbytes for value in job.traced.values.values())
    found = weights + most_allocated(job, shape)
    assert found == pytest.approx(predicted, rel=0.15)


def test_the_planner_counts_the_sums_of_many_microbatches() -> None:
    """Weights that are large beside all else: what the planner asks for is what is predicted."""
    given = {"training": "tests.pipeline.run.training:heavy", "workers": 3, "microbatches": 16}
    job = Job(PipelineConfig.model_validate(given))
    plan = plan_of(job, profile_of(job, repeats=1))
    shape = StageShape(
        tuple(stage.layers[-1] + 1 for stage in plan.stages),
        tuple(stage.replicas for stage in plan.stages),
        (False,) * len(plan.stages),
    )
    predicted = predicted_bytes(job, shape, job.schedule(shape))
    for stage, found in zip(plan.stages, predicted, strict=True):
        sums_less = (-(-16 // stage.replicas) - 1).bit_length() - 4  # replicas share the tree
        assert stage.memory_bytes + sums_less * stage.parameter_bytes == pytest.approx(found, rel=0.15)


@pytest.mark.parametrize("changes", [{"microbatches": 2}, {"mode": "stash", "epoch": 2}], ids=str)
def test_no_more_is_predicted_to_be_in_flight_than_there_is(changes: dict[str, Any]) -> None:
    """The first of four stages could have four; between two flushes, or drains, there are two."""
    found = []
    for limit in (None, 2):
        given = {
            "training": "tests.pipeline.run.training:wide",
            "minibatches": 4,
            **changes,
            "in_flight": limit,
        }
        job = Job(PipelineConfig.model_validate(given))
        shape = StageShape((2, 4, 6, len(job.traced.layers)), (1,) * 4, (False,) * 4)
        found.append(predicted_bytes(job, shape, job.schedule(shape))[0])
    assert found[0] == found[1]
