"""A Ray cluster that exists already: whether we can reach it, its nodes, and which of them are being drained.

`ray.init` takes 20 s to give up and never says whether the address or the token was wrong. So `reach` looks first,
within 3 s, with the one request that every GCS answers.

Ray's public API does not show drains; only `draining` asks the private one.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agileml.cluster.dashboard import gcs_behind, is_http
from agileml.cluster.errors import ClusterError
from agileml.cluster.processes import cluster_here, clusters_of_raylets
from agileml.cluster.ray_startup import held_sigterm, sigterm_blocked
from agileml.cluster.tokens import HOW_TO_NAME_IT, channel, find_token, no_token, use_tokens, uses_tls
from agileml.cluster.wanted import NodeOffer
from agileml.errors import HeadLostError
from agileml.events.terms import Tier

REACH_TIMEOUT_S = 3.0
ANSWER_S = 3.0  # to wait for an answer of Ray, until we ask whether its head lives
RAYS_LIMIT = "RAY_gcs_rpc_server_reconnect_timeout_s"  # of Ray's own wait for a GCS; 60 s where it is not set
UNWATCHED_S = 3 * ANSWER_S  # between two looks, if the GCS may have answered meanwhile
BEFORE_RAY_S = 20.0  # that we give up before Ray ends the process
TIER_LABEL, ALLOCATION_LABEL, MARKET_LABEL = "tier", "allocation", "ray.io/market-type"
HEAD_RESOURCE = "node:__internal_head__"
MARKETS = {"spot": Tier.TRANSIENT, "on-demand": Tier.RELIABLE}


@dataclass(frozen=True)
class TieredNode:
    """A Ray node with a tier, and its CPUs and GPUs. Nodes of one `allocation` were acquired together. `speed`: of the
    machine that a local node stands for, as a multiple of the usual."""

    node_id: str
    ip: str
    tier: Tier
    allocation: str
    cpus: float = 1.0
    speed: float = 1.0
    gpus: float = 0.0


def connect(gcs_address: str, *, namespace: str, runtime_env: Mapping[str, Any] | None = None) -> None:
    """Make this process a driver of a cluster that answers (see `reach`), with Ray's own output off."""
    import ray

    with held_sigterm():
        ray.init(
            address=gcs_address,
            namespace=namespace,
            runtime_env=dict(runtime_env) if runtime_env else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    # Ray prints four lines for every dead node, from a thread that no option stops. We report dead nodes ourselves.
    ray._private.worker.print_to_stdstream = lambda data, ignore_prefix: None


def join(gcs_address: str, *, namespace: str, runtime_env: Mapping[str, Any] | None = None) -> None:
    """As `connect`, of a cluster that others run. Raises ClusterError where Ray does not take this process, or the code
    that travels with it, such as a package that holds its data too."""
    import ray

    try:
        connect(gcs_address, namespace=namespace, runtime_env=runtime_env)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        why = " ".join(str(error).split())[:400] or type(error).__name__
        raise ClusterError(
            f"address: this process cannot join the cluster at {gcs_address} ({why})"
        ) from error


def gcs_client(gcs_address: str) -> Any:
    """Ray's client of a cluster's GCS. Its threads never take SIGTERM (`held_sigterm`)."""
    import ray

    with sigterm_blocked():
        return ray._raylet.GcsClient(address=gcs_address)


@contextmanager
def answering(gcs_address: str) -> Iterator[None]:
    """Raise ClusterError where a GCS, which was there a moment ago, does not answer a question in time."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        why = " ".join(str(error).split())[:200]
        raise ClusterError(
            f"address: the head of the cluster at {gcs_address} does not answer ({why})"
        ) from None


def live_nodes(timeout_s: float) -> frozenset[str] | None:
    """The ids of the live nodes of the cluster that this process is connected to; None: its GCS does not answer.

    `ray.nodes()` waits for a GCS that is gone for a minute, and then Ray ends the process.
    """
    import ray
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    try:
        found = ray._private.worker.global_worker.gcs_client.get_all_node_info(timeout=timeout_s)
    except ray.exceptions.RpcError:
        return None
    alive = GcsNodeInfo.GcsNodeState.ALIVE
    return frozenset(node_id.hex() for node_id, node in found.items() if node.state == alive)


def gcs_limit_s() -> float:
    """Seconds that we wait for a GCS that does not answer: Ray would end the process, without a word of ours."""
    return max(ANSWER_S, float(os.environ.get(RAYS_LIMIT, 60)) - BEFORE_RAY_S)


class GcsWatch:
    """Asks a GCS for the nodes that live, and knows since when it has not answered."""

    def __init__(
        self,
        live_nodes: Callable[[float], frozenset[str] | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """live_nodes: as the function of this name."""
        self._live_nodes = live_nodes
        self._clock_s = clock_s
        self._limit_s = gcs_limit_s()
        self._silent_since_s: float | None = None
        self._looked_s = 0.0  # when it last did not answer

    def live_nodes(self) -> frozenset[str] | None:
        """Their ids; None: it does not answer. Raises HeadLostError when it has not answered for `gcs_limit_s`.

        Of a time in which nobody asked nothing is known, so silence counts from the next look.
        """
        asked_s = self._clock_s()
        if (alive := self._live_nodes(ANSWER_S)) is not None:
            self._silent_since_s = None
            return alive
        if self._silent_since_s is None or asked_s - self._looked_s > UNWATCHED_S:
            self._silent_since_s = asked_s
        self._looked_s = self._clock_s()
        if self._looked_s - self._silent_since_s >= self._limit_s:
            raise HeadLostError(
                f"Ray's head has not answered for {self._limit_s:.0f} s, and the run ends; start it again once it is "
                "back, with --resume if there are checkpoints"
            )
        return None


def tiered_nodes() -> list[TieredNode]:
    """The live nodes with a tier of the cluster that this process is connected to, in the order of their ids.

    The tier comes from the label `tier` (reliable, transient) or Ray's own `ray.io/market-type` (spot, on-demand). The
    head has none: it runs the controller.
    """
    import ray

    return sorted(
        (m for node in ray.nodes() if node["Alive"] and (m := as_tiered_node(node)) is not None),
        key=lambda node: node.node_id,
    )


def most_gpus() -> float | None:
    """The most GPUs that a live node with a tier has; None while there is no such node."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and as_tiered_node(node) is not None]
    return max((node["Resources"].get("GPU", 0.0) for node in nodes), default=None)


def offers() -> list[NodeOffer]:
    """The live nodes of the cluster that this process is connected to, without its head."""
    import ray

    found = []
    for node in ray.nodes():
        resources = node.get("Resources", {})
        if node["Alive"] and HEAD_RESOURCE not in resources:
            tiered = as_tiered_node(node)
            tier = None if tiered is None else tiered.tier
            found.append(NodeOffer(tier, resources.get("CPU", 0.0), resources.get("GPU", 0.0)))
    return found


def as_tiered_node(node: Mapping[str, Any]) -> TieredNode | None:
    """The node that an entry of `ray.nodes()` describes; None for the head and for nodes without a tier."""
    labels = node.get("Labels") or {}
    if HEAD_RESOURCE in node.get("Resources", {}):
        return None
    named, market = labels.get(TIER_LABEL), labels.get(MARKET_LABEL)
    tier = Tier(named) if named in list(Tier) else MARKETS.get(market or "")
    if tier is None:
        return None
    allocation = labels.get(ALLOCATION_LABEL) or node["NodeID"]
    resources = node.get("Resources", {})
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    return TieredNode(node["NodeID"], node["NodeManagerAddress"], tier, allocation, cpus, gpus=gpus)


def draining() -> dict[str, float | None]:
    """Nodes that are being drained: id -> Unix time in s at which they leave, None where Ray does not know it."""
    import ray

    deadlines_ms: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return {node_id: at_ms / 1000 if at_ms else None for node_id, at_ms in deadlines_ms.items()}


def drain(gcs_address: str, node_id: str, deadline_unix_s: float, message: str) -> None:
    """Mark a node as preempted at `deadline_unix_s`, as `ray drain-node` does for a cloud's preemption notice.

    Raises ClusterError when the cluster refuses, or does not answer.
    """
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    with answering(gcs_address):
        client = gcs_client(gcs_address)
        accepted, why = client.drain_node(node_id, reason, message, int(deadline_unix_s * 1000))
    if not accepted:
        raise ClusterError(f"node {node_id} cannot be drained: {why}")


def reach(address: str, timeout_s: float = REACH_TIMEOUT_S) -> str:
    """The host:port of the GCS behind `address` (host:port, the dashboard's http address, or auto).

    When the cluster needs a token and accepts the user's, this process switches to token mode.

    Raises ClusterError within `timeout_s`: nothing listens, something else listens, another version of Ray or of
    Python, no token where one is needed, or a wrong token.
    """
    if is_http(address := meant(address)):
        host, port = gcs_behind(address, timeout_s / 2)
        timeout_s /= 2
    else:
        host, port = locate(address)
    check_alive(host, port, timeout_s)
    _is_a_node(host, port)
    has_our_python(f"{host}:{port}")
    return f"{host}:{port}"


def meant(address: str) -> str:
    """The address in RAY_ADDRESS, of a GCS or dashboard, for `auto` where there is one; any other address as it is."""
    named = os.environ.get("RAY_ADDRESS", "")
    return named if address == "auto" and named not in ("", "auto") else address


def locate(address: str) -> tuple[str, int]:
    """Host and port of the GCS that host:port or `auto` names, without asking it. Raises ClusterError."""
    return _host_and_port(cluster_here() if address == "auto" else address)


def check_alive(host: str, port: int, timeout_s: float) -> None:
    """Raise ClusterError within `timeout_s` unless a GCS of our version answers there and accepts us."""
    _listens(host, port, timeout_s / 3)
    _speaks(host, port, timeout_s * 2 / 3)


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://"):
        raise ClusterError(
            f"address: found {address}, which is for Ray Client, expected host:port of its GCS (by default 6379), "
            "http://host:port or auto"
        )
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ClusterError(f"address: found {address!r}, expected host:port, http://host:port or auto")
    return host.strip("[]"), int(port)


def _listens(host: str, port: int, timeout_s: float) -> None:
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except socket.gaierror:
        raise ClusterError(f"address: {host}:{port} names a host that is not known") from None
    except TimeoutError:
        raise ClusterError(
            f"address: nobody answers at {host}:{port} within {timeout_s:.0f} s, expected a Ray head node"
        ) from None
    except OSError as error:
        raise ClusterError(
            f"address: nobody listens at {host}:{port} ({error.strerror}), expected a Ray head node"
        ) from None


def _speaks(host: str, port: int, timeout_s: float) -> None:
    import grpc  # type: ignore[import-untyped]
    import ray

    code, version = _ask(host, port, None, timeout_s / 2)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        token, where = find_token()
        if token is None:
            raise no_token(f"{host}:{port}")
        code, version = _ask(host, port, token, timeout_s / 2)
        if code == grpc.StatusCode.UNAUTHENTICATED:
            raise ClusterError(
                f"address: the cluster at {host}:{port} refuses the token of {where}; {HOW_TO_NAME_IT}"
            )
        use_tokens()
    if code != grpc.StatusCode.OK:
        also = ", with a certificate of RAY_TLS_CA_CERT" if uses_tls() else ""
        raise ClusterError(
            f"address: what listens at {host}:{port} is no Ray head node, expected its GCS{also} ({code.name})"
        )
    if version and version != ray.__version__:
        raise ClusterError(
            f"address: the cluster at {host}:{port} runs Ray {version}, expected {ray.__version__} as here"
        )


def _is_a_node(host: str, port: int) -> None:
    """Raise ClusterError unless a raylet of the cluster runs here: without one `ray.init` waits in vain."""
    if not any(address.endswith(f":{port}") for address in clusters_of_raylets()):
        raise ClusterError(
            f"address: this computer is no node of the cluster at {host}:{port}; run it on the head node, "
            f"or make this computer one: ray start --address={host}:{port} --num-cpus=0"
        )


def has_our_python(gcs_address: str) -> None:
    """Raise ClusterError unless the nodes of a cluster that answers run our Python."""
    with answering(gcs_address):
        metadata = gcs_client(gcs_address).internal_kv_get(
            b"CLUSTER_METADATA", namespace=b"cluster", timeout=1.0
        )
    check_python(json.loads(metadata).get("python_version") if metadata else None, gcs_address)


def check_python(found: str | None, gcs_address: str) -> None:
    """Raise ClusterError unless Ray takes a driver of our Python: its last number counts, if no variable says no."""
    ours = platform.python_version()
    parts = 2 if os.environ.get("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") == "minor" else 3
    if found is not None and found.split(".")[:parts] != ours.split(".")[:parts]:
        raise ClusterError(
            f"address: the cluster at {gcs_address} runs Python {found}, expected {ours} as here: call proteus in the "
            "environment that its nodes were started from"
        )


def _ask(host: str, port: int, token: str | None, timeout_s: float) -> tuple[Any, str]:
    """Call CheckAlive of the GCS: (gRPC status, version of Ray)."""
    import grpc
    from ray.core.generated.gcs_service_pb2 import CheckAliveReply, CheckAliveRequest

    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Without a channel of our own gRPC would share one that is still backing off from an earlier failure.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    with channel(where, options) as opened:
        check = opened.unary_unary(
            "/ray.rpc.NodeInfoGcsService/CheckAlive",
            request_serializer=CheckAliveRequest.SerializeToString,
            response_deserializer=CheckAliveReply.FromString,
        )
        metadata = [("authorization", f"Bearer {token}")] if token else []
        try:
            reply = check(CheckAliveRequest(), timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), ""
        return grpc.StatusCode.OK, reply.ray_version
