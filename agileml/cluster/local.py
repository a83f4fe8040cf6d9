"""A Ray cluster on this computer, with as many nodes as the job has machines.

Each node has a raylet of its own, labelled with tier and allocation, and can be removed or killed as a whole. A cluster
shares nothing with other clusters here: its files, its token and the file with its address lie in one folder of its
own (mode 0700), and its ports are free ones. It leaves nothing behind after `shutdown`, Ctrl-C or SIGTERM. After a
SIGKILL of this process the raylets die with their parent, and the next cluster that starts removes the rest.

Nodes are added one after the other, 0.2 s each idle, without Ray's helpers (`ray_startup`). They die with the
thread that added them, so that must be the main thread or one that outlives them.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from agileml.cluster import watchdog
from agileml.cluster.errors import ClusterError
from agileml.cluster.owned_folder import new_folder, remove, sweep
from agileml.cluster.processes import kill, processes_of, send_signal, tree, uses_folder
from agileml.cluster.ray_cluster import ALLOCATION_LABEL, TIER_LABEL, TieredNode, connect
from agileml.cluster.ray_startup import (
    HEAD_WITHOUT_HELPERS,
    environment,
    ignore_interrupts,
    lean_nodes,
    own_sessions,
    put_environment,
    quiet_ray,
    spare_children,
)
from agileml.cluster.tokens import use_tokens
from agileml.errors import HeadLostError, RunError
from agileml.events.terms import Tier

# Ray finds a dead raylet after about 0.5 s, since nobody listens there any more, and a frozen one after 30 s. The
# engine's own heartbeats find a frozen machine sooner, and take it back. A node that Ray gives up never comes back; if
# it is the head, the whole run ends. So a host that is only short of CPU must not look dead.
HEALTH_CHECK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}
START_TRIES = 3
OBJECT_STORE_BYTES = 80 << 20  # arrays travel over our own data plane, so Ray's store holds next to nothing
VISIBLE = "CUDA_VISIBLE_DEVICES"
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class LocalCluster:
    """A context manager: a head node that this process is connected to, and nodes added and taken away.

    with LocalCluster() as cluster:
        nodes = cluster.add_nodes(Tier.TRANSIENT, 2)
        cluster.kill(nodes[0].node_id)
    """

    def __init__(
        self,
        *,
        variables: Mapping[str, str] | None = None,
        namespace: str = "proteus",
        orphan_after_s: float | None = None,
    ) -> None:
        """`variables`: in the environment of all actors and tasks. `namespace`: of the Ray job (see `ray.init`).

        orphan_after_s: a watchdog beside every node ends it when the head, or this process, was silent for so long.
        """
        self._variables, self._namespace = dict(variables or {}), namespace
        self._orphan_after_s = orphan_after_s
        self._liveness: watchdog.LivenessEndpoint | None = None
        self._cluster: Any = None  # Ray's, once it starts
        self._nodes: dict[str, Any] = {}
        self._tiered: dict[str, TieredNode] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}  # by node
        self._allocations = 0
        self._folder: Path | None = None
        self._environment_before: dict[str, str | None] = {}
        self._sigterm_before: Any = None

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Ray's runtime environment of processes that need these variables: none, as the nodes have them already."""
        assert variables.items() <= self._variables.items(), (variables, self._variables)
        return {}

    @property
    def address(self) -> str:
        """host:port of the GCS."""
        return str(self._cluster.gcs_address)

    @property
    def token_path(self) -> Path:
        """The file (mode 0600) with the token that every process of this cluster must show."""
        assert self._folder is not None, "the cluster is not started"
        return self._folder / "token"

    def __enter__(self) -> Self:
        sweep()
        self._folder = new_folder()
        atexit.register(self.shutdown)
        self._catch_sigterm(signal.getsignal(signal.SIGTERM))
        try:
            self._start_head()
        except BaseException:
            self.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def add_nodes(
        self, tier: Tier | str, count: int, *, cpus: float = 1, gpus: float = 0, allocation: str | None = None
    ) -> list[TieredNode]:
        """Start `count` nodes with so many logical CPUs and GPUs each, as one allocation (a new name if None).

        Each has GPUs that the fewest others have. Raises RunError when Ray cannot start one.
        """
        tier = Tier(tier)
        self._allocations += 1
        allocation = allocation or f"{tier}-{self._allocations}"
        added = []
        for _ in range(count):
            labels = {TIER_LABEL: str(tier), ALLOCATION_LABEL: allocation}
            devices = least_used(math.ceil(gpus), visible_gpus(), self._gpus.values()) if gpus else ()
            own = {VISIBLE: ",".join(devices)} if devices else {}
            node = self._add_watched(
                num_cpus=math.ceil(cpus),
                num_gpus=math.ceil(gpus),
                labels=labels,
                variables=own,
            )
            # A client of the GCS with a thread that nobody needs again; Ray's exit handler keeps it as long as we live.
            node._gcs_client = None
            tiered = TieredNode(node.node_id, node.node_ip_address, tier, allocation, math.ceil(cpus))
            self._nodes[tiered.node_id], self._tiered[tiered.node_id] = node, tiered
            self._gpus[tiered.node_id] = devices
            added.append(tiered)
        return added

    def tiered_nodes(self) -> list[TieredNode]:
        """The nodes that were added and neither removed nor killed, in that order."""
        return list(self._tiered.values())

    def remove(self, node_id: str) -> None:
        """Stop one node as its owner would: the raylet leaves the cluster in order. Raises KeyError: no such node."""
        node = self._nodes.pop(node_id)
        del self._tiered[node_id], self._gpus[node_id]
        left = tree(_raylet(node))
        self._cluster.remove_node(node, allow_graceful=True)
        kill(left)

    def kill(self, node_id: str) -> None:
        """Kill one node as a whole: its raylet and all processes on it. Raises KeyError: no such node.

        An actor outlives its killed raylet by more than a minute, so the processes are collected first.
        """
        node = self._nodes.pop(node_id)
        del self._tiered[node_id], self._gpus[node_id]
        self._cluster.worker_nodes.discard(node)
        kill(tree(_raylet(node)))
        _raylet_process(node).wait()

    def freeze(self, node_id: str) -> None:
        """Stop (SIGSTOP) every process of a node; its connections stay open. Raises KeyError."""
        send_signal(tree(_raylet(self._nodes[node_id])), signal.SIGSTOP)

    def thaw(self, node_id: str) -> None:
        """Let a frozen node go on. A node that was killed or removed meanwhile is ignored."""
        if node_id in self._nodes:
            send_signal(tree(_raylet(self._nodes[node_id])), signal.SIGCONT)

    @property
    def has_lost_head(self) -> bool:
        """True when Ray's own processes of the head have ended: a call to them would wait for a minute."""
        from ray._private import ray_constants as names

        if self._cluster is None or self._cluster.head_node is None:
            return False  # it has not started yet
        processes = self._cluster.head_node.all_processes
        kinds = (names.PROCESS_TYPE_GCS_SERVER, names.PROCESS_TYPE_RAYLET)
        return any(info.process.poll() is not None for kind in kinds for info in processes.get(kind, ()))

    def processes(self) -> list[psutil.Process]:
        """Every live process of this cluster, without this one."""
        return processes_of(self._folder) if self._folder else []

    def shutdown(self) -> None:
        """Disconnect, end every process and remove every file of the cluster. A second call does nothing."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        atexit.unregister(self.shutdown)
        with ignore_interrupts():
            import ray

            ray.shutdown()
            own = [child for child in psutil.Process().children() if uses_folder(child, folder)]
            kill([process for child in own for process in tree(child)])
            if self._liveness is not None:
                self._liveness.__exit__(None, None, None)
                self._liveness = None
            kill(processes_of(folder))  # workers of dead raylets have another parent by now
            self._nodes.clear()
            self._tiered.clear()
            self._gpus.clear()
            remove(folder)
            self._restore_environment()

    def _start_head(self) -> None:
        folder = self._folder
        assert folder is not None
        self._set_environment(
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(self.token_path)}
        )
        from ray.cluster_utils import Cluster

        use_tokens()
        self._cluster = Cluster()
        settings = dict(HEALTH_CHECK)  # Ray adds this cluster's folder to them
        self._add_node(num_cpus=0, _system_config=settings, **HEAD_WITHOUT_HELPERS)
        handler = signal.getsignal(signal.SIGTERM)
        with self._rays_own_folder():
            connect(self._cluster.address, namespace=self._namespace)
        self._catch_sigterm(handler)

    def _add_watched(self, **arguments: Any) -> Any:
        """Add a node, with a watchdog of its own if the cluster has `orphan_after_s`."""
        if self._orphan_after_s is None:
            return self._add_node(**arguments)
        assert self._folder is not None
        if self._liveness is None:
            self._liveness = watchdog.LivenessEndpoint().__enter__()
        mark = f"{self._folder.name}-{secrets.token_hex(4)}"
        with environment(watchdog.marked(mark)):
            node = self._add_node(**arguments)
        heads = (self.address, self._liveness.address)
        log = self._folder / "watchdog.log"
        watchdog.start(mark, _raylet_process(node).pid, heads, self._orphan_after_s, log)
        return node

    def _add_node(self, **arguments: Any) -> Any:
        handler = signal.getsignal(signal.SIGTERM)
        # Ray sets signal handlers, which only the main thread may do; `shutdown` needs none of them.
        self._cluster._shutdown_at_exit = threading.current_thread() is threading.main_thread()
        with self._rays_own_folder(), quiet_ray(), spare_children(), own_sessions(), lean_nodes():
            node = self._started(**arguments)
        self._catch_sigterm(handler)  # Ray sets a handler for each node that drains it for up to 30 s
        return node

    def _started(self, *, variables: Mapping[str, str] | None = None, **arguments: Any) -> Any:
        """Have Ray start a node, which must register within 30 s: on a busy host that may take a second try. variables:
        of this node alone.

        Raises RunError.
        """
        assert self._folder is not None
        for _ in range(START_TRIES):
            before = set(psutil.Process().children())
            try:
                return self._cluster.add_node(
                    object_store_memory=OBJECT_STORE_BYTES,
                    env_vars={**self._variables, **(variables or {})},
                    **arguments,
                )
            except Exception as error:  # Ray raises no narrower type
                failed = error
                if self.has_lost_head:
                    raise HeadLostError("Ray's head on this computer has ended") from error
                with contextlib.suppress(OSError):  # a full disk, which is no reason to end
                    print(f"proteus: a Ray node did not start: {error}", file=sys.stderr)
                # A raylet that registers too late would be one node too many.
                started = [c for c in psutil.Process().children() if c not in before]
                ours = [child for child in started if uses_folder(child, self._folder)]
                kill([process for child in ours for process in tree(child)])
        raise RunError(
            f"Ray could not start a node on this host in {START_TRIES} tries: {failed}"
        ) from failed

    def _rays_own_folder(self) -> AbstractContextManager[None]:
        """Make Ray put its sessions, sockets and the file with the current address in our folder, not in /tmp/ray."""
        return environment({"RAY_TMPDIR": str(self._folder), "RAY_USAGE_STATS_ENABLED": "0"})

    def _set_environment(self, changes: Mapping[str, str | None]) -> None:
        self._environment_before = {name: os.environ.get(name) for name in changes}
        put_environment(changes)

    def _restore_environment(self) -> None:
        put_environment(self._environment_before)
        if self._sigterm_before is not None:
            signal.signal(signal.SIGTERM, self._sigterm_before)
            self._sigterm_before = None
        if os.environ.get("RAY_AUTH_MODE") != "token":
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")

    def _catch_sigterm(self, handler: Any) -> None:
        """Make SIGTERM call `handler`; without one, end this process by an exception, so that `shutdown` runs."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if self._sigterm_before is None:
            self._sigterm_before = before if before is not None else signal.SIG_DFL
        signal.signal(signal.SIGTERM, handler if callable(handler) else _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _raylet_process(node: Any) -> Any:
    from ray._private import ray_constants

    return node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process


def _raylet(node: Any) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(_raylet_process(node).pid)
    return None


# -- GPUs: Ray itself would give every node the first ones ---------------------------------------------------


def gpus_here() -> int:
    """The GPUs of this computer, as Ray counts them."""
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    return int(NvidiaGPUAcceleratorManager.get_current_node_num_accelerators())


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, as `VISIBLE` names them."""
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    named = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    return [str(number) for number in range(gpus_here())] if named is None else list(named)


def least_used(count: int, there: Sequence[str], taken: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """So many of the GPUs that are there: those that the fewest nodes have, of equal ones the first. taken: those of
    each node."""
    users = Counter(gpu for each in taken for gpu in each)
    return tuple(sorted(sorted(there, key=users.__getitem__)[:count], key=list(there).index))


def check_gpus(asked: float, there: float, whose: str) -> None:
    """Raise ClusterError when a machine could never get the GPUs that it reserves."""
    if math.ceil(asked) > there:
        raise ClusterError(f"machines.gpus: found {asked:g}, expected at most {there:g}, as {whose} has")
