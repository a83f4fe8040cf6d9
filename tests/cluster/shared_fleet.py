"""Machines of a cluster that several runs share, one after the other: nodes stay when a run releases them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from agileml.cluster.fleet import Appeared, FleetEvent, check_head
from agileml.cluster.local import LocalCluster
from agileml.config.job import JobConfig, from_values
from agileml.events.terms import Fault, Tier
from agileml.process.spec import RunSpec


class SharedFleet:
    """The machines of a config (and of its plan), taken from nodes that are there or added once."""

    def __init__(self, cluster: LocalCluster, values: Mapping[str, Any] | JobConfig) -> None:
        config = values if isinstance(values, JobConfig) else from_values(values)
        spec = RunSpec("shared", config)
        waiting = spec.waiting_machines()
        start = spec.config.machines
        self._cluster = cluster
        self._orders = [
            *[(Tier.RELIABLE, True)] * start.reliable,
            *[(Tier.TRANSIENT, True)] * start.transient,
            *[(tier, False) for tier, count in waiting.items() for _ in range(count)],
        ]
        self.expected = len(self._orders)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return self._cluster.runtime_env(variables)

    def check_head(self) -> None:
        check_head(self._cluster)

    def watch_head(self) -> None:
        check_head(self._cluster)

    def poll(self) -> list[FleetEvent]:
        free = {
            tier: [machine for machine in self._cluster.tiered_nodes() if machine.tier == tier]
            for tier in Tier
        }
        events: list[FleetEvent] = []
        for tier, admitted in self._orders:
            node = free[tier].pop(0) if free[tier] else self._cluster.add_nodes(tier, 1)[0]
            events.append(Appeared(node, admitted))
        self._orders = []
        return events

    def missing(self) -> str:
        return ""

    def release(self, node_id: str) -> None:
        pass

    def take_away(self, node_id: str) -> None:
        pass

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        raise AssertionError(f"{kind} on a shared machine")
