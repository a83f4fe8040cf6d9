"""Machines that cannot read their parts of a checkpoint: the run may begin again, and user code is not blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agileml.core.protocol.commands import HaltKind
from agileml.events.run import MachineQuarantined
from agileml.events.terms import Tier
from agileml.process.machine import Machine
from tests.agileml.process.engine_rig import Rig
from tests.faults.fault_rig import MLR


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
