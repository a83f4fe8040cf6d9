"""A market on EC2: machines join the Ray cluster of the head that this runs on, labelled with their instance ids."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agileml.cluster import existing
from agileml.cluster.errors import ClusterError
from agileml.cluster.fleet import ExistingFleet
from agileml.cluster.watchdog import LIVENESS_PORT, LivenessEndpoint
from agileml.config.market import Ec2MarketConfig
from agileml.market.drain_notices import DrainNotices, MergedNotices
from agileml.market.nodes import LabelledNodes
from agileml.market.service import pause
from agileml.market.setup import MarketSetup, first_decision
from agileml.process.spec import RunSpec
from bidbrain.aws.ec2 import Ec2 as Ec2Market
from bidbrain.aws.stack.attach import attach, left_behind
from bidbrain.aws.tagged import Tagged, terminate
from bidbrain.live.cloud import Cloud, CloudError
from bidbrain.live.job import Timekeeper
from bidbrain.live.keeping import RiskKeeper

WAIT_S = 5.0
LEAVE_S = 60.0
ARCHIVE = Path("runs") / "spot-prices"


class UnixClock:
    """The market's clock is Unix time."""

    def __init__(self, sleep: Callable[[float], object], now_s: Callable[[], float] = time.time) -> None:
        self._sleep, self._now_s = sleep, now_s

    def now_s(self) -> int:
        """Unix time, whole seconds."""
        return int(self._now_s())

    def wait(self, until_s: int, market: bool) -> None:
        """Until then, but looks every few seconds: notices and machines that have ended do not wait."""
        self._sleep(max(0.0, min(WAIT_S, until_s - self._now_s())))


def _end(ec2: Any, machines: list[Tagged]) -> None:
    """End machines that no process drives, and say so."""
    if machines:
        terminate(ec2, machines)
        named = ", ".join(f"{machine.machine_id} of {machine.job}" for machine in machines)
        print(f"proteus: ended machines that an earlier job left running: {named}", file=sys.stderr)


class Ec2Backend:
    """The cluster behind `address`, and EC2 in one region. Raises ClusterError: no cluster, or no stack there."""

    leave_s = LEAVE_S
    warm = 0

    def __init__(self, setup: MarketSetup, spec: RunSpec) -> None:
        market = spec.config.market
        assert isinstance(market, Ec2MarketConfig)
        assert spec.config.address is not None
        self._setup, self._market = setup, market
        gcs_address = existing.reach(spec.config.address)
        self._cluster = ExistingFleet(spec, gcs_address)
        # Machines ask it whether a process still drives their market, and end themselves when none does.
        host = gcs_address.rpartition(":")[0]
        try:
            self._liveness = LivenessEndpoint(host, LIVENESS_PORT).__enter__()
        except OSError as error:
            raise ClusterError(
                f"market: port {LIVENESS_PORT} of {host} is taken ({os.strerror(error.errno or 0)}), "
                "expected no other job that drives this market from the same head"
            ) from None
        self.nodes = LabelledNodes()
        try:
            attached = attach(market, setup.plan.name)
            self._risk = attached.risk
            ARCHIVE.mkdir(parents=True, exist_ok=True)
            archive = ARCHIVE / f"{market.region}.csv.gz"
            self._cloud = Ec2Market(
                attached.ec2,
                attached.place,
                setup.plan.setting,
                lambda: int(time.time()),
                MergedNotices(attached.queue, DrainNotices()),
                archive,
            )
            first_decision(setup, self._cloud)
            _end(attached.ec2, left_behind(attached, market.name, host))
        except CloudError as error:
            self._liveness.__exit__(None, None, None)
            raise ClusterError(str(error)) from None
        except BaseException:
            self._liveness.__exit__(None, None, None)
            raise

    @property
    def head_node_id(self) -> str:
        """The Ray node that keeps the controller."""
        return self._cluster.head_node_id

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.__exit__(kind, error, trace)
        self._liveness.__exit__(kind, error, trace)

    def runtime_env(self) -> dict[str, Any]:
        """The code travels with the job."""
        return self._cluster.runtime_env()

    def check(self) -> None:
        """The head is no process of ours: Ray says when it is gone."""

    def risk_keeper(self) -> RiskKeeper:
        """In the stack's bucket, beside that of the stack's other jobs."""
        return RiskKeeper(self._risk, self._setup.plan.name)

    def open(self, stopping: threading.Event) -> tuple[Cloud, Timekeeper]:
        """EC2, and Unix time."""
        return self._cloud, UnixClock(lambda seconds: pause(stopping, seconds))
