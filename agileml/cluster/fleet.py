"""Fleets, the sources of Ray nodes for a run: nodes that we start on this computer, or nodes of an existing cluster."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from agileml.cluster import ray_cluster
from agileml.cluster.errors import ClusterError
from agileml.cluster.local import LocalCluster, check_gpus, gpus_here
from agileml.cluster.ray_cluster import GcsWatch, TieredNode
from agileml.cluster.travel import code_of
from agileml.cluster.wanted import shortage
from agileml.config.hardware import least_cores
from agileml.config.job import JobConfig
from agileml.core.protocol.commands import Happened
from agileml.errors import HeadLostError, RunError
from agileml.events.terms import Fault, Loss, Tier
from agileml.process.spec import RunSpec, variables_here

LOOK_S = 0.5  # between two looks at Ray's list of nodes
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray's job server for the drivers that it starts


@dataclass(frozen=True)
class Appeared:
    """A node is up. `admitted`: it may work at once; others wait for the fault plan to join them."""

    node: TieredNode
    admitted: bool


@dataclass(frozen=True)
class Vanished:
    """A node is gone."""

    node_id: str
    loss: Loss


@dataclass(frozen=True)
class Leaving:
    """A preemption notice: the node will be taken away at `deadline_s` (Unix time)."""

    node_id: str
    deadline_s: float


@dataclass(frozen=True)
class Admitted:
    """A node that appeared earlier may work from now on. `speed`: of the machine that it stands for."""

    node_id: str
    speed: float = 1.0


@dataclass(frozen=True)
class Stopping:
    """The run must end before its last clock: with the next cut, or at `deadline_s` (Unix time) with the last one."""

    deadline_s: float


FleetEvent = Appeared | Admitted | Vanished | Leaving | Stopping


class Fleet(Protocol):
    """A source of Ray nodes. A context manager; `poll` may block for as long as a node takes to start."""

    @property
    def expected(self) -> int:
        """How many nodes must be up before the run starts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Ray's runtime environment for our processes, beyond the job's: they find our code and the user's in it, and
        these variables."""

    def poll(self) -> list[FleetEvent]:
        """The events since the last call."""

    def check_head(self) -> None:
        """Raise HeadLostError when the cluster's head is gone. Asked after an error whose cause is not known."""

    def watch_head(self) -> None:
        """Raise HeadLostError when the head's processes are ours and have ended, or when the GCS of a cluster that
        others run has not answered for `gcs_limit_s`. Asked while a call to Ray takes long."""

    def missing(self) -> str:
        """The nodes that the fleet lacks before a run can start, as "wants ..."; empty when it has all."""

    def release(self, node_id: str) -> None:
        """Let a node go that the run does not need any more."""

    def take_away(self, node_id: str) -> None:
        """Take a node away: the deadline of its notice has come."""

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        """Carry out a planned fault: kill or freeze a node. Raises RunError where the nodes are not ours."""


@runtime_checkable
class Watcher(Protocol):
    """A fleet that follows what becomes of its machines."""

    def started(self, node_id: str) -> None:
        """Record that the run's process on this node is up."""

    def happened(self, happened: Happened, node_of: Callable[[str], str]) -> None:
        """Take an event of the controller. `node_of`: the node of a machine of the run."""

    def sent(self, total_bytes: int) -> None:
        """Take the bytes that the machines have sent each other since the run began."""

    def standing(self) -> tuple[float, str]:
        """Dollars spent so far and the last decision, for the screen."""


def check_head(cluster: LocalCluster) -> None:
    """Raise HeadLostError when Ray's processes of the head have ended: calls to them would wait for a minute."""
    if cluster.has_lost_head:
        raise HeadLostError(
            "Ray's head on this computer has ended, and the run with it; "
            "start it again, with --resume if there are checkpoints"
        )


class LocalFleet:
    """Ray nodes that we start on this computer: those of the config, and those that its plan will join."""

    def __init__(self, spec: RunSpec) -> None:
        self._config = spec.config
        waiting = spec.waiting_machines()
        start = spec.config.machines
        check_gpus(start.gpus, gpus_here() if start.gpus else 0, "this computer")
        self._orders: deque[tuple[Tier, bool]] = deque(
            [(Tier.RELIABLE, True)] * start.reliable
            + [(Tier.TRANSIENT, True)] * start.transient
            + [(tier, False) for tier, count in waiting.items() for _ in range(count)]
        )
        self.expected = len(self._orders)
        self._cluster = LocalCluster(variables=variables_here(spec.config))
        self._present: set[str] = set()
        self._frozen: dict[str, float] = {}  # until
        self._look_due_s = 0.0

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.shutdown()

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return self._cluster.runtime_env(variables)

    def poll(self) -> list[FleetEvent]:
        check_head(self._cluster)
        for node_id in [node_id for node_id, until_s in self._frozen.items() if until_s <= time.monotonic()]:
            del self._frozen[node_id]
            self._cluster.thaw(node_id)
        if not self._orders:
            return list(self._vanished())
        tier, admitted = self._orders.popleft()
        machines = self._config.machines
        added = self._cluster.add_nodes(tier, 1, cpus=machines.cpus, gpus=machines.gpus)
        self._present.update(node.node_id for node in added)
        return [Appeared(node, admitted) for node in added]

    def check_head(self) -> None:
        check_head(self._cluster)

    def watch_head(self) -> None:
        check_head(self._cluster)

    def missing(self) -> str:
        return ""  # `poll` starts them one after the other, or raises

    def _vanished(self) -> Iterator[Vanished]:
        """Nodes that Ray has lost for any reason; our own connections usually notice first."""
        if time.monotonic() < self._look_due_s:
            return
        self._look_due_s = time.monotonic() + LOOK_S
        if (alive := ray_cluster.live_nodes(ray_cluster.ANSWER_S)) is None:
            check_head(self._cluster)
            return
        for node_id in sorted(self._present - alive):
            self._present.discard(node_id)
            yield Vanished(node_id, Loss.NODE_GONE)

    def release(self, node_id: str) -> None:
        if any(machine.node_id == node_id for machine in self._cluster.tiered_nodes()):
            self._cluster.kill(node_id)  # it holds nothing of the run, so no need to stop it in order

    def take_away(self, node_id: str) -> None:
        self.release(node_id)

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        if kind is Fault.FREEZE:
            self._cluster.freeze(node_id)
            self._frozen[node_id] = time.monotonic() + seconds
        else:
            self._cluster.kill(node_id)


class ExistingFleet:
    """Labelled nodes of a Ray cluster that others run: they come and go, and this fleet only watches."""

    def __init__(self, spec: RunSpec, gcs_address: str) -> None:
        self._spec = spec
        self._address = gcs_address
        self._gcs = GcsWatch(ray_cluster.live_nodes)
        waiting = spec.waiting_machines()
        start = spec.config.machines
        self._wanted = {Tier.RELIABLE: start.reliable, Tier.TRANSIENT: start.transient}
        self._with_plan = {tier: count + waiting.get(tier, 0) for tier, count in self._wanted.items()}
        cores = least_cores(spec.config)
        self._least_cpus = start.cpus if cores == 1 else max(start.cpus, cores)
        self._for_plan = sum(waiting.values())
        self.expected = start.reliable + start.transient + self._for_plan
        self._known: dict[str, TieredNode] = {}
        self._released: set[str] = set()  # of those
        self._admitted: dict[str, Tier] = {}  # by node: with a plan, those of the start
        self._leaves_s: dict[str, float] = {}  # by node that is drained, the soonest deadline
        self._due_s = 0.0

    def __enter__(self) -> Self:
        try:
            ray_cluster.join(self._address, namespace="proteus", runtime_env=travelling(self._spec.config))
        except ClusterError:
            self.check_head()
            raise
        gpus = self._spec.config.machines.gpus
        most = ray_cluster.most_gpus() if gpus else None
        if most is not None and math.ceil(gpus) > most:
            self.__exit__(None, None, None)
            check_gpus(gpus, most, "the best of the cluster's nodes with a tier")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return {"env_vars": dict(variables)}  # the code travels with the job

    def poll(self) -> list[FleetEvent]:
        if time.monotonic() < self._due_s:
            return []
        self._due_s = time.monotonic() + LOOK_S
        if self._gcs.live_nodes() is None:  # the other questions would wait for it for a minute
            return []
        return list(self._changes(ray_cluster.tiered_nodes(), ray_cluster.draining()))

    def _changes(self, present: Sequence[TieredNode], draining: dict[str, float | None]) -> list[FleetEvent]:
        events: list[FleetEvent] = []
        for node in self._in_turn([node for node in present if node.node_id not in draining]):
            self._known[node.node_id] = node
            tier = Tier(str(node.tier))
            # With a plan, nodes beyond those of the start wait for their clock.
            of_start = list(self._admitted.values()).count(tier)
            admitted = not self._for_plan or of_start < self._wanted[tier]
            if self._for_plan and admitted:
                self._admitted[node.node_id] = tier
            events.append(Appeared(node, admitted))
        alive = {node.node_id for node in present}
        for node_id in [node_id for node_id in self._known if node_id not in alive]:
            del self._known[node_id]
            self._leaves_s.pop(node_id, None)
            if node_id not in self._released:  # not one that the plan has sent away
                self._admitted.pop(node_id, None)
            self._released.discard(node_id)
            events.append(Vanished(node_id, Loss.NODE_GONE))
        for node_id, deadline_s in draining.items():
            leaves_s = deadline_s if deadline_s is not None else time.time()
            # A node may be drained again, to leave sooner.
            if node_id in self._known and leaves_s < self._leaves_s.get(node_id, math.inf):
                self._leaves_s[node_id] = leaves_s
                events.append(Leaving(node_id, leaves_s))
        return events

    def _in_turn(self, present: Sequence[TieredNode]) -> Iterator[TieredNode]:
        """The nodes to take, each before the next is asked for, up to `machines.max` beside released ones: those that
        the start and the plan want before others.

        The last place is for a reliable node until there is one: without it no run starts. A node that is too small
        for a machine is left out, as if it had no label: processes fail there until the run ends.
        """
        machines = self._spec.config.machines
        counts = Counter(node.tier for node in self._in_use())
        wanted: list[TieredNode] = []
        others: list[TieredNode] = []
        for node in present:
            is_large = node.cpus >= self._least_cpus and node.gpus >= machines.gpus
            if node.node_id not in self._known and is_large:
                counts[node.tier] += 1
                (wanted if counts[node.tier] <= self._with_plan[node.tier] else others).append(node)
        for node in [*wanted, *others]:
            in_use = self._in_use()
            has_reliable = any(known.tier is Tier.RELIABLE for known in in_use)
            is_kept_free = not has_reliable and node.tier is not Tier.RELIABLE
            if len(in_use) + is_kept_free < machines.max:
                yield node

    def _in_use(self) -> list[TieredNode]:
        return [node for node_id, node in self._known.items() if node_id not in self._released]

    def check_head(self) -> None:
        host, _, port = self._address.rpartition(":")
        try:
            ray_cluster.check_alive(host, int(port), ray_cluster.REACH_TIMEOUT_S)
        except ClusterError as error:
            raise HeadLostError(
                f"Ray's head at {self._address} has ended, and the run with it; start it again, with --resume if "
                "there are checkpoints"
            ) from error

    def watch_head(self) -> None:
        self._gcs.live_nodes()

    def missing(self) -> str:
        machines = self._spec.config.machines
        return shortage(self._wanted, self._least_cpus, machines.gpus, ray_cluster.offers(), self._address)

    def release(self, node_id: str) -> None:
        """Its owner ends it, and a draining raylet exits once our actor is gone. Another node may take its place."""
        if node_id in self._known:
            self._released.add(node_id)

    def take_away(self, node_id: str) -> None:
        """Does nothing: its owner takes it away."""

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        """Raises RunError: these nodes belong to others."""
        raise RunError(f"plan: found {kind}, expected no such fault in a cluster that others run")


def travelling(config: JobConfig) -> dict[str, Any]:
    """The runtime environment that carries our code and the user's to other nodes.

    It is empty for a submitted job, which carries its code already: Ray refuses to get it twice.
    """
    job = json.loads(os.environ.get(JOB_VARIABLE, "{}"))
    return {} if "py_modules" in job.get("runtime_env", {}) else {"py_modules": code_of(config)}
