"""A dead, frozen or cut-off peer is found in time; a busy one is not taken for dead."""

import contextlib
import dataclasses
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agileml.events.terms import Loss
from agileml.net.events import Address, Event, MessageReceived, PeerConnected, PeerLost
from agileml.net.keys import KeyPair
from agileml.net.links import Pipe
from agileml.net.liveness import HeartbeatTimes
from agileml.net.transport import Transport
from tests.agileml.net.transport_rig import ELSEWHERE, HERE, gather, of_kind, peer_process

KEYS = KeyPair.generate()
NODES = pytest.mark.parametrize("node_ip", [HERE, ELSEWHERE], ids=["ipc", "curve"])
CONNECTED, LOST = PeerConnected("b"), PeerLost("b", Loss.DISCONNECTED)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t") / "ipc"


def until(transport: Transport, newest: Event, *others: Transport, within_s: float = 60.0) -> None:
    """Receive until this is the newest event: a busy host may lose and find a peer once more before it."""
    gather(transport, lambda events: events[-1:] == [newest], *others, within_s=within_s)


def send_until(sender: Transport, receiver: Transport, header: bytes) -> MessageReceived:
    """Send to b until `receiver` gets a message: what is sent while a peer is lost is dropped."""
    got: list[MessageReceived] = []
    deadline = time.monotonic() + 600
    while not got:
        assert time.monotonic() < deadline, (sender.counters, receiver.counters)
        sender.send("b", header)
        for each in {sender, receiver}:
            events = each.receive(0.05)
            if each is receiver:
                got += [event for event in events if isinstance(event, MessageReceived)]
    return got[0]


@NODES
def test_a_frozen_peer_is_lost_by_its_heartbeat_and_a_killed_one_by_its_connections(
    folder: Path, node_ip: str
) -> None:
    slow = HeartbeatTimes(interval_s=5, timeout_s=40)
    with (
        Transport("a", node_ip=HERE, ipc_folder=folder, keys=KEYS) as a,
        Transport("slow", node_ip=HERE, ipc_folder=folder, keys=KEYS, heartbeat=slow) as late,
        peer_process("b", node_ip, folder, KEYS, a.address) as (address, process),
    ):
        a.connect(address)
        late.connect(address)
        until(a, CONNECTED)
        until(late, CONNECTED)
        os.kill(process.pid, signal.SIGSTOP)
        until(a, LOST, within_s=20)
        assert late.receive(0) == []  # its heartbeat may be silent for longer
        assert not a.send("b", b"while it is lost")
        os.kill(process.pid, signal.SIGCONT)
        until(a, CONNECTED)
        assert send_until(a, a, b"again") == MessageReceived("b", b"again", ())
        process.kill()
        until(a, LOST)
        until(late, LOST, within_s=slow.timeout_s / 2)  # by no heartbeat


@NODES
def test_a_peer_that_holds_its_gil_is_alive_even_with_a_full_queue(folder: Path, node_ip: str) -> None:
    quick = HeartbeatTimes(0.5, 2.0)
    with (
        Transport("a", node_ip=HERE, ipc_folder=folder, keys=KEYS, heartbeat=quick) as a,
        peer_process("b", node_ip, folder, KEYS, a.address) as (address, _),
    ):
        a.connect(address)
        began = time.monotonic()
        a.send("b", b"hold 3")
        gather(a, of_kind(MessageReceived))  # b"holding"
        block = np.zeros(4 << 20, np.uint8)
        for _ in range(20):  # more than libzmq's queues of both ends take while nobody reads
            assert a.send("b", b"data", [block])
        events = gather(a, of_kind(MessageReceived))
        assert time.monotonic() - began >= 3
        assert next(event.header for event in events if isinstance(event, MessageReceived)) == b"held"
        assert not any(isinstance(event, PeerLost) for event in events)


class Relay:
    """A TCP relay in front of a peer, which can fall silent (a cut cable) or break its connections."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server((ELSEWHERE, 0))
        self.endpoint = f"tcp://{ELSEWHERE}:{self._listener.getsockname()[1]}"
        self.silent = threading.Event()
        self._wanted_break = 0  # bytes after which to break, 0: never
        self._stop, self._stopped = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def break_after(self, count: int) -> None:
        self._wanted_break = count

    def close(self) -> None:
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        other: dict[socket.socket, socket.socket] = {}
        while True:
            readable, _, _ = select.select([self._listener, self._stopped, *other], [], [], 0.02)
            if self._stopped in readable:
                break
            if self.silent.is_set():
                continue
            for end in readable:
                if end is self._listener:
                    near, _ = self._listener.accept()
                    far = socket.create_connection(self._target)
                    other[near], other[far] = far, near
                elif end in other:
                    try:
                        data = end.recv(1 << 16)
                    except ConnectionResetError:  # its owner connects anew
                        data = b""
                    if self._wanted_break:
                        self._wanted_break = max(1, self._wanted_break - len(data))
                    if not data or self._wanted_break == 1:
                        self._wanted_break = 0
                        for both in (end, other.pop(end)):
                            other.pop(both, None)
                            both.close()
                    else:
                        with contextlib.suppress(ConnectionError):  # said again when that end is read
                            other[end].sendall(data)
        for end in [*other, self._listener, self._stopped]:
            end.close()


@pytest.fixture
def relayed(folder: Path) -> Iterator[tuple[Transport, Transport, Relay, Address]]:
    """Two transports; what a sends to b goes through a relay."""
    with (
        Transport("a", node_ip=HERE, ipc_folder=folder, keys=KEYS, pipe=Pipe(frame_bytes=1 << 18)) as a,
        Transport("b", node_ip=ELSEWHERE, ipc_folder=folder, keys=KEYS) as b,
    ):
        relay = Relay(b.address.tcp)
        try:
            a.connect(dataclasses.replace(b.address, tcp=relay.endpoint))
            until(a, CONNECTED, b)
            yield a, b, relay, b.address
        finally:
            relay.close()


def test_a_cut_off_peer_is_lost_after_the_timeout_and_found_again(
    relayed: tuple[Transport, Transport, Relay, Address],
) -> None:
    a, b, relay, _ = relayed
    relay.silent.set()
    until(a, LOST, b)
    relay.silent.clear()
    until(a, CONNECTED, b)
    assert send_until(a, b, b"back") == MessageReceived("a", b"back", ())


def test_what_a_broken_connection_tore_is_dropped_whole(
    relayed: tuple[Transport, Transport, Relay, Address],
) -> None:
    """All connections break in the middle of a long message; later ones arrive, none is damaged."""
    a, b, relay, _ = relayed
    array = np.random.default_rng(1).integers(0, 256, 8 << 20, dtype=np.uint8)
    relay.break_after(2 << 20)
    a.send("b", b"0", [array])
    got: list[MessageReceived] = []
    number = 0
    deadline = time.monotonic() + 600
    while not any(one.header == b"last" for one in got):
        assert time.monotonic() < deadline, (a.counters, b.counters)
        a.receive(0.01)
        number += 1
        a.send("b", b"last" if number % 10 == 0 else b"x", [array[: 1 << 20]])
        got += [event for event in b.receive(0.01) if isinstance(event, MessageReceived)]
    assert b"0" not in [one.header for one in got]
    assert b.counters.torn >= 1
    assert all(np.array_equal(one.arrays[0], array[: 1 << 20]) for one in got)
