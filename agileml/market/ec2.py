"""A market on EC2: machines join the Ray cluster of the head that this runs on, labelled with their instance ids."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from agileml.config.market import Ec2MarketConfig
from agileml.market.drain_notices import DrainNotices, MergedNotices
from agileml.market.joined import JoinedCluster
from agileml.market.nodes import JoinedNodes
from agileml.market.service import pause
from agileml.market.setup import MarketSetup, first_decision
from agileml.process.spec import RunSpec
from bidbrain.aws.ec2 import Ec2 as Ec2Market
from bidbrain.aws.stack.attach import attach, left_behind
from bidbrain.aws.tagged import Tagged, terminate
from bidbrain.live.cloud import Cloud
from bidbrain.live.job import Timekeeper
from bidbrain.live.keeping import RiskKeeper

LEAVE_S = 60.0
ARCHIVE = Path("runs") / "spot-prices"


def _end(ec2: Any, machines: list[Tagged]) -> None:
    """End machines that no process drives, and say so."""
    if machines:
        terminate(ec2, machines)
        named = ", ".join(f"{machine.machine_id} of {machine.job}" for machine in machines)
        print(f"proteus: ended machines that an earlier job left running: {named}", file=sys.stderr)


class Ec2Backend(JoinedCluster):
    """The cluster behind `address`, and EC2 in one region. Raises ClusterError: no cluster, or no stack there."""

    leave_s = LEAVE_S

    def __init__(self, setup: MarketSetup, spec: RunSpec) -> None:
        market = spec.config.market
        assert isinstance(market, Ec2MarketConfig)
        super().__init__(spec)
        self._setup, self._market = setup, market
        self.nodes = JoinedNodes()
        with self.attaching():
            attached = attach(market, setup.plan.name)
            self._risk = attached.risk
            ARCHIVE.mkdir(parents=True, exist_ok=True)
            archive = ARCHIVE / f"{market.region}.csv.gz"
            self._cloud = Ec2Market(
                attached.ec2,
                attached.place,
                setup.plan.setting,
                self.clock.now_s,
                MergedNotices(attached.queue, DrainNotices()),
                archive,
            )
            first_decision(setup, self._cloud)
            _end(attached.ec2, left_behind(attached, market.name, self.host))

    def risk_keeper(self) -> RiskKeeper:
        """In the stack's bucket, beside that of the stack's other jobs."""
        return RiskKeeper(self._risk, self._setup.plan.name)

    def open(self, stopping: threading.Event) -> tuple[Cloud, Timekeeper]:
        """EC2, and Unix time."""
        self.clock.sleep = lambda seconds: pause(stopping, seconds)
        return self._cloud, self.clock
