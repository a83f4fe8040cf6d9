"""How the instances of a market become Ray nodes: taken from nodes started ahead here, or found in a cluster."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from agileml.cluster.local import LocalCluster
from agileml.cluster.ray_cluster import TieredNode, as_tiered_node
from agileml.events.terms import Tier
from bidbrain.live.cloud import Instance
from bidbrain.setting import ON_DEMAND_ZONE

MACHINE_LABEL = "machine"  # label of a Ray node: the market's id of its instance
Entry = Mapping[str, object]  # of `ray.nodes()`
LOOK_S = 0.5
START_S = 60.0  # for a node to come up


def tier_of(instance: Instance) -> Tier:
    """On-demand instances are reliable, spot instances transient."""
    return Tier.RELIABLE if instance.market.zone == ON_DEMAND_ZONE else Tier.TRANSIENT


class InstanceNodes(Protocol):
    """The instances of a market as Ray nodes."""

    @property
    def warm(self) -> tuple[TieredNode, ...]:
        """Nodes started ahead, of no instance yet, in the order in which they came."""

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        """The nodes of those `wanted` instances that have booted, by instance id. `now_s`: market time."""

    def missing(self, nodes: set[str]) -> set[str]:
        """The ids among `nodes` that have left the cluster."""


@dataclass
class _Slot:
    """An instance that was bought, and its node once there is one."""

    instance: Instance
    node: TieredNode | None = None


class PrestartedNodes:
    """Local Ray nodes that are started ahead: a bought instance is one of them at once, and works once it has booted.

    It is the launcher of a replayed market, whose service calls `start` and `kill` in its own thread. The node of an
    instance that ends is killed as a whole, with its raylet. A thread of this class keeps `spare` transient nodes
    ready, and `most` nodes in all while no instance is held.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        reliable: int,
        most: int,
        spare: int,
        boot_s: int,
        cpus: float,
        gpus: float,
    ) -> None:
        self._cluster = cluster
        self._reliable, self._most, self._spare = reliable, most, spare
        self._boot_s, self._cpus, self._gpus = boot_s, cpus, gpus
        self._free: dict[Tier, deque[TieredNode]] = {tier: deque() for tier in Tier}
        self._slots: dict[str, _Slot] = {}
        self._changed = threading.Condition()
        self._is_warming, self._is_adding, self._stopping = True, False, False
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="warm nodes", daemon=True)

    def start_warming(self) -> None:
        """Start the thread that starts nodes."""
        self._thread.start()

    def stop_warming(self) -> None:
        """Start no more nodes, and wait for the one under way. The thread stays: its nodes would die with it."""
        with self._changed:
            self._is_warming = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_adding, timeout=START_S)

    def join(self) -> None:
        """End the thread; call it when the nodes are gone."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def initial(self) -> int:
        """Nodes that are ready before the market opens."""
        return max(self._most, self._reliable)

    @property
    def warm(self) -> tuple[TieredNode, ...]:
        with self._changed:
            self._raise_problem()
            return tuple(node for tier in Tier for node in self._free[tier])

    def start(self, instance: Instance) -> None:
        """Give a node to a bought instance, when one is free."""
        with self._changed:
            self._slots[instance.instance_id] = _Slot(instance)
            self._give()
            self._changed.notify_all()

    def kill(self, instance_id: str) -> None:
        """Kill the node of an instance that ended, with everything on it."""
        with self._changed:
            slot = self._slots.pop(instance_id, None)
            self._changed.notify_all()
        if slot is not None and slot.node is not None:
            self._kill(slot.node)

    def _kill(self, node: TieredNode) -> None:
        if any(each.node_id == node.node_id for each in self._cluster.tiered_nodes()):
            self._cluster.kill(node.node_id)

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        with self._changed:
            self._raise_problem()
            return {
                instance_id: slot.node
                for instance_id, slot in self._slots.items()
                if instance_id in wanted and slot.node is not None and now_s >= self._ready_s(slot.instance)
            }

    def _ready_s(self, instance: Instance) -> int:
        """When an instance is useful; an on-demand one is at once, as in the simulator."""
        return instance.launched_s + (self._boot_s if tier_of(instance) is Tier.TRANSIENT else 0)

    def missing(self, nodes: set[str]) -> set[str]:
        return nodes - {node.node_id for node in self._cluster.tiered_nodes()}

    def _give(self) -> None:
        """Give free nodes to instances without one, in the order of the purchases."""
        for slot in self._slots.values():
            free = self._free[tier_of(slot.instance)]
            if slot.node is None and free:
                slot.node = free.popleft()

    def _run(self) -> None:
        try:
            while (tier := self._next()) is not None:
                added = self._cluster.add_nodes(tier, 1, cpus=self._cpus, gpus=self._gpus)
                with self._changed:
                    self._is_adding = False
                    self._free[tier].extend(added)
                    self._give()
                    self._changed.notify_all()
        except BaseException as error:  # raised again where the driver looks
            with self._changed:
                self._is_adding, self._problem = False, error
                self._changed.notify_all()
        with self._changed:
            while not self._stopping:
                self._changed.wait()

    def _next(self) -> Tier | None:
        """Wait until a node is wanted, and return its tier; None: no more nodes are started."""
        with self._changed:
            while self._is_warming:
                for tier in (Tier.RELIABLE, Tier.TRANSIENT):
                    if len(self._free[tier]) < self._wanted(tier):
                        self._is_adding = True
                        return tier
                self._changed.wait()
        return None

    def _wanted(self, tier: Tier) -> int:
        """How many free nodes of a tier there should be."""
        mine = [slot for slot in self._slots.values() if tier_of(slot.instance) is tier]
        waiting = sum(slot.node is None for slot in mine)
        if tier is Tier.RELIABLE:
            return waiting + max(0, self._reliable - len(mine))
        return waiting + max(self._spare, self._most - self._reliable - len(mine))

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem


def labelled(node: Entry) -> str | None:
    """The instance of a Ray node by its label `machine`."""
    labels = node.get("Labels") or {}
    assert isinstance(labels, Mapping)
    name = labels.get(MACHINE_LABEL)
    return None if name is None else str(name)


class JoinedNodes:
    """Instances that have joined a cluster, by the names that their Ray nodes say."""

    def __init__(
        self,
        name_of: Callable[[Entry], str | None] = labelled,
        nodes: Callable[[], list[Mapping[str, object]]] | None = None,
    ) -> None:
        """name_of: the instance of a node, if it is one. nodes: as `ray.nodes()`, which is what None means."""
        self._name_of, self._nodes = name_of, nodes or ray_nodes
        self._due_s = 0.0
        self._seen: dict[str, TieredNode] = {}

    @property
    def warm(self) -> tuple[TieredNode, ...]:
        return ()

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        self._look()
        # The purchase decides the tier, whatever the label says.
        return {
            instance_id: TieredNode(
                node.node_id, node.ip, tier_of(wanted[instance_id]), wanted[instance_id].token, node.cpus
            )
            for instance_id, node in self._seen.items()
            if instance_id in wanted
        }

    def missing(self, nodes: set[str]) -> set[str]:
        self._look()
        return nodes - {node.node_id for node in self._seen.values()}

    def _look(self) -> None:
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + LOOK_S
        self._seen = {
            name: info
            for node in self._nodes()
            if node["Alive"]
            and (name := self._name_of(node)) is not None
            and (info := as_tiered_node(node)) is not None
        }


def ray_nodes() -> list[Entry]:
    """The entries of `ray.nodes()`."""
    import ray

    found: list[Entry] = ray.nodes()
    return found
