"""Between node IPs only holders of the run's key pair talk to each other; others are refused, and counted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from agileml.events.terms import Loss
from agileml.net import wire
from agileml.net.events import MessageReceived, PeerConnected, PeerLost
from agileml.net.keys import KeyPair
from agileml.net.transport import Transport
from tests.agileml.net.transport_rig import ELSEWHERE, HERE, gather, of_kind

KEYS = KeyPair.generate()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Transport]:
    with Transport("server", node_ip=HERE, ipc_folder=tmp_path / "s", keys=KEYS) as transport:
        yield transport


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    context.linger = 0
    yield context
    context.destroy(0)


def knock(context: Any, server: Transport, public: bytes | None, own: KeyPair | None) -> Any:
    """Send a well-formed message as a client that takes `public` for the server's key and has keys of its own."""
    socket = context.socket(zmq.PUSH)
    if public is not None and own is not None:
        socket.curve_serverkey = public
        socket.curve_publickey = own.public
        socket.curve_secretkey = own.secret
    socket.connect(server.address.tcp)
    origin = wire.Origin(b"client", server.address.incarnation, 1)
    (frames,) = wire.cut(origin, 1, b"let me in", [], wire.FRAME_BYTES)
    socket.send_multipart(frames)
    return socket


def test_the_right_key_is_admitted(server: Transport, context: Any) -> None:
    client = knock(context, server, KEYS.public, KEYS)
    (event,) = gather(server, of_kind(MessageReceived))
    assert isinstance(event, MessageReceived) and (event.sender, event.header) == ("client", b"let me in")
    assert server.counters.refused_handshakes == 0
    client.close()


@pytest.mark.parametrize("stranger", ["no key", "a key of its own", "a wrong server key", "wrong both"])
def test_strangers_are_refused_and_counted(server: Transport, context: Any, stranger: str) -> None:
    foreign = KeyPair.generate()
    match stranger:
        case "no key":
            client = knock(context, server, None, None)
        case "a key of its own":
            client = knock(context, server, KEYS.public, foreign)
        case "a wrong server key":
            client = knock(context, server, foreign.public, KEYS)
        case "wrong both":
            client = knock(context, server, foreign.public, foreign)
    events = gather(server, lambda _: server.counters.refused_handshakes >= 1)
    friend = knock(context, server, KEYS.public, KEYS)  # and only this one comes through
    events += gather(server, of_kind(MessageReceived))
    assert len(events) == 1 and server.counters.peers.keys() == {"client"}
    client.close()
    friend.close()


def test_two_runs_refuse_each_other(server: Transport, tmp_path: Path) -> None:
    with Transport("other", node_ip=ELSEWHERE, ipc_folder=tmp_path / "o", keys=KeyPair.generate()) as other:
        other.connect(server.address)
        other.send("server", b"hello")
        gather(server, lambda _: server.counters.refused_handshakes >= 1, other)
        with Transport(
            "plain", node_ip=ELSEWHERE, ipc_folder=tmp_path / "p", keys=None, curve=False
        ) as plain:
            plain.connect(server.address)
            events = gather(plain, of_kind(PeerLost), server)
        assert events == [PeerLost("server", Loss.REFUSED)]
    assert server.counters.peers == {}


def test_without_its_gate_a_server_lets_nobody_in(context: Any) -> None:
    """libzmq's default is the opposite: no one to ask, everyone may enter."""
    server = context.socket(zmq.PULL)
    KEYS.serve(server)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    monitor = server.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    client = context.socket(zmq.PUSH)
    KEYS.use(client)
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send(b"hello")
    assert monitor.poll(60_000)
    assert int.from_bytes(monitor.recv_multipart()[0][:2], "little") == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    assert not server.poll(0)
    server.disable_monitor()


def test_peers_of_one_node_need_no_keys_and_use_none(server: Transport, tmp_path: Path) -> None:
    with Transport("local", node_ip=HERE, ipc_folder=tmp_path / "l", keys=None, curve=False) as local:
        local.connect(server.address)
        assert gather(local, of_kind(PeerConnected), server) == [PeerConnected("server")]
        local.send("server", b"hello")
        assert isinstance(gather(server, of_kind(MessageReceived), local)[0], MessageReceived)


def test_the_text_of_a_key_pair_hides_the_secret() -> None:
    for text in (repr(KEYS), str(KEYS), f"{KEYS}", repr([KEYS])):
        assert KEYS.public.decode() in text and KEYS.secret.decode() not in text


@pytest.mark.parametrize(
    "secret",
    [KeyPair.generate().secret, b"short", b"", "text"],
    ids=["of another", "short", "empty", "text"],
)
def test_halves_that_do_not_belong_together_are_refused(secret: Any) -> None:
    with pytest.raises(ValueError, match="do not belong together") as refused:
        KeyPair(KEYS.public, secret)
    assert not secret or str(secret) not in str(refused.value)
