"""The walker of a machine, by the rules of its job."""

from __future__ import annotations

from agileml.application import Application, StagePlan
from agileml.core.async_stages.double_buffered import DoubleBufferedWalker
from agileml.core.async_stages.walk import AsyncStageWalker
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.protocol.job import PipelineMode, PipelineRules
from agileml.core.stage.walk import StageWalker


def stage_walker(
    me: str, application: Application, plan: StagePlan, work: UnitComputer, rules: PipelineRules
) -> StageWalker:
    """The walker of a machine in a job with these rules."""
    match rules.mode:
        case PipelineMode.FLUSH:
            return StageWalker(me, application, plan, work, puts_off=rules.puts_off)
        case PipelineMode.DOUBLE_BUFFERED:
            return DoubleBufferedWalker(me, application, plan, work, rules.mode)
        case _:
            return AsyncStageWalker(me, application, plan, work, rules.mode)
