"""The version of its weights that a stage has, and the one that it reads, in each step of a pipeline without a flush.

Version v of a stage's layers has the updates of the clocks before v. `first` is the clock at which the pipeline was
last empty: all stages have version `first` then, and no clock reads an older one.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.protocol.job import PipelineMode
from agileml.core.protocol.view import StageGroup


def version_of(clock: int, first: int, lag: int) -> int:
    """The version after the clocks before `clock` - `lag`, or version `first` where that is later: in the first steps
    no backward has come back yet."""
    return max(first, clock - lag)


def lag_of(mode: PipelineMode, stages: Sequence[StageGroup], number: int) -> int:
    """How many clocks old the newest version of a stage is in a step.

    With d stages behind it the backward of a clock is done d steps after its forward. Where replicas exchange the sums
    of a clock while they compute the next, the next step does not have them yet (`Schedule.rounds_behind`).
    """
    behind = len(stages) - 1 - number
    if mode is PipelineMode.DOUBLE_BUFFERED:
        return min(behind, 1)
    return behind + stages[number].overlaps


def steps_over(mode: PipelineMode, clock: int, behind: int) -> int:
    """The last step that is over when the sums of a clock are there. With two buffers the clock's last units go back in
    the middle of the next step."""
    return clock if mode is PipelineMode.DOUBLE_BUFFERED else clock + behind


def age_of(mode: PipelineMode, stages: Sequence[StageGroup], number: int) -> int:
    """How many clocks old the weights of a forward are.

    Stashing: the newest, d clocks with d stages behind (thesis 5.3.3), one more where replicas exchange their sums
    meanwhile. Vertical sync: as old as at the first stage (5.3.3), where they are oldest. Two buffers: one clock at all
    stages. One stage alone reads its newest weights.
    """
    is_alike = mode in (PipelineMode.VERTICAL_SYNC, PipelineMode.DOUBLE_BUFFERED)
    return lag_of(mode, stages, 0 if is_alike else number)
