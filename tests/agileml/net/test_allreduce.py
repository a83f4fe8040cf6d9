"""Sums by all-reduce over real sockets: the same losses as with servers, however machines come and go."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from agileml.config.job import ConfigError, from_values
from agileml.core.sequential import run_sequential
from agileml.events.run import ClockDone, CutCommitted, MembershipChanged, PlanFinished, PlanFired
from agileml.events.terms import Tier
from agileml.process.head import HeadState
from agileml.process.machine import Machine
from agileml.process.spec import RunSpec
from tests.agileml.process.engine_rig import Ran, Rig
from tests.faults.fault_rig import MF, FaultRig, Rollback

MLR = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks_per_pass": 4,
    "exchange": "allreduce",
}


def job(**more: Any) -> dict[str, Any]:
    machines = {"reliable": 1, "transient": 2, "max": 8}
    cuts = {"every_s": 0.05, "max_clocks": 4}
    return {"clocks": 30, "slices": 8, "machines": machines, "cuts": cuts, **MLR, **more}


PLAN = [
    {"at_clock": 5, "join": 2},
    {"at_clock": 11, "notice": 2, "warning_s": 60},
    {"at_clock": 17, "notice": "all", "warning_s": 30},
    {"at_clock": 22, "join": 2},
]


def losses(ran: Ran) -> list[float]:
    """The loss of every clock as it was reported last."""
    assert ran.halted is None, ran.halted
    found = {clock.clock: clock.loss for clock in ran.of(ClockDone)}
    return [found[clock] for clock in sorted(found)]


def reference(values: Mapping[str, Any]) -> list[float]:
    """The losses of the sequential run."""
    spec = RunSpec("reference", from_values({**values, "plan": []}))
    application = spec.build()
    found: list[float] = []
    run_sequential(
        application,
        optimizer=spec.job(application).optimizer,
        clocks=spec.config.clocks,
        deterministic=False,
        on_clock=lambda clock, loss, examples: found.append(loss / examples),
    )
    return found


def test_machines_that_come_and_go_lose_nothing(tmp_path: Path) -> None:
    values = job(plan=PLAN, stage_thresholds=[1, 3])
    ran = Rig(values, tmp_path).finish()
    np.testing.assert_allclose(losses(ran), reference(values), rtol=1e-3)
    views = ran.of(MembershipChanged)
    assert [view.stage for view in views] == [2, 3, 2, 1, 2]
    assert not any(view.rolled_back or view.redone for view in views)
    assert [clock.clock for clock in ran.of(ClockDone)] == list(range(1, 31))  # each once
    assert [type(event) for event in ran.of(PlanFired | PlanFinished)] == [PlanFired, PlanFinished] * len(
        PLAN
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_stage_gives_the_same_losses(stage: int, tmp_path: Path) -> None:
    values = job(clocks=12, stage=stage)
    ran = Rig(values, tmp_path).finish()
    np.testing.assert_allclose(losses(ran), reference(values), rtol=1e-3)
    assert [view.stage for view in ran.of(MembershipChanged)] == [stage]


@pytest.mark.parametrize(
    "fault",
    [
        {"kill": 1},
        {"kill_many": "all"},
        {"short_notice": 1, "warning_s": 0.0},
        pytest.param({"cut": 1, "seconds": 0.3}, marks=pytest.mark.slow),
        pytest.param({"slow": 1, "factor": 10.0, "seconds": 0.5}, marks=pytest.mark.slow),
        {"kill_controller": True},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_fault_costs_at_most_the_open_clock_while_a_replica_lives(
    fault: dict[str, Any], tmp_path: Path
) -> None:
    values = job(clocks=20, plan=[{"at_clock": 8, **fault}])
    ran = FaultRig(values, tmp_path).finish()
    np.testing.assert_allclose(losses(ran), reference(values), rtol=1e-3)
    assert [type(event) for event in ran.of(PlanFired | PlanFinished)][:2] == [PlanFired, PlanFinished]
    assert not any(view.rolled_back or view.redone > 1 for view in ran.of(MembershipChanged))


def test_when_every_replica_dies_everybody_goes_back_to_the_committed_cut(tmp_path: Path) -> None:
    values = job(clocks=100_000, stage=3)
    rollback = Rollback()

    def watch(rig: FaultRig, state: HeadState) -> None:
        kinds = {type(each.event) for each in state.events}
        if CutCommitted in kinds and not rig.killed:
            for name in ("m1", "m2"):
                rig.kill(name)
        if rollback.is_made_good(state):
            rig.ask_to_stop()

    ran = FaultRig(values, tmp_path, watch).finish()
    expected = reference({**values, "clocks": ran.clocks})
    np.testing.assert_allclose(losses(ran)[: ran.clocks], expected, rtol=1e-3)
    (back,) = [view for view in ran.of(MembershipChanged) if view.rolled_back]
    cuts = [cut.clock for cut in ran.of(CutCommitted)]
    assert back.base in cuts
    assert f"back to clock {back.base}" in back.reason


def test_machines_at_several_addresses_need_a_network_that_is_called_trusted(tmp_path: Path) -> None:
    class Far(Rig):
        def add(self, tier: Tier, *, admitted: bool = True) -> Machine:
            self.node_ip = f"127.0.0.{1 + len(self.machines)}"
            return super().add(tier, admitted=admitted)

    halted = Far(job(), tmp_path / "refused").finish().halted
    assert halted is not None
    assert "set trusted_network: true" in halted.reason
    assert "127.0.0." in halted.reason
    values = job(trusted_network=True)
    np.testing.assert_allclose(
        losses(Far(values, tmp_path / "trusted").finish()), reference(values), rtol=1e-3
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_nccl_without_a_device_is_a_sentence(tmp_path: Path) -> None:
    values = job(allreduce_backend="nccl", trusted_network=True)
    values["machines"] = {**values["machines"], "gpus": 1}
    halted = Rig(values, tmp_path).finish().halted
    assert halted is not None
    assert "allreduce_backend: found nccl, expected gloo: this machine has no CUDA device" in halted.reason


def test_sparse_tables_are_refused() -> None:
    spec = RunSpec("refused", from_values({**MF, "clocks": 3, "exchange": "allreduce"}))
    with pytest.raises(
        ConfigError, match="exchange: found allreduce, expected servers: mf has sparse tables"
    ):
        spec.job(spec.build())


def test_what_a_ring_sends_is_counted(tmp_path: Path) -> None:
    rig = Rig(job(clocks=10, stage=1), tmp_path)
    assert rig.finish().halted is None
    parameters = 4 * sum(table.rows * table.columns for table in rig.spec.build().tables())
    for machine in rig.machines.values():
        assert machine.bytes_sent()["push"] == pytest.approx(10 * 2 * 2 / 3 * parameters, rel=0.01)


@pytest.mark.slow
def test_twenty_four_changes_lose_nothing_and_leak_nothing(tmp_path: Path) -> None:
    plan = []
    for index in range(12):
        plan.append({"at_clock": 6 * index + 4, "join": 1})
        plan.append({"at_clock": 6 * index + 7, "notice": 1, "warning_s": 30})
    values = job(clocks=80, plan=plan)
    process = psutil.Process()
    before, threads = process.num_fds(), set(threading.enumerate())
    ran = FaultRig(values, tmp_path).finish()
    np.testing.assert_allclose(losses(ran), reference(values), rtol=1e-3)
    views = ran.of(MembershipChanged)
    assert len(views) == 25
    assert not any(view.redone or view.rolled_back for view in views)
    assert [clock.clock for clock in ran.of(ClockDone)] == list(range(1, 81))
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.name == "all-reduce"]
    assert process.num_fds() <= before + 8
