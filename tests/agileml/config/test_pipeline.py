"""The section `pipeline` and the keys that do not go with it, one sentence each."""

from __future__ import annotations

from typing import Any

import pytest

from agileml.config.job import ConfigError, from_values
from agileml.process.spec import RunSpec

JOB: dict[str, Any] = {"application": "torch", "clocks": 3, "pipeline": {"mode": "flush"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["pipeline.mode=fast"], "pipeline.mode: found 'fast', expected flush, stash or none"),
        (
            ["pipeline.mode=stash", "pipeline.order=zero-bubble"],
            "pipeline.order: found 'zero-bubble' with pipeline.mode stash, expected 1f1b: there is no bubble to fill",
        ),
        (
            ["pipeline.mode=none", "optimizer.clip_norm=1.0"],
            "optimizer.clip_norm: found 1 with pipeline.mode none, expected none: a stage updates its layers before",
        ),
        (
            ["pipeline.mode=stash", "optimizer.kind=lamb"],
            "optimizer.kind: found 'lamb' with pipeline.mode stash, expected another kind",
        ),
        (
            ["pipeline.vertical_sync=true"],
            "pipeline.mode: found 'flush' with pipeline.vertical_sync, expected stash: it is an option of that mode",
        ),
        (
            ["pipeline.mode=none", "pipeline.double_buffered=true"],
            "pipeline.mode: found 'none' with pipeline.double_buffered, expected stash",
        ),
        (
            ["pipeline.mode=stash", "pipeline.vertical_sync=true", "pipeline.double_buffered=true"],
            "pipeline.double_buffered: found true with pipeline.vertical_sync, expected false",
        ),
        (["pipeline.vertical_sync=1"], "pipeline.vertical_sync: found 1, expected true or false"),
        (["pipeline.stages=0"], "pipeline.stages: found 0, expected a whole number of at least 1, or auto"),
        (["pipeline.order=fast"], "pipeline.order: found 'fast'"),
        (
            ["pipeline.replicas=[2,0]"],
            "pipeline.replicas: found the list [2, 0], expected a whole number of at least 1, one for each stage",
        ),
        (
            ["pipeline.replicas=[2,1]", "pipeline.stages=3"],
            "pipeline.stages: found 3 with pipeline.replicas [2, 1], expected auto or 2",
        ),
        (
            ["slices=8", "pipeline.replicas=9"],
            "pipeline.replicas: found 9, expected at most 8: a clock has so many",
        ),
        (
            ["pipeline.mode=stash", "pipeline.double_buffered=true", "pipeline.replicas=2"],
            "pipeline.replicas: found 2 with pipeline.double_buffered, expected 1: its stages take units of two",
        ),
        (["application=mf"], "application: found 'mf' with a pipeline, expected torch"),
        (["deterministic=false"], "deterministic: found false with a pipeline, expected true"),
        (["balance=lbbsp"], "balance.kind: found 'lbbsp' with a pipeline, expected static"),
        (["exchange=allreduce", "deterministic=true"], "deterministic: found true with exchange: allreduce"),
        (["exchange=allreduce"], "exchange: found 'allreduce' with a pipeline, expected servers"),
        (["consistency.kind=asp"], "consistency.kind: found 'asp' with a pipeline, expected bsp"),
        (["overlap=true"], "overlap: found true with a pipeline, expected false"),
        (["helping=true"], "helping: found helping with a pipeline, expected false: no machine has another"),
        (["stage=2"], "stage: found 2 with a pipeline, expected auto"),
        (["active_fraction=0.5"], "active_fraction: found 0.5 with a pipeline, expected 1"),
        (["machines.workers=2"], "machines.workers: found 2 with a pipeline, expected 1"),
        (["machines.gpus=1"], "machines.gpus: found 1 with a pipeline, expected 0"),
        (["pace.unit_s=0.1"], "pace.unit_s: found 0.1 with a pipeline, expected 0"),
        (
            ["market.kind=made", "market.job_vcpus=8", "market.job_hours=1", "market.paced=true"],
            "market.paced: found true with a pipeline, expected false: stages compute as fast as they can",
        ),
    ],
)
def test_what_does_not_go_with_a_pipeline_is_one_sentence(changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(JOB, changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_stages_than_layers_and_an_application_without_stages() -> None:
    arguments = {"module": "agileml.apps.torch.models:cnn", "arguments": {"size": 8}, "batch_size": 64}
    data = {"kind": "digits", "shape": [1, 8, 8]}
    config = from_values(JOB | {"model": arguments, "data": data}, ["pipeline.stages=9"])
    spec = RunSpec("r", config)
    with pytest.raises(ConfigError, match="found 9, expected at most 4: the model has so many layers"):
        spec.measured(spec.build())
    config = from_values(JOB | {"model": arguments, "data": data}, ["pipeline.replicas=[1,1,1,1,2]"])
    spec = RunSpec("r", config)
    with pytest.raises(ConfigError, match="found 5 stages, expected at most 4: the model has so many layers"):
        spec.measured(spec.build())
    other = from_values(JOB | {"application": "tests.agileml.apps.test_guide:Nothing"})
    with pytest.raises(ConfigError, match="expected one that has stages"):
        RunSpec("r", other).measured(_WithoutStages())


class _WithoutStages:
    def stages(self) -> None:
        return None
