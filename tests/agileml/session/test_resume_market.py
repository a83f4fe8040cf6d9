"""A job on a market that is resumed: BidBrain buys for the clocks that are left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agileml
from agileml.market.fleet import MarketFleet
from agileml.session import assembly
from tests.agileml.market.jobs import MARKET
from tests.agileml.process.engine_rig import Rig
from tests.faults.fault_rig import MLR, job


class SeenError(Exception):
    """The fleet has been made."""


def test_the_work_that_is_left_is_that_from_the_checkpoint_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {"path": str(tmp_path / "saved"), "every_s": 60.0}  # at the end
    Rig(job(MLR, checkpoint=saved, clocks=9), tmp_path / "first").finish()
    made, done = assembly.fleet_for, []

    def look(*arguments: Any) -> None:
        fleet = made(*arguments)
        assert isinstance(fleet, MarketFleet)
        done.append(fleet.trainer.report(0).done_vcpu_s)
        raise SeenError

    monkeypatch.setattr(assembly, "fleet_for", look)
    machines = {"reliable": 1, "max": 8}
    more = {"clocks": 10, "market": MARKET, "machines": machines, "out": tmp_path / "out"}
    with pytest.raises(SeenError):
        agileml.run(job(MLR, checkpoint=saved, **more), resume=tmp_path / "saved")
    assert done == [pytest.approx(0.9 * MARKET["job_vcpus"] * MARKET["job_hours"] * 3600)]
