"""A market played on this computer: prices from a history, instances that are local Ray nodes started ahead."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from agileml.cluster.fleet import check_head
from agileml.cluster.local import LocalCluster, check_gpus, gpus_here
from agileml.config.job import JobConfig
from agileml.config.market import LocalMarketConfig
from agileml.errors import RunError
from agileml.market.nodes import PrestartedNodes
from agileml.market.service import pause
from agileml.market.setup import MarketSetup
from agileml.process.spec import variables_here
from bidbrain.live.cloud import Cloud
from bidbrain.live.job import Timekeeper
from bidbrain.live.replay import MarketClock, Replay, Warnings
from bidbrain.live.replay_book import ReplayBook, ReplayBookError

POLL_S = 0.1  # between two looks of the service; at speed 120 that is 12 s of its market
LEAVE_S = 3.0


class PlayedBackend:
    """A local cluster, and the market on which its nodes are bought."""

    leave_s = LEAVE_S

    def __init__(self, setup: MarketSetup, config: JobConfig) -> None:
        assert isinstance(config.market, LocalMarketConfig)
        check_gpus(config.machines.gpus, gpus_here() if config.machines.gpus else 0, "this computer")
        self._setup, self._market = setup, config.market
        self._book: ReplayBook | None = None
        self._cluster = LocalCluster(
            variables=variables_here(config), orphan_after_s=config.market.orphan_after_s
        )
        setting = setup.plan.setting
        per_machine = min(listing.vcpus for listing in setting.listings)
        on_demand = setting.reliable.vcpus if setup.plan.with_reliable else setting.job.vcpus
        reliable = math.ceil(on_demand / setting.reliable.vcpus_per_machine)
        transient = math.ceil(setting.job.cap_vcpus / per_machine) if setup.plan.with_reliable else 0
        self.nodes = PrestartedNodes(
            self._cluster,
            reliable=reliable,
            most=min(config.machines.max, reliable + transient),
            spare=config.market.warm if transient else 0,
            boot_s=config.market.boot_s,
            cpus=config.machines.cpus,
            gpus=config.machines.gpus,
        )
        self.warm = self.nodes.initial

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self.nodes.start_warming()
        return self

    def __exit__(self, *_: object) -> None:
        self.nodes.stop_warming()
        self._cluster.shutdown()
        self.nodes.join()
        if self._book is not None:
            self._book.close()

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """See `fleet.Fleet.runtime_env`."""
        return self._cluster.runtime_env(variables)

    def check(self) -> None:
        """Raises HeadLostError."""
        check_head(self._cluster)

    def risk_keeper(self) -> None:
        """Nowhere: the next run plays the same market, and would know its future."""

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        """The market and its clock, which starts now, or goes on where the book in `folder` began it."""
        market = self._market
        try:
            self._book = ReplayBook(folder)
        except ReplayBookError as error:
            raise RunError(f"market: {error}") from None
        start_s = self._book.time_s(self._setup.start_s, market.speed, time.time())
        clock = MarketClock(start_s, market.speed, POLL_S, sleep=lambda seconds: pause(stopping, seconds))
        warnings = Warnings(market.notice_s, market.silent_share, market.seed)
        return Replay(self._setup.plan.setting, clock.now_s, self.nodes, warnings, self._book), clock
