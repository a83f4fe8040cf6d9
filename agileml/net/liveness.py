"""Liveness of peers: heartbeats that libzmq's own threads send and answer, without the GIL.

A second connection to each peer carries nothing but ZMTP heartbeats (PING and PONG,
https://rfc.zeromq.org/spec/37). On the data connection a heartbeat would wait behind frames of several MB, longer than
its timeout on a slow shared link, and would get no answer at all while the receiver's queue is full.

A process that was frozen finds its heartbeats overdue when it wakes, and reports its peers lost and soon after
connected: code that judges by these events must first make sure that its own process was awake.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from agileml.events.terms import Loss

CONNECT_TIMEOUT_MS = 3000  # of one attempt; attempts go on
RECONNECT_MS = 50
RECONNECT_MAX_MS = 1000
HANDSHAKE_MS = 10_000

_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)
REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


@dataclasses.dataclass(frozen=True)
class HeartbeatTimes:
    """How often a transport pings its peers, and how long a peer may stay silent.

    A dead process is detected when its connections close, a frozen or cut-off one within timeout_s + interval_s.
    unreachable_s: how long the first connection to a peer may take before the peer counts as lost. Raises ValueError.
    """

    interval_s: float = 0.2
    timeout_s: float = 1.0
    unreachable_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0.001 <= self.interval_s <= self.timeout_s <= 60 or self.unreachable_s <= 0:
            raise ValueError(
                f"{self}: expected is 0.001 <= interval_s <= timeout_s <= 60 and unreachable_s > 0"
            )


class Monitor:
    """Reads the events of one socket's connections: (event, endpoint). Poll `socket`."""

    def __init__(self, context: Any, watched: Any, events: int) -> None:
        endpoint = f"inproc://monitor-{id(watched)}"
        self._watched = watched
        watched.monitor(endpoint, events)
        self.socket = context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.connect(endpoint)

    def events(self) -> Iterator[tuple[int, str]]:
        """Yield the events since the last call."""
        while True:
            try:
                event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            yield int(event["event"]), event["endpoint"].decode()

    def close(self) -> None:
        """Stop watching the socket."""
        self._watched.disable_monitor()
        self.socket.close(0)


class PeerHeartbeats:
    """Heartbeats to any number of peers over one socket; libzmq names the endpoint in each of its events.

    prepare: sets the security of the socket before it connects.
    """

    def __init__(self, context: Any, prepare: Callable[[Any], None], heartbeat: HeartbeatTimes) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 0
        prepare(self._socket)
        set_reconnects(self._socket)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, round(heartbeat.interval_s * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(heartbeat.timeout_s * 1000))
        # Lets the other end forget a connection that is cut off; libzmq counts it in tenths of a second.
        self._socket.setsockopt(zmq.HEARTBEAT_TTL, max(100, round(heartbeat.timeout_s * 1000)))
        self._monitor = Monitor(context, self._socket, _WATCHED)
        self._alive: dict[str, bool] = {}

    @property
    def socket(self) -> Any:
        """The socket to poll: when it is readable, call `changes`."""
        return self._monitor.socket

    def connect(self, endpoint: str) -> None:
        """Start pinging this endpoint."""
        self._socket.connect(endpoint)
        self._alive[endpoint] = False

    def disconnect(self, endpoint: str) -> None:
        """Stop pinging this endpoint."""
        del self._alive[endpoint]
        self._socket.disconnect(endpoint)

    def changes(self) -> Iterator[tuple[str, Loss | None]]:
        """Yield changes: (endpoint, None) for a peer that answers, (endpoint, reason) for a lost one."""
        for event, endpoint in self._monitor.events():
            alive = self._alive.get(endpoint)
            if alive is None:
                continue  # disconnected meanwhile
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._alive[endpoint] = True
                yield endpoint, None
            elif event == zmq.EVENT_DISCONNECTED:
                if alive:
                    self._alive[endpoint] = False
                    yield endpoint, Loss.DISCONNECTED
            else:
                yield endpoint, Loss.REFUSED

    def close(self) -> None:
        """Stop all pings."""
        self._monitor.close()
        self._socket.close(0)


def set_reconnects(socket: Any) -> None:
    """Set how fast a socket connects and reconnects."""
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
