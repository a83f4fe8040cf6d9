"""A RayCluster on the test's server with an operator, and its market."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.kubernetes.api import Api
from bidbrain.kubernetes.kuberay import KubeRay, PodPlace
from bidbrain.live.cloud import NoticeSource, Order
from bidbrain.setting import ON_DEMAND_ZONE, Listing, Reliable, Setting, Workload
from tests.kubernetes.api_server import Server, served
from tests.kubernetes.kuberay_operator import Operator, operating, ray_cluster

SPOT, LARGE = Market("spot", "ray"), Market("large", "ray")
STAYS = Market("stays", ON_DEMAND_ZONE)
GROUPS = {SPOT: "spot", LARGE: "large", STAYS: "stays"}
PRICES = {SPOT: 60_000, LARGE: 110_000, STAYS: 200_000}
PATIENCE_S = 60.0  # for what happens in other threads


def make_setting() -> Setting:
    listings = (Listing(SPOT, 200_000, 4), Listing(LARGE, 400_000, 8))
    return Setting(
        Workload(16, 1.0), listings, History({}, 0), Interval(0, 1), Reliable("stays", 4, 200_000, 4), 200_000,
        rules="per_second_paid",
    )  # fmt: skip


class Ground:
    """A server with a RayCluster, its operator, and a clock that is Unix time and what `later_s` adds."""

    def __init__(self, server: Server, operator: Operator) -> None:
        self.server, self.operator = server, operator
        self.later_s = 0
        self.clouds: list[KubeRay] = []

    def now_s(self) -> int:
        return int(time.time()) + self.later_s

    @property
    def api(self) -> Api:
        return Api("127.0.0.1", self.server.port, self.server.account)

    def place(self, **changes: object) -> PodPlace:
        return PodPlace("here", "ray", GROUPS, PRICES, **changes)  # type: ignore[arg-type]

    def cloud(
        self,
        job: str = "job",
        place: PodPlace | None = None,
        setting: Setting | None = None,
        others: NoticeSource | None = None,
    ) -> KubeRay:
        """As a new process sees it."""
        what = (place or self.place(), job, setting or make_setting(), self.now_s, others)
        self.clouds.append(KubeRay(self.api, *what))
        return self.clouds[-1]

    def replicas(self, group: str) -> int:
        (cluster,) = self.server.items("rayclusters")
        found = {each["groupName"]: each["replicas"] for each in cluster["spec"]["workerGroupSpecs"]}
        return int(found[group])

    def settled(self) -> None:
        """Wait until the operator has done what the RayCluster asks for."""
        with self.server.changed:
            assert self.server.changed.wait_for(
                lambda: all(len(self.operator.names(g)) == self.replicas(g) for g in GROUPS.values()),
                PATIENCE_S,
            )

    def running(self) -> None:
        """Wait until every pod runs."""
        with self.server.changed:
            assert self.server.changed.wait_for(
                lambda: all(pod["status"]["phase"] == "Running" for pod in self.server.items("pods")),
                PATIENCE_S,
            )


def soon(ground: Ground, condition: Callable[[], Any]) -> Any:
    """What `condition()` returns once it is true; looked at whenever something changes."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "this never came true"
        with ground.server.changed:
            ground.server.changed.wait(0.02)
    return found


def order(token: str, machines: int, market: Market = SPOT) -> Order:
    each = 8 if market == LARGE else 4
    return Order(token, market, machines * each, each, PRICES[market])


@contextmanager
def ground_of(folder: Path, **replicas: int) -> Iterator[Ground]:
    """replicas: of the worker groups, before any job."""
    with served(folder / "account") as server:
        server.put("rayclusters", ray_cluster("ray", {"stays": 0, "spot": 0, "large": 0, **replicas}))
        with operating(server) as operator:
            ground = Ground(server, operator)
            ground.settled()
            try:
                yield ground
            finally:
                for cloud in ground.clouds:
                    cloud.close()
            assert not operator.unnamed, "KubeRay chose itself which pod to delete"
