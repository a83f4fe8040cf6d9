"""The engine over real sockets in one process: the same bits however machines come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.application import Application, Settings, Table, Unit, Updates
from agileml.core.protocol.commands import HaltKind
from agileml.events.run import (
    ClockDone,
    MembershipChanged,
    PlanFinished,
    PlanFired,
    RemedyDecided,
    UnitsPlanned,
)
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import MF, MLR, FaultRig, reference_of

PLAN = [
    {"at_clock": 5, "join": 2},
    {"at_clock": 11, "notice": 2, "warning_s": 60},
    {"at_clock": 17, "notice": "all", "warning_s": 30},
    {"at_clock": 22, "join": 2},
]


def job(base: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    machines = {"reliable": 1, "transient": 2, "max": 8}
    stages = {"stage": "thresholds", "stage_thresholds": [1, 3]}
    return {"clocks": 30, "slices": 8, "machines": machines, **stages, **base, **more}


def test_the_machines_together_compute_every_unit_of_every_clock_once(tmp_path: Path) -> None:
    rig = Rig(job(MLR, units_per_slice=2), tmp_path)
    assert rig.finish().sha256
    done = [machine.node.spent.units for machine in rig.machines.values()]
    assert sum(done) == 30 * 8 * 2 and all(done), done


@pytest.mark.parametrize("base", [MF, MLR], ids=["mf", "mlr"])
def test_machines_that_come_and_go_do_not_change_a_bit(base: Mapping[str, Any], tmp_path: Path) -> None:
    values = job(base, plan=PLAN)
    ran = Rig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    views = ran.of(MembershipChanged)
    # On a slow host a leaver ends what it computes, which makes a second change in the same stage.
    stages = [list(each) for _, each in groupby(views, lambda view: view.stage)]
    assert [each[0].stage for each in stages] == [2, 3, 2, 1, 2]
    assert not any(view.rolled_back or view.redone for view in views)
    assert [clock.clock for clock in ran.of(ClockDone)] == list(range(1, 31))
    assert [type(event) for event in ran.of(PlanFired | PlanFinished)] == [PlanFired, PlanFinished] * len(
        PLAN
    )
    # An event begins when its clock is done; training goes on meanwhile, but not past the next event's clock.
    starts = [event["at_clock"] for event in PLAN]
    for each, start, following in zip(stages[1:], starts, [*starts[1:], 30], strict=True):
        assert all(start <= view.base <= following for view in each)


SPEEDS = {"pace": {"unit_s": 0.001, "speeds": {"m0": 0.25, "m2": 0.5}}, "units_per_slice": 8}


@pytest.mark.slow  # tests/faults/test_shares_by_speed.py has two such runs with faults
@pytest.mark.parametrize("base", [MF, MLR], ids=["mf", "mlr"])
def test_shares_by_speed_do_not_change_a_bit(base: Mapping[str, Any], tmp_path: Path) -> None:
    values = job(base, balance="lbbsp", plan=PLAN, **SPEEDS) | {"clocks": 1000}
    fewest: list[int] = []  # units for m0, where the others get more

    def watch(rig: FaultRig, state: HeadState) -> None:
        for each in state.events:
            if isinstance(each.event, UnitsPlanned):
                mine, *others = (each.event.units[name] for name in sorted(each.event.units))
                fewest.extend([mine] if "m0" in each.event.units and mine < min(others, default=0) else [])
        if state.clock >= 30 and fewest:
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.sha256 == reference_of(ran, values)
    assert fewest
    assert len(ran.of(MembershipChanged)) >= 4


def test_shares_by_speed_are_chosen_where_machines_differ(tmp_path: Path) -> None:
    """The default: nothing says `lbbsp`, and the log says why."""
    values = job(MLR, stage=1, clocks=1000, **SPEEDS)
    chosen: list[RemedyDecided] = []

    def watch(rig: FaultRig, state: HeadState) -> None:
        chosen.extend(each.event for each in state.events if isinstance(each.event, RemedyDecided))
        if any(choice.remedy == "lbbsp" for choice in chosen):
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.sha256 == reference_of(ran, values)
    assert ran.clocks < 1000, chosen
    assert " s with static shares and " in chosen[-1].reason


@pytest.mark.parametrize("exchange", ["servers", "allreduce"])
def test_the_slowest_machine_gets_its_share_of_the_work(exchange: str, tmp_path: Path) -> None:
    """Of 3.25 machines' worth of speed the first has .25: 5 units of 64, and the others 20 each."""
    speeds = {"unit_s": 0.004, "speeds": {"m0": 0.25}}
    machines = {"reliable": 1, "transient": 3, "max": 8}
    values = job(
        MLR,
        balance="lbbsp",
        exchange=exchange,
        machines=machines,
        pace=speeds,
        units_per_slice=8,
        deterministic=False,
        clocks=1000,
    )
    plans: list[Mapping[str, int]] = []

    def watch(rig: FaultRig, state: HeadState) -> None:
        plans.extend(each.event.units for each in state.events if isinstance(each.event, UnitsPlanned))
        # A busy host now and then slows the others down to the first one's speed.
        is_fair = any(units["m0"] <= 10 and units["m0"] == min(units.values()) for units in plans)
        if is_fair and state.clock >= 8:
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.clocks < 1000, plans
    assert ran.of(ClockDone)[-1].loss < ran.of(ClockDone)[0].loss
    assert all(sum(units.values()) == 64 for units in plans)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_gives_the_same_bits(stage: int, tmp_path: Path) -> None:
    values = job(MLR, stage=stage)
    ran = Rig(values, tmp_path).finish()
    assert ran.sha256 == reference(values)
    assert [view.stage for view in ran.of(MembershipChanged)] == [stage]


@pytest.mark.parametrize(
    "consistency",
    [
        pytest.param({"kind": "bsp"}, marks=pytest.mark.slow),
        {"kind": "ssp", "slack": 2},
        {"kind": "asp"},
    ],
    ids=lambda c: str(c["kind"]),
)
def test_without_determinism_it_still_learns(consistency: Mapping[str, Any], tmp_path: Path) -> None:
    values = job(MLR, consistency=consistency, deterministic=False, plan=PLAN, clocks=40)
    ran = Rig(values, tmp_path).finish()
    assert ran.tables is not None
    losses = [clock.loss for clock in ran.of(ClockDone)]
    assert len(losses) == 40
    assert np.mean(losses[-4:]) < 0.5 * np.mean(losses[:4])


class Broken(Application):
    """Fails in one unit."""

    def tables(self) -> list[Table]:
        return [Table("w", 4, 4)]

    def load(self, slice_index: int) -> int:
        return slice_index

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Any]) -> Updates:
        if unit.clock == 3 and unit.slice == 5:
            raise RuntimeError("no such luck")
        return Updates({"w": np.ones((4, 4), np.float32)}, 1.0, 1)


def test_user_code_that_fails_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    values = job(MLR, application="package.module:Class")
    ran = Rig(values, tmp_path, Broken(Settings(slices=8))).finish()
    assert ran.halted is not None
    assert ran.halted.kind is HaltKind.USER_CODE
    assert "clock 3, slice 5" in ran.halted.reason
    assert "no such luck" in ran.halted.trace
    assert 'raise RuntimeError("no such luck")' in ran.halted.trace


def test_nothing_runs_on_when_the_run_is_over(tmp_path: Path) -> None:
    before = threading.active_count()
    Rig(job(MLR, clocks=5), tmp_path).finish()
    for thread in threading.enumerate():
        if thread.name in ("server", "controller"):
            thread.join(60.0)  # a busy host may need more than the seconds for which `stop` waits
            assert not thread.is_alive(), thread
    assert threading.active_count() <= before + 8  # computing threads end when they are idle


def test_the_last_cut_is_looked_up_by_the_thread_that_keeps_it(tmp_path: Path) -> None:
    """Another one could find it neither arriving nor committed, between the two."""
    rig = Rig(job(MLR, machines={"reliable": 1, "transient": 1, "max": 4}), tmp_path)
    seen: list[str] = []

    def watched(arrived: Callable[[int], Any]) -> Callable[[int], Any]:
        def look(partition: int) -> Any:
            seen.append(threading.current_thread().name)
            return arrived(partition)

        return look

    for machine in rig.machines.values():
        monitored: Any = machine.node.backup
        monitored.arrived = watched(monitored.arrived)
    assert rig.finish().sha256 is not None
    assert set(seen) == {"server"}
