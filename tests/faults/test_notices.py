"""Many notices at once, doubled and in any order: each machine goes once, with nothing lost."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from agileml.core.protocol.inputs import Notice
from agileml.events.run import MachineNoticed, MachineReleased, MembershipChanged
from agileml.process.head import HeadState
from tests.agileml.core.fixtures import make_job
from tests.agileml.core.fixtures import scripts as scripts
from tests.faults.fault_rig import MLR, FaultRig, lasting, reference_of

MANY = 100


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))])
def test_a_hundred_notices_within_a_second_doubled_and_in_any_order(scripts: Any, seed: int) -> None:
    draw = random.Random(seed)
    script = scripts(make_job(slices=128, partitions=16, clocks=1000))
    script.up("r0", *(f"t{index}" for index in range(MANY)))
    script.wait(1.5)
    assert len(script.view.members) == MANY + 1
    script.commit_cut()
    start_s = script.now_s
    events = [Notice(f"t{index}", start_s + draw.uniform(5.0, 60.0)) for index in range(MANY)] * 2
    draw.shuffle(events)
    for event in events:
        script.tell(event)
        if draw.random() < 0.1:
            script.wait(0.9 / MANY, step_s=0.01)
    assert script.now_s - start_s < 1.0
    script.wait(3.0)
    assert sorted(script.released) == sorted(f"t{index}" for index in range(MANY))  # each once
    noticed = [note.machine for note in script.events_of(MachineNoticed)]
    assert sorted(noticed) == sorted(set(noticed))
    assert len(noticed) == MANY
    assert script.view.members == ("r0",)
    assert not any(view.rolled_back for view in script.views)
    assert len(script.views) <= 2 + MANY  # never one change per request


@pytest.mark.slow
def test_seven_machines_over_sockets_are_told_a_hundred_times(tmp_path: Path) -> None:
    values = lasting(MLR, machines={"reliable": 1, "transient": 7, "max": 8})
    told: list[str] = []
    gone: list[str] = []

    def tell(rig: FaultRig, state: HeadState) -> None:
        gone.extend(each.event.machine for each in state.events if isinstance(each.event, MachineReleased))
        if len(gone) >= 7:
            rig.ask_to_stop()
        if told or state.clock < 20:
            return
        deadline_s = time.time() + 60
        told.extend([f"m{index}" for index in range(1, 8)] * 15)
        random.Random(1).shuffle(told)
        for name in told:
            rig.head.tell(Notice(name, deadline_s))

    ran = FaultRig(values, tmp_path, tell).finish()
    assert len(told) >= MANY
    assert ran.sha256 == reference_of(ran, values)
    assert sorted(gone) == [f"m{index}" for index in range(1, 8)]
    assert sum(view.redone for view in ran.of(MembershipChanged)) == 0
    assert ran.of(MembershipChanged)[-1].stage == 1


def test_the_sooner_of_two_deadlines_counts(scripts: Any) -> None:
    script = scripts()
    script.up("r0", "t1", "t2")
    script.freeze("t2")  # so that the change is still under way
    for ahead_s in (60.0, 5.0, 30.0):
        script.tell(Notice("t1", script.now_s + ahead_s))
    assert [note.warning_s for note in script.events_of(MachineNoticed)] == [60.0, 5.0]
    script.wake("t2")
    script.wait(3.0)
    assert script.released == ["t1"]
