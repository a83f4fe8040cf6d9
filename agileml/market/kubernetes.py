"""A market on Kubernetes: pods of a RayCluster join the Ray cluster of the head that this runs on, by their names."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from agileml.config.market import KubernetesMarketConfig
from agileml.market.drain_notices import DrainNotices
from agileml.market.joined import JoinedCluster
from agileml.market.nodes import Entry, JoinedNodes, labelled
from agileml.market.service import pause
from agileml.market.setup import LEAVE_S, MarketSetup, first_decision
from agileml.process.spec import RunSpec
from bidbrain.kubernetes.attach import attach
from bidbrain.live.cloud import Cloud
from bidbrain.live.job import Timekeeper
from bidbrain.live.keeping import FolderObjects, RiskKeeper

LOOK_S = 2.0  # between two looks at the copies of pods and nodes, which cost no call: GKE gives 15 s
RISK = Path("proteus-runs") / "risk"  # in the home folder of the head's user


def pod_name(node: Entry) -> str | None:
    """The pod of a Ray node: its label `machine`, or else its host name, which in a pod is the pod's name."""
    name = labelled(node) or node.get("NodeManagerHostname")
    return None if name is None else str(name)


class KubernetesBackend(JoinedCluster):
    """The cluster behind `address`, and the RayCluster that it is. Raises ClusterError: no cluster, or no rights."""

    leave_s = LEAVE_S

    def __init__(self, setup: MarketSetup, spec: RunSpec) -> None:
        market = spec.config.market
        assert isinstance(market, KubernetesMarketConfig)
        super().__init__(spec)
        self._setup = setup
        self.nodes = JoinedNodes(pod_name)
        with self.attaching():
            drains = DrainNotices(name_of=pod_name)
            self._cloud = attach(market, setup.plan.name, setup.plan.setting, drains, self.clock.now_s)
            first_decision(setup, self._cloud)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cloud.close()
        super().__exit__(kind, error, trace)

    def risk_keeper(self) -> RiskKeeper:
        """In the head's home folder: it outlives jobs, and the head where that folder is a volume."""
        return RiskKeeper(FolderObjects(Path.home() / RISK), self._setup.plan.name)

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        """The RayCluster, and Unix time."""
        self.clock.wait_s = LOOK_S
        self.clock.sleep = lambda seconds: pause(stopping, seconds)
        return self._cloud, self.clock
