"""Machines that help each other, over real sockets in one process: every unit once, and the same bits with BSP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.config.hardware import ItemsAhead, too_large
from agileml.events.run import ClockDone, MembershipChanged, RemedyDecided
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import Rig, reference
from tests.agileml.process.test_engine import MF, MLR, PLAN, job
from tests.faults.fault_rig import FaultRig, reference_of

PACE = {"pace": {"unit_s": 0.002, "speeds": {"m0": 0.25, "m2": 0.5}}, "units_per_slice": 8}


def units(rig: Rig) -> tuple[int, int]:
    """Units that were computed, and those of them that were computed for others."""
    spent = [machine.node.spent for machine in rig.machines.values()]
    return sum(each.units for each in spent), sum(each.units_helped for each in spent)


def until_helped(clocks: int, least: int) -> Callable[[FaultRig, HeadState], None]:
    """Ends a run after so many clocks, and more than so many units for others: fewer in each clock on a busy host."""

    def watch(rig: FaultRig, state: HeadState) -> None:
        if state.clock >= clocks and units(rig)[1] > least:
            rig.ask_to_stop()

    return watch


@pytest.mark.slow  # tests/faults/test_help_through_faults.py has such runs with faults
@pytest.mark.parametrize("base", [MF, MLR], ids=["mf", "mlr"])
def test_help_does_not_change_a_bit(base: Mapping[str, Any], tmp_path: Path) -> None:
    values = job(base, helping=True, plan=PLAN, clocks=1000, **PACE)
    rig = FaultRig(values, tmp_path, until_helped(26, 50))
    ran = rig.finish()
    assert ran.sha256 == reference_of(ran, values)
    assert units(rig)[1] > 50
    assert len(ran.of(MembershipChanged)) >= 4


@pytest.mark.slow
def test_machines_that_may_choose_help_each_other_where_units_may_not_move(tmp_path: Path) -> None:
    """With `balance: static` speeds that last are a reason to help, and each choice gives its reason."""
    values = job(MLR, balance="static", helping="auto", stage=1, clocks=1000, **PACE)
    values["pace"] = {**PACE["pace"], "unit_s": 0.001}
    rig = FaultRig(values, tmp_path, until_helped(20, 20))
    ran = rig.finish()
    assert ran.sha256 == reference_of(ran, values)
    helped = [choice for choice in ran.of(RemedyDecided) if choice.remedy == "helping"]
    assert helped, ran.of(RemedyDecided)
    assert helped[0].reason.endswith("with help (the last 16 clocks)")
    assert " s with static shares and " in helped[0].reason


class TwoProcesses(Rig):
    """Machines of two cores."""

    cores = 2


@pytest.mark.slow
def test_machines_of_two_processes_help_each_other_too(tmp_path: Path) -> None:
    machines = {"reliable": 1, "transient": 1, "max": 3}
    pace = {"unit_s": 0.004, "speeds": {"m0": 0.25}}
    values = job(MF, helping=True, clocks=8, units_per_slice=8, machines=machines, pace=pace)
    rig = TwoProcesses(values, tmp_path)
    ran = rig.finish()
    assert ran.sha256 == reference(values)
    assert units(rig)[1] > 20


def test_with_ssp_help_counts_every_unit_once_and_saves_time(tmp_path: Path) -> None:
    values = job(MLR, helping=True, clocks=1000, consistency={"kind": "ssp", "slack": 1}, stage=1, **PACE)
    rig = FaultRig(values, tmp_path, until_helped(20, 100))
    ran = rig.finish()
    clocks = ran.of(ClockDone)
    assert [clock.clock for clock in clocks] == list(range(1, len(clocks) + 1))
    assert len(clocks) >= ran.clocks >= 20
    assert {clock.examples for clock in clocks[3::4]} == {clocks[3].examples}
    assert np.mean([c.loss for c in clocks[-4:]]) < 0.5 * np.mean([c.loss for c in clocks[:4]])
    computed, helped = units(rig)
    # What an owner and its helper both computed is counted once all the same.
    assert computed >= ran.clocks * 64
    assert helped > 100


def test_items_that_do_not_fit_the_memory_are_one_sentence() -> None:
    assert too_large(1e9, 3, 8e9) is None
    assert too_large(1e9, 12, 8e9) == (
        "helping.replication: the items of 12 more slices, which this machine loads to help others, take about 12 GB, "
        "and 8 GB of memory are free; expected a smaller replication or group_size, or more memory"
    )


def test_a_slice_that_is_loaded_ahead_is_measured() -> None:
    import os

    held = []
    ahead = ItemsAhead(lambda: [os.getpid()])
    size = 64 << 20
    assert ahead.measured(lambda: held.append(np.ones(size, np.uint8)), 1) is None
    found = ahead.measured(lambda: held.append(np.ones(size, np.uint8)), 1 << 20)
    assert found is not None and found.startswith("helping.replication: the items of 1048576 more slices")
