"""The controller measures clocks and links, tries another stage, and keeps it or takes it back."""

from __future__ import annotations

from typing import Any

from agileml.core.controller.stage_chooser import arrangement_of
from agileml.core.protocol.inputs import Measured, Received
from agileml.core.protocol.messages import ClockReport
from agileml.core.protocol.record import Record
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.traffic import Volume, clock_bytes
from agileml.events.run import StageJudged
from agileml.events.terms import Move
from tests.agileml.core.fixtures import Script, make_job
from tests.agileml.core.fixtures import scripts as scripts

MB = 1e6


class Played:
    """A script whose clocks take what `clock_s` says for its stage, all of it exchange of a model of 8 MB."""

    def __init__(self, script: Script, clock_s: dict[int, float]) -> None:
        self.script, self.clock_s = script, clock_s
        self.counted: dict[str, tuple[float, float]] = {}
        self.clock = 0
        self.is_silent = False  # machines report nothing

    def go(self, clocks: int) -> None:
        script = self.script
        for _ in range(clocks):
            took_s = self.clock_s[script.view.stage]
            self.clock += 1
            script.now_s += took_s
            self._report()
            self._reach()

    def _reach(self) -> None:
        """All owners apply the clock; the one of partition 0 is heard last, since a change may follow at once."""
        script, view = self.script, self.script.view
        for p, name in enumerate(view.owner):
            script.machines[name].shards[p][view.epoch] = self.clock
        owner = script.machines[view.owner[0]]
        for machine in list(script.machines.values()):
            if machine is not owner:  # it has never anything to say without what it did
                script.tell(Received(machine.name, machine.status()))
        done = ClockReport(self.clock - 1, 1.0, 1, script.now_s)
        script.tell(Received(owner.name, owner.status((done,))))

    def _report(self) -> None:
        script, view = self.script, self.script.view
        roles = arrangement_of(script.job, view).roles
        pulls, pushes = (clock_bytes(roles, Volume(*pair)) for pair in ((8 * MB, 0), (0, 8 * MB)))
        for node in view.members:
            pulled, pushed = self.counted.get(node, (0.0, 0.0))
            self.counted[node] = (pulled + pulls[node].received, pushed + pushes[node].received)
            pulled, pushed = self.counted[node]
            if not self.is_silent:
                script.tell(Measured(node, script.now_s, int(pulled), int(pushed), 0, 0.0, 0.0))


def played(make: Any, clock_s: dict[int, float], transient: int = 7) -> Played:
    script = make(make_job("sum", clocks=100_000, partitions=8), auto_stage=TrialRule())
    script.up("r0", *(f"t{i}" for i in range(transient)))
    return Played(script, clock_s)


def test_a_stage_that_the_links_promise_is_tried_and_kept(scripts):
    run = played(scripts, {1: 9.0, 2: 1.0, 3: 0.8})
    assert run.script.view.stage == 2
    run.go(30)
    assert run.script.view.stage == 3
    assert "stage 3: 7 transient to 1 reliable is over 6.65:1" in run.script.reason
    notes = run.script.events_of(StageJudged)
    assert [note.move for note in notes] == [Move.TRY, Move.KEEP]
    assert notes[0].thresholds == (1.0, 6.65)
    assert "stage 3 is tried" in notes[0].reason
    assert notes[0].clock_s == 1.0
    assert 0.5 < notes[0].predicted_s[3] < 0.95
    assert "stage 3 stays: 0.8 s a clock, 1 s in stage 2" in notes[1].reason


def test_a_trial_that_measures_worse_is_taken_back(scripts):
    run = played(scripts, {1: 9.0, 2: 1.0, 3: 1.1})
    run.go(120)
    notes = run.script.events_of(StageJudged)
    assert [note.move for note in notes] == [Move.TRY, Move.TAKE_BACK]
    assert run.script.view.stage == 2
    assert [view.stage for view in run.script.views] == [2, 3, 2]


def test_moved_thresholds_outlive_the_controller(scripts):
    run = played(scripts, {1: 9.0, 2: 1.0, 3: 0.8})
    run.go(30)
    run.script.restart()
    run.script.wait(2.0)
    assert run.script.record.thresholds == (1.0, 6.65)
    assert run.script.view.stage == 3
    assert Record.from_text(run.script.record.to_text()) == run.script.record


def test_without_a_trial_rule_or_reports_nothing_moves(scripts):
    script = scripts(make_job(clocks=1000))
    script.up("r0", "t1", "t2")
    Played(script, {1: 1.0, 2: 1.0, 3: 0.1}).go(100)
    silent = played(scripts, {1: 1.0, 2: 1.0, 3: 0.1})
    silent.is_silent = True
    silent.go(100)
    for each in (script, silent.script):
        assert each.view.stage == 2
        assert not each.events_of(StageJudged)


def test_clocks_that_end_at_the_same_moment_say_nothing(scripts):
    """Under SSP a slow partition may make several clocks whole at once."""
    run = played(scripts, {1: 0.0, 2: 0.0, 3: 0.0})
    run.go(30)
    assert not run.script.events_of(StageJudged)


def test_joins_begin_a_new_measurement(scripts):
    run = played(scripts, {1: 9.0, 2: 1.0, 3: 0.8}, transient=6)
    run.go(7)
    run.script.up("t9")
    run.go(5)
    assert not run.script.events_of(StageJudged)
    run.go(10)
    assert run.script.events_of(StageJudged)
