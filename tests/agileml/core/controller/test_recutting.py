"""The controller cuts a pipeline anew where one of its machines turns out to be slower than the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agileml.core.protocol.inputs import Measured, Received
from agileml.core.protocol.job import PipelineRules
from agileml.core.protocol.messages import ClockReport, Pause, Status
from agileml.core.stage.placement import StageRule
from agileml.events.run import MembershipChanged
from agileml.events.terms import Cause
from tests.agileml.core.fixtures import Script, make_job

LAYERS = (0.1,) * 8
UNITS = 8  # of a clock


class Paced:
    """A pipeline whose machines report how fast they compute; they stop between two clocks when they are asked to."""

    def __init__(self, speeds: dict[str, float], *, follows: bool = True, clocks: int = 100_000) -> None:
        job = make_job("flush", partitions=len(LAYERS), clocks=clocks)
        job = replace(job, pipeline=PipelineRules(LAYERS, follows_speeds=follows), alike=1.25)
        self.script = Script(job, expected=3, join_wait_s=0.0, rule=StageRule((1.0, 15.0), 3, 1.0))
        self.script.up("r0", "t0", "t1")
        self.speeds, self.clock = speeds, 0
        self.totals = dict.fromkeys(speeds, (0, 0.0))

    @property
    def sizes(self) -> list[int]:
        return [stage.stop - stage.first for stage in self.script.view.pipeline]

    def go(self, clocks: int) -> None:
        """Train so many clocks; each takes what its slowest stage takes."""
        for _ in range(clocks):
            script, stages = self.script, self.script.view.pipeline
            took_s = {
                node: UNITS * sum(LAYERS[stage.first : stage.stop]) / self.speeds[node]
                for stage in stages
                for node in stage.machines
            }
            self.clock += 1
            script.now_s += max(took_s.values())
            for node, seconds in took_s.items():
                units, before_s = self.totals[node]
                self.totals[node] = units + UNITS, before_s + seconds
                units, compute_s = self.totals[node]
                script.tell(Measured(node, script.now_s, 0, 0, 0, 0.0, 0.0, units=units, units_s=compute_s))
            self._end_clock()

    def _end_clock(self) -> None:
        script = self.script
        for name in list(self.totals):
            machine = script.machines[name]
            for copies in machine.shards.values():
                copies.update(dict.fromkeys(copies, self.clock))
            is_first = name == script.view.owner[0]
            done = (ClockReport(self.clock - 1, 1.0, 1, script.now_s),) if is_first else ()
            script.tell(Received(name, self._status(name, done)))

    def _status(self, name: str, done: tuple[ClockReport, ...]) -> Status:
        machine = self.script.machines[name]
        epoch = machine.view.epoch if machine.view else 0
        asked = any(isinstance(each, Pause) and each.epoch == epoch for each in machine.told)
        return replace(machine.status(done), is_paused=asked)


def recuts(run: Paced) -> list[MembershipChanged]:
    changes = run.script.events_of(MembershipChanged)
    return [each for each in changes if each.trigger.cause is Cause.STAGE]


def test_a_slow_machine_hands_layers_on_and_nothing_is_computed_twice() -> None:
    run = Paced({"t0": 1.0, "t1": 1.0})
    run.go(30)
    assert run.sizes == [4, 4] and not recuts(run)
    run.speeds["t1"] = 1 / 3
    run.go(30)
    assert run.sizes == [6, 2]
    (change,) = recuts(run)
    assert (change.redone, change.rolled_back) == (0, False)
    assert "stages by speed: " in change.trigger.why
    run.speeds["t1"] = 1.0
    run.go(40)
    assert run.sizes == [4, 4]


@pytest.mark.parametrize(
    ("speeds", "options"),
    [
        ({"t0": 1.0, "t1": 0.85}, {}),  # too little to gain: machines count as alike
        ({"t0": 1.0, "t1": 1 / 3}, {"follows": False}),
        ({"t0": 1.0, "t1": 1 / 3}, {"clocks": 14}),  # the run is over before it pays
    ],
)
def test_stages_stay_where_another_cut_does_not_pay(
    speeds: dict[str, float], options: dict[str, Any]
) -> None:
    run = Paced(speeds, **options)
    run.go(12)
    assert run.sizes == [4, 4] and not recuts(run)


def test_a_new_controller_leaves_the_layers_where_speeds_have_brought_them() -> None:
    run = Paced({"t0": 1.0, "t1": 1 / 3})
    run.go(30)
    assert run.sizes == [6, 2]
    run.script.restart()
    run.script.wait(3.0)
    assert run.script.views[-1].trigger.cause is Cause.RESTART
    assert run.sizes == [6, 2]


def test_a_slow_spell_moves_nothing() -> None:
    run = Paced({"t0": 1.0, "t1": 1.0})
    run.go(20)
    run.speeds["t1"] = 0.5
    run.go(2)
    run.speeds["t1"] = 1.0
    run.go(30)
    assert not recuts(run)
