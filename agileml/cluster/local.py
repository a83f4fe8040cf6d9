"""A Ray cluster on this machine, with as many nodes as the job has machines.

Each node is a real one: its own raylet, labelled with tier and allocation, that can be removed or killed as a whole.
Nothing of it is shared with other clusters here: its files, its token and the file with its address lie in one folder
of its own (mode 0700), its ports are free ones. And nothing of it stays: not after `shutdown`, not after Ctrl-C or
SIGTERM, and what a SIGKILL of this process leaves behind goes at once (raylets die with their parent) or, at the
latest, when the next cluster starts.

Machines are added one after the other: 1-2 s each, of which Ray sleeps most. They die with the thread that added them:
the main thread, or one that lives as long as they shall.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import psutil

from agileml.cluster import watchdog
from agileml.cluster.existing import ALLOCATION_LABEL, TIER_LABEL, TieredNode, connect
from agileml.cluster.own_folder import is_of, kill, new_folder, processes_of, remove, sweep
from agileml.cluster.tokens import use_tokens
from agileml.events.terms import Tier

# A raylet that died is found dead after about 0.5 s, one that is frozen after 3.5 s. The engine's own heartbeats are
# faster; these must not be so fast that a busy machine looks dead.
HEALTH_CHECK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
OBJECT_STORE_BYTES = 80 << 20  # arrays go over our own data plane; Ray's store holds next to nothing
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class LocalCluster:
    """A context manager: a head node that this process is connected to, and machines added and taken away.

    with LocalCluster() as cluster:
        machines = cluster.add_nodes(Tier.TRANSIENT, 2)
        cluster.kill(machines[0].node_id)
    """

    def __init__(
        self,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        namespace: str = "proteus",
        orphan_after_s: float | None = None,
    ) -> None:
        """`runtime_env` and `namespace` are those of the Ray job (see `ray.init`).

        orphan_after_s: a watchdog beside every machine ends it when the head, or this process, was silent so long.
        """
        self._runtime_env, self._namespace = runtime_env, namespace
        self._orphan_after_s = orphan_after_s
        self._liveness: watchdog.LivenessEndpoint | None = None
        self._nodes: dict[str, Any] = {}
        self._machines: dict[str, TieredNode] = {}
        self._allocations = 0
        self._folder: Path | None = None
        self._environment_before: dict[str, str | None] = {}
        self._sigterm_before: Any = None

    @property
    def address(self) -> str:
        """host:port of the GCS."""
        return str(self._cluster.gcs_address)

    @property
    def head_node_id(self) -> str:
        """Ray's id of the head node."""
        return str(self._cluster.head_node.node_id)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def add_nodes(
        self, tier: Tier | str, count: int, *, cpus: float = 1, gpus: float = 0, allocation: str | None = None
    ) -> list[TieredNode]:
        """Start `count` nodes with so many logical CPUs and GPUs each, as one allocation (a new name if None)."""
        tier = Tier(tier)
        self._allocations += 1
        allocation = allocation or f"{tier}-{self._allocations}"
        added = []
        for _ in range(count):
            labels = {TIER_LABEL: str(tier), ALLOCATION_LABEL: allocation}
            node = self._add_watched(num_cpus=math.ceil(cpus), num_gpus=math.ceil(gpus), labels=labels)
            machine = TieredNode(node.node_id, node.node_ip_address, tier, allocation)
            self._nodes[machine.node_id], self._machines[machine.node_id] = node, machine
            added.append(machine)
        return added

    def tiered_nodes(self) -> list[TieredNode]:
        """The machines that were added and neither removed nor killed, in that order."""
        return list(self._machines.values())

    def remove(self, node_id: str) -> None:
        """Stop one machine as its owner would: the raylet says good-bye. Raises KeyError: no such machine."""
        node = self._nodes.pop(node_id)
        del self._machines[node_id]
        left = _tree(_raylet(node))
        self._cluster.remove_node(node, allow_graceful=True)
        kill(left)

    def kill(self, node_id: str) -> None:
        """Kill one machine as a whole: its raylet and all processes on it. Raises KeyError: no such machine.

        An actor outlives its killed raylet by more than a minute, so the processes are collected first.
        """
        node = self._nodes.pop(node_id)
        del self._machines[node_id]
        self._cluster.worker_nodes.discard(node)
        kill(_tree(_raylet(node)))
        _raylet_process(node).wait()

    def freeze(self, node_id: str) -> None:
        """Stop every process of a machine where it stands; its connections stay open. Raises KeyError."""
        _signal(_tree(_raylet(self._nodes[node_id])), signal.SIGSTOP)

    def thaw(self, node_id: str) -> None:
        """Let a frozen machine go on. One that was killed or removed meanwhile is left alone."""
        if node_id in self._nodes:
            _signal(_tree(_raylet(self._nodes[node_id])), signal.SIGCONT)

    @property
    def has_lost_head(self) -> bool:
        """True when Ray's own processes of the head have ended: what asks them would wait for a minute."""
        from ray._private import ray_constants as names

        processes = self._cluster.head_node.all_processes
        kinds = (names.PROCESS_TYPE_GCS_SERVER, names.PROCESS_TYPE_RAYLET)
        return any(info.process.poll() is not None for kind in kinds for info in processes.get(kind, ()))

    def processes(self) -> list[psutil.Process]:
        """Every live process of this cluster, this one not included."""
        return processes_of(self._folder) if self._folder else []

    def shutdown(self) -> None:
        """Disconnect, end every process and remove every file of the cluster; a second time does nothing."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        atexit.unregister(self.shutdown)
        with _undisturbed():
            import ray

            ray.shutdown()
            own = [child for child in psutil.Process().children() if is_of(child, folder)]
            kill([process for child in own for process in _tree(child)])
            if self._liveness is not None:
                self._liveness.__exit__(None, None, None)
                self._liveness = None
            kill(processes_of(folder))  # workers of raylets that died on their own have another parent by now
            self._nodes.clear()
            self._machines.clear()
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
        self._add_node(num_cpus=0, include_dashboard=False, _system_config=HEALTH_CHECK)
        handler = signal.getsignal(signal.SIGTERM)
        with self._rays_own_folder():
            connect(self._cluster.address, runtime_env=self._runtime_env, namespace=self._namespace)
        self._catch_sigterm(handler)

    def _add_watched(self, **arguments: Any) -> Any:
        """A node, with a watchdog of its own where one is wanted."""
        if self._orphan_after_s is None:
            return self._add_node(**arguments)
        assert self._folder is not None
        if self._liveness is None:
            self._liveness = watchdog.LivenessEndpoint().__enter__()
        mark = f"{self._folder.name}-{secrets.token_hex(4)}"
        marks = watchdog.marked(mark)
        before = {name: os.environ.get(name) for name in marks}
        _put_environment(marks)
        try:
            node = self._add_node(**arguments)
        finally:
            _put_environment(before)
        heads = (self.address, self._liveness.address)
        log = self._folder / "watchdog.log"
        watchdog.start(mark, _raylet_process(node).pid, heads, self._orphan_after_s, log)
        return node

    def _add_node(self, **arguments: Any) -> Any:
        handler = signal.getsignal(signal.SIGTERM)
        # Ray's own hooks are signal handlers, which only the main thread may set; `shutdown` does without them.
        self._cluster._shutdown_at_exit = threading.current_thread() is threading.main_thread()
        with self._rays_own_folder(), _quiet_ray(), only_here(), _sessions_of_their_own():
            node = self._cluster.add_node(
                object_store_memory=OBJECT_STORE_BYTES, dashboard_agent_listen_port=0, **arguments
            )
        self._catch_sigterm(handler)  # each node puts one of its own there, which drains for up to 30 s
        return node

    @contextlib.contextmanager
    def _rays_own_folder(self) -> Iterator[None]:
        """Sessions, sockets and the file with the current address go to our folder, not to /tmp/ray."""
        before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED")}
        os.environ["RAY_TMPDIR"] = str(self._folder)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            yield
        finally:
            _put_environment(before)

    def _set_environment(self, changes: Mapping[str, str | None]) -> None:
        self._environment_before = {name: os.environ.get(name) for name in changes}
        _put_environment(changes)

    def _restore_environment(self) -> None:
        _put_environment(self._environment_before)
        if self._sigterm_before is not None:
            signal.signal(signal.SIGTERM, self._sigterm_before)
            self._sigterm_before = None
        if os.environ.get("RAY_AUTH_MODE") != "token":
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")

    def _catch_sigterm(self, handler: Any) -> None:
        """SIGTERM does what `handler` does; without one it ends this process as an exception does: `shutdown` runs."""
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if self._sigterm_before is None:
            self._sigterm_before = before if before is not None else signal.SIG_DFL
        signal.signal(signal.SIGTERM, handler if callable(handler) else _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _put_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _raylet_process(node: Any) -> Any:
    from ray._private import ray_constants

    return node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process


def _raylet(node: Any) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(_raylet_process(node).pid)
    return None


def _tree(root: psutil.Process | None) -> list[psutil.Process]:
    """`root` and everything below it, root first."""
    if root is None:
        return []
    with contextlib.suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Cleaning up is short; a second Ctrl-C must not leave half of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _sessions_of_their_own() -> Iterator[None]:
    """SIGTERM to our whole process group, as `timeout` and supervisors send it, must reach us alone: without Ray's
    processes a run cannot end well."""
    from ray._private import services

    before = services.ConsolePopen
    services.ConsolePopen = functools.partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextlib.contextmanager
def only_here() -> Iterator[None]:
    """Ctrl-C reaches children as well: one that is just being forked must not print a traceback of its own."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield
        return
    me = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _quiet_ray() -> Iterator[None]:
    """Ray greets every node on its logger."""
    import logging

    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
