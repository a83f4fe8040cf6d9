"""Machines that cannot read their parts of a checkpoint: the run may begin again, and user code is not blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agileml.core.protocol.commands import HaltKind
from agileml.events.run import CheckpointSaved, MachineQuarantined, MembershipChanged
from agileml.events.terms import Tier
from agileml.process.head import HeadState
from agileml.process.machine import Machine
from tests.agileml.process.engine_rig import Rig
from tests.faults.fault_rig import MLR, FaultRig, lasting


class Unmounting(Rig):
    """The place of the checkpoints is gone once the controller has found one there."""

    saved: Path

    def add(self, tier: Tier, *, admitted: bool = True) -> Machine:
        if self.saved.is_dir():
            self.saved.rename(self.saved.with_name("aside"))
            self.saved.write_text("no folder")
        return super().add(tier, admitted=admitted)


@pytest.mark.parametrize("reliable", [1, 2])
def test_a_run_whose_machines_cannot_read_a_checkpoint_ends_as_one_that_may_begin_again(
    reliable: int, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    values = {**MLR, "clocks": 6, "stage": 1, "machines": {"reliable": reliable, "transient": 0, "max": 4}}
    first = Rig({**values, "checkpoint": {"path": str(saved), "every_s": 60.0}}, tmp_path / "first").finish()
    assert first.halted is None
    Unmounting.saved = saved
    ran = Unmounting({**values, "clocks": 12}, tmp_path / "second", resume=str(saved)).finish()
    assert ran.halted is not None
    assert (ran.halted.kind, ran.halted.kept) == (HaltKind.UNREAD, None)
    assert "could not be read" in ran.halted.reason
    # Where another machine may keep the result, the first one is sent away: the reason may lie there.
    assert len(ran.of(MachineQuarantined)) == reliable - 1


def test_a_new_controller_that_could_not_read_the_checkpoints_does_not_begin_at_the_start(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "saved"
    machines = {"reliable": 2, "transient": 1, "max": 4}
    values = lasting(
        MLR, stage=1, machines=machines, checkpoint={"path": str(saved), "every_s": 0.2, "keep": 1}
    )
    is_replaced = False

    def watch(rig: FaultRig, state: HeadState) -> None:
        nonlocal is_replaced
        if is_replaced:
            if not rig.killed and any(isinstance(each.event, MembershipChanged) for each in state.events):
                rig.kill("m1")  # an owner: its partitions are only in the checkpoint now
        elif any(isinstance(each.event, CheckpointSaved) for each in state.events):
            is_replaced = True
            saved.rename(tmp_path / "aside")
            saved.write_text("no folder")
            rig.kill_controller()

    ran = FaultRig(values, tmp_path, watch).finish()
    assert ran.halted is not None and ran.halted.kind is HaltKind.UNREAD
    assert "could not be read" in ran.halted.reason
