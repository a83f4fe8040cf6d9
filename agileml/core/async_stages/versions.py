"""Which version of its weights a stage has, and which one it reads, in each step of a pipeline without a flush.

Version v of a stage's layers has the updates of the clocks before v. `first` is the clock at which the pipeline was
last empty: all stages have version `first` then, and no clock reads an older one.
"""

from __future__ import annotations

from agileml.core.protocol.job import PipelineMode


def version_of(clock: int, first: int, behind: int) -> int:
    """The version after the clocks before `clock` - `behind`, or version `first` where that is later: in the first
    steps no backward has come back yet."""
    return max(first, clock - behind)


def lag_of(mode: PipelineMode, behind: int) -> int:
    """How many steps after its forward the backward of a clock is done, at a stage with so many stages behind it. The
    newest version of the stage in a step is so many clocks old."""
    return min(behind, 1) if mode is PipelineMode.DOUBLE_BUFFERED else behind


def steps_over(mode: PipelineMode, clock: int, lag: int) -> int:
    """The last step that is over when the sums of a clock are there. With two buffers the clock's last units go back in
    the middle of the next step."""
    return clock if mode is PipelineMode.DOUBLE_BUFFERED else clock + lag


def age_of(mode: PipelineMode, stages: int, behind: int) -> int:
    """How many clocks old the weights of a forward are, at one of so many stages.

    Stashing: d clocks with d stages behind (thesis 5.3.3). Vertical sync: as at the first stage (5.3.3). Two buffers:
    one clock at all stages. One stage alone reads its newest weights.
    """
    match mode:
        case PipelineMode.VERTICAL_SYNC:
            return stages - 1
        case PipelineMode.DOUBLE_BUFFERED:
            return min(stages - 1, 1)
        case _:
            return behind
