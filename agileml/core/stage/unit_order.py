"""The actions of each machine in a clock of a pipeline with a flush, in their order: one list each, fixed by the view.

All machines make all lists, and take their own. They are the trace of a walk through time in which every stage is
equally fast, so no two machines ever wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from agileml.core.protocol.view import StageGroup
from pipeline.schedule.actions import Kind
from pipeline.schedule.policies import flush_dealt
from straggler.coverage import Units, members


@dataclass(frozen=True)
class UnitAction:
    """A forward, a backward or gradients of weights that were put off, of one unit."""

    kind: Kind
    unit: int


def order_of_units(stages: tuple[StageGroup, ...], units: Units) -> list[int]:
    """The order in which units enter the pipeline: the machines of the stage with the most take turns, each from its
    first unit to its last."""
    finest = max(stages, key=lambda stage: len(stage.replicas))
    entering: list[tuple[float, int, int]] = []
    for place, (_, own) in enumerate(finest.replicas):
        mine = list(members(own & units))
        entering += [((at + 0.5) / len(mine), place, unit) for at, unit in enumerate(mine)]
    return [unit for _, _, unit in sorted(entering)]


@lru_cache(maxsize=16)
def clock_lists(
    stages: tuple[StageGroup, ...], units: Units, *, puts_off: bool
) -> Mapping[str, tuple[UnitAction, ...]]:
    """By machine, its actions for these units of a clock; machines without any of them are left out."""
    order = order_of_units(stages, units)
    at_work = [[node for node, own in stage.replicas if own & units] for stage in stages]
    takers = [
        [there.index(stage.machine_of(unit)) for unit in order]
        for stage, there in zip(stages, at_work, strict=True)
    ]
    lists = flush_dealt(takers, zero_bubble=puts_off)
    machines = [node for there in at_work for node in there]
    return {
        node: tuple(UnitAction(action.kind, order[action.minibatch - 1]) for action in actions)
        for node, actions in zip(machines, lists, strict=True)
    }
