"""What other stages would save, by hand."""

from __future__ import annotations

import pytest

from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.stage.recut import recut

LAYERS = (1.0,) * 8
EVEN = [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_without_a_flush_the_slowest_stage_is_a_clock() -> None:
    found = recut(PipelineRules(LAYERS, mode=PipelineMode.STASH), EVEN, 10, (1.0, 0.5, 1.0, 1.0))
    assert (found.now_s, found.best_s) == (40.0, 30.0)  # 3, 1, 2, 2 layers
    assert found.gain == 0.25
    assert found.sentence == "stages by speed: 30 s a clock expected, 40 s with the stages so far"


def test_with_a_flush_the_pipeline_also_fills_and_runs_empty() -> None:
    found = recut(PipelineRules(LAYERS), EVEN, 10, (1.0, 0.5, 1.0, 1.0))
    assert (found.now_s, found.best_s) == (40.0 + 6.0, 30.0 + 6.0)


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_machines_that_are_alike_have_the_best_stages(speed: float) -> None:
    assert recut(PipelineRules(LAYERS), EVEN, 10, (speed,) * 4).gain == 0.0
