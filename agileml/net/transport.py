"""The transport: messages with arrays between the processes of a run over ZeroMQ, and liveness of the peers.

A process has one `Transport`. It receives on one socket, bound twice: to a file in a folder that only this user can
enter, without keys, for peers on the same node IP that have the same files; and to a TCP port, with the run's key at
both ends, for all others. It opens three connections to each peer: one for large messages, one for small ones, one for
heartbeats.

One thread makes all calls; others may call `wake` only. libzmq's I/O thread moves the bytes meanwhile. Only `receive`
blocks. Delivery is at most once and in order per connection, so small messages may overtake large ones. A broken
connection loses the messages in flight, so the protocol above repeats requests that got no answer.
"""

import contextlib
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from agileml.events.terms import Loss
from agileml.net import wire
from agileml.net.events import (
    Address,
    Counters,
    Event,
    MessageReceived,
    PeerConnected,
    PeerLost,
)
from agileml.net.inbox import Inbox, Room
from agileml.net.keys import Gate, KeyPair
from agileml.net.links import WIDE, Lanes, Link, Pipe, connection_ids
from agileml.net.listening import (
    MOST_TRIES,
    TransportError,
    files_around,
    listen,
    private_socket_path,
)
from agileml.net.liveness import HeartbeatTimes, Monitor, PeerHeartbeats, set_reconnects
from agileml.net.tally import Tally

MAX_EVENTS = 256  # that one `receive` returns
MAX_PEERS = 4096
QUEUE_BYTES = 1 << 30


class Transport:
    """Sends to and receives from the other processes of a run.

    name: of this process, unique in the run. node_ip: its node's address as the cluster knows it; peers of the same
    node_ip and files talk over `ipc_folder`. keys: of the run; needed unless `curve` is False, which leaves TCP open to
    any host.
    queue_bytes: how much may wait for one peer beyond `pipe`, in which messages keep their order. remote_pipe: of peers
    with another node_ip, if it is another one.

    Raises TransportError when the folder is not private or too long, or the address cannot be bound.
    """

    def __init__(
        self,
        name: str,
        *,
        node_ip: str,
        ipc_folder: Path,
        keys: KeyPair | None,
        curve: bool = True,
        heartbeat: HeartbeatTimes | None = None,
        io_threads: int = 1,
        queue_bytes: int = QUEUE_BYTES,
        pipe: Pipe = WIDE,
        remote_pipe: Pipe | None = None,
    ) -> None:
        if curve and keys is None:
            raise TransportError(
                f"transport {name!r} needs the run's keys: give them, or curve=False for a trusted network"
            )
        _check_name(name)
        self._name = name
        self._keys = keys if curve else None
        self._heartbeat = heartbeat or HeartbeatTimes()
        self._queue_bytes = queue_bytes
        self._pipe, self._remote_pipe = pipe, remote_pipe or pipe
        self._ipc_path = private_socket_path(ipc_folder)
        self._incarnation = secrets.randbits(64)
        self._connection_ids = connection_ids()
        self._tally = Tally()
        self._inbox = Inbox(self._incarnation, self._tally)
        self._peers: dict[str, Address] = {}
        self._links: dict[str, Lanes] = {}
        self._lost: set[str] = set()
        self._connect_until: dict[str, float] = {}
        self._names: dict[str, str] = {}  # of endpoints
        self._heartbeats: dict[bool, PeerHeartbeats] = {}  # over ipc, over tcp
        self._pending: list[Event] = []
        self._readers: dict[Any, Callable[[], None]] = {}
        self._writers: dict[Any, Link] = {}
        self._poll_items: list[tuple[Any, int]] = []
        self._wake_lock = threading.Lock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._context = zmq.Context(io_threads)
        self._context.set(zmq.MAX_SOCKETS, 2 * MAX_PEERS + 64)
        self._context.setsockopt(zmq.IPV6, ":" in node_ip)  # of the sockets made from here on
        try:
            self._address = self._open(node_ip)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"transport {name!r} cannot listen on {node_ip}: {error}") from error

    @property
    def address(self) -> Address:
        """The address that peers connect to."""
        return self._address

    @property
    def counters(self) -> Counters:
        """Counts since the transport was opened."""
        return self._tally.counters()

    @property
    def refused_handshakes(self) -> int:
        """Of `counters`, which costs more the more peers there were."""
        return self._tally.refused_handshakes

    def connect(self, address: Address) -> None:
        """Start connecting to a peer; a new address for a known name replaces the old one.

        `receive` reports PeerConnected, or PeerLost when it takes too long; attempts go on until `disconnect`.
        Raises TransportError for an address that no peer can have.
        """
        if self._peers.get(address.name) == address:
            return
        _check_name(address.name)
        self.disconnect(address.name)
        local = self._address.sees_files_of(address)
        endpoint = address.ipc if local else address.tcp
        if not endpoint.startswith("ipc://" if local else "tcp://"):
            raise TransportError(f"peer {address.name!r} has no usable endpoint: {endpoint!r}")
        if endpoint in self._names:  # a new process took over a dead one's port
            gone = self._names[endpoint]
            self.disconnect(gone)
            self._pending.append(PeerLost(gone, Loss.DISCONNECTED))
        try:
            self._heartbeats_over(local).connect(endpoint)
        except zmq.ZMQError as error:
            raise TransportError(f"peer {address.name!r} cannot be reached at {endpoint}: {error}") from error
        self._links[address.name] = Lanes(
            self._link(address, endpoint, local), self._link(address, endpoint, local, express=True)
        )
        self._names[endpoint] = address.name
        self._peers[address.name] = address
        self._connect_until[address.name] = time.monotonic() + self._heartbeat.unreachable_s

    def disconnect(self, name: str) -> None:
        """Forget a peer and drop its queue. The connection from the peer to this process stays."""
        self._pending = [
            event for event in self._pending if isinstance(event, MessageReceived) or event.name != name
        ]
        address = self._peers.pop(name, None)
        if address is None:
            return
        local = self._address.sees_files_of(address)
        endpoint = address.ipc if local else address.tcp
        del self._names[endpoint]
        self._heartbeats_over(local).disconnect(endpoint)
        self._drop(name)
        del self._links[name]
        self._lost.discard(name)
        self._connect_until.pop(name, None)

    def forget(self, name: str) -> None:
        """As `disconnect`, for a peer that never comes back under this name: its counts go too."""
        self.disconnect(name)
        self._inbox.leave(name)
        self._tally.leave(name)

    def send(self, name: str, header: bytes, arrays: Sequence[np.ndarray] = (), *, urgency: int = 0) -> bool:
        """Queue a message for a peer, whole or not at all. Never blocks.

        urgency: of large messages that wait for one peer, those with the least number go first.
        Arrays must be C-contiguous and must not change any more: large ones are sent without a copy.
        Returns False, and counts it, when the peer is unknown or lost or its queue is full. Raises ValueError for a
        message beyond the limits of `wire`.
        """
        lanes = self._links.get(name)
        if lanes is None:
            self._tally.dropped_unknown += 1
            return False
        link = lanes.of(arrays)
        if name in self._lost or not link.send(header, arrays, urgency):
            self._tally.dropped(name, 1)
            return False
        self._tally.sent(name, len(header), arrays)
        if link.waits and link.socket not in self._writers:
            self._writers[link.socket] = link
            self._poll_items.append((link.socket, zmq.POLLOUT))
        return True

    def receive(self, timeout_s: float | None = None) -> list[Event]:
        """Return events, in order per peer; wait for them up to timeout_s (None: for ever), or until `wake`.

        At most a few hundred events and some tens of MB at once; an empty list means a timeout or a call of `wake`.
        This call also assembles large arrays, moves queued messages on and admits new peers: call it all the time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        woken = False
        while True:
            self._report_unreachable()
            ready = zmq.zmq_poll(self._poll_items, 0 if self._pending else self._poll_ms(deadline))
            for item, _ in ready:
                if item == self._wake_fd:
                    woken = True
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake_fd)
                elif item in self._readers:
                    self._readers[item]()
                elif item in self._writers:
                    self._pump(item)
            if self._pending or woken or (deadline is not None and time.monotonic() >= deadline):
                events, self._pending = self._pending, []
                return events

    def place_arrays(self, room: Room) -> None:
        """Ask `room(header, number, size)` for the buffer of each array that travels in parts.

        It returns `size` bytes of memory (uint8, one dimension) that nothing reads before the message has arrived or
        `keep_off` was called; None: the transport allocates a buffer.
        """
        self._inbox.room = room

    def keep_off(self) -> None:
        """Stop writing into buffers of `place_arrays`; incomplete messages move to buffers of their own."""
        self._inbox.keep_off()

    def sending(self) -> set[str]:
        """Peers from which parts of a large message arrived since the last call: slow, but alive."""
        found, self._inbox.sending = self._inbox.sending, set()
        return found

    def wake(self) -> None:
        """Make a `receive` that waits, or the next one, return at once. Any thread may call this."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Close all connections at once, drop unsent messages and remove all files. A second call does nothing."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_fd)
        for name in self._links:
            self._drop(name)
        for heartbeats in self._heartbeats.values():
            heartbeats.close()
        self._context.destroy(0)
        self._ipc_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other processes use the folder
            self._ipc_path.parent.rmdir()

    def __enter__(self) -> "Transport":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Opening

    def _open(self, node_ip: str) -> Address:
        self._watch(self._wake_fd, None)
        if self._keys is not None:
            gate = Gate(self._context, self._keys)
            self._watch(gate.socket, gate.answer)
        pull, monitor, tcp = self._listen(node_ip)
        self._watch(pull, lambda: self._inbox.drain(pull, self._pending, MAX_EVENTS))
        self._watch(monitor.socket, lambda: self._tally.refused(sum(1 for _ in monitor.events())))
        files = files_around(self._ipc_path.parent)
        return Address(self._name, node_ip, tcp, f"ipc://{self._ipc_path}", self._incarnation, files)

    def _listen(self, node_ip: str) -> tuple[Any, Monitor, str]:
        """As `listen`. Another process of the run may close just now, and remove the folder as the last one in it."""
        for left in reversed(range(MOST_TRIES)):
            try:
                return listen(self._context, node_ip, self._ipc_path, self._keys)
            except zmq.ZMQError as error:
                if error.errno != errno.ENOENT or not left:
                    raise
                self._ipc_path = private_socket_path(self._ipc_path.parent)
        raise AssertionError

    def _watch(self, item: Any, read: Callable[[], None] | None) -> None:
        if read is not None:
            self._readers[item] = read
        self._poll_items.append((item, zmq.POLLIN))

    def _link(self, address: Address, endpoint: str, local: bool, *, express: bool = False) -> Link:
        pipe = self._pipe if local or express else self._remote_pipe
        return Link(
            self._name, address.incarnation, lambda: self._push_socket(endpoint, local, pipe), self._connection_ids,
            pipe.frame_bytes, self._queue_bytes, express=express,
        )  # fmt: skip

    def _push_socket(self, endpoint: str, local: bool, pipe: Pipe) -> Any:
        socket = self._context.socket(zmq.PUSH)
        socket.linger = 0
        pipe.apply(socket)
        set_reconnects(socket)
        self._secure(socket, local)
        socket.connect(endpoint)
        return socket

    def _secure(self, socket: Any, local: bool) -> None:
        if self._keys is not None and not local:
            self._keys.use(socket)

    def _heartbeats_over(self, local: bool) -> PeerHeartbeats:
        heartbeats = self._heartbeats.get(local)
        if heartbeats is None:
            heartbeats = PeerHeartbeats(
                self._context, lambda socket: self._secure(socket, local), self._heartbeat
            )
            self._heartbeats[local] = heartbeats
            self._watch(heartbeats.socket, lambda: self._take_changes(heartbeats))
        return heartbeats

    # Events

    def _take_changes(self, heartbeats: PeerHeartbeats) -> None:
        for endpoint, reason in heartbeats.changes():
            name = self._names[endpoint]
            if reason is not None:
                self._lose(name, reason)
                continue
            self._connect_until.pop(name, None)
            self._lost.discard(name)
            for link in self._links[name]:
                link.open()
            self._pending.append(PeerConnected(name))

    def _lose(self, name: str, reason: Loss) -> None:
        if name in self._lost:
            return
        self._lost.add(name)
        self._connect_until.pop(name, None)
        self._inbox.forget(name)
        if reason is Loss.DISCONNECTED:
            self._drop(name)
        self._pending.append(PeerLost(name, reason))

    def _drop(self, name: str) -> None:
        for link in self._links[name]:
            self._reset(name, link)

    def _reset(self, name: str, link: Link) -> None:
        self._stop_writing(link)
        self._tally.dropped(name, link.reset())

    def _report_unreachable(self) -> None:
        if self._connect_until:
            now = time.monotonic()
            for name in [name for name, until in self._connect_until.items() if until <= now]:
                self._lose(name, Loss.UNREACHABLE)

    def _pump(self, socket: Any) -> None:
        link = self._writers[socket]
        link.pump()
        if not link.waits:
            self._stop_writing(link)

    def _stop_writing(self, link: Link) -> None:
        if self._writers.pop(link.socket, None) is not None:
            self._poll_items = [item for item in self._poll_items if item[0] is not link.socket]

    def _poll_ms(self, deadline: float | None) -> int:
        until = min(self._connect_until.values(), default=None)
        if until is None or (deadline is not None and deadline < until):
            until = deadline
        if until is None:
            return -1
        left_s = until - time.monotonic()
        return max(0, int(left_s * 1000 + 0.999))


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= wire.MAX_NAME_BYTES:
        raise TransportError(
            f"a process name has 1 to {wire.MAX_NAME_BYTES} bytes, this one {len(name.encode())}: {name!r}"
        )
