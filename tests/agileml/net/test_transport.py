"""Messages arrive whole and in order per lane; what cannot be sent is refused, counted; nothing stays behind."""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq

from agileml.events.terms import Loss
from agileml.net.codec import Codec
from agileml.net.events import MessageReceived, PeerConnected, PeerLost
from agileml.net.keys import KeyPair
from agileml.net.links import EXPRESS_BYTES, Pipe
from agileml.net.listening import TransportError
from agileml.net.liveness import HeartbeatTimes
from agileml.net.transport import Transport
from tests.agileml.net.transport_rig import ELSEWHERE, HERE, gather, of_kind, peer_process

KEYS = KeyPair.generate()
FRAME_BYTES = 1 << 18


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t") / "ipc"


SLOW = HeartbeatTimes(1.0, 20.0)  # a busy host is silent for a second now and then


def open_transport(name: str, folder: Path, node_ip: str = HERE, **options: object) -> Transport:
    options = {"heartbeat": SLOW, **options}
    return Transport(name, node_ip=node_ip, ipc_folder=folder, keys=KEYS, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[HERE, ELSEWHERE], ids=["ipc", "curve"])
def pair(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Transport, Transport]]:
    """Two transports of one process that are connected both ways."""
    a = open_transport("a", folder, pipe=Pipe(frame_bytes=FRAME_BYTES))
    b = open_transport("b", folder, request.param)
    with a, b:
        a.connect(b.address)
        b.connect(a.address)
        gather(a, of_kind(PeerConnected), b)
        yield a, b


def received(events: list[object]) -> list[MessageReceived]:
    return [event for event in events if isinstance(event, MessageReceived)]


def test_it_says_from_whom_parts_of_a_large_message_came(pair: tuple[Transport, Transport]) -> None:
    a, b = pair
    a.send("b", b"small")
    gather(b, lambda events: bool(received(events)), a)
    assert b.sending() == set()
    a.send("b", b"large", [np.zeros(10 * FRAME_BYTES, np.uint8)])
    gather(b, lambda events: bool(received(events)), a)
    assert b.sending() == {"a"}
    assert b.sending() == set(), "once"


@pytest.mark.parametrize("node_ip", [HERE, ELSEWHERE])
def test_arrays_of_any_size_come_back_from_another_process(folder: Path, node_ip: str) -> None:
    rng = np.random.default_rng(1)
    sizes = [0, 1, 33_000, FRAME_BYTES, FRAME_BYTES + 1, 10 * FRAME_BYTES, 20_000_003]
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    with (
        open_transport("a", folder, pipe=Pipe(frame_bytes=FRAME_BYTES)) as a,
        peer_process("b", node_ip, folder, KEYS, a.address) as (address, _),
    ):
        assert (address.node_ip == HERE) == (address.node_ip == a.address.node_ip)
        a.connect(address)
        assert a.send("b", b"all", arrays)
        for number, array in enumerate(arrays):
            assert a.send("b", b"%03d" % number, [array])
        came = received(gather(a, of_kind(MessageReceived, 1 + len(arrays))))
        got = sorted(came, key=lambda one: (one.header != b"all", one.header))
        assert [one.header for one in got] == [b"all", *(b"%03d" % number for number in range(len(arrays)))]
        for there, here in zip(
            [*got[0].arrays, *(one.arrays[0] for one in got[1:])], arrays * 2, strict=True
        ):
            assert np.array_equal(there, here)
        traffic = a.counters.peers["b"]
        assert traffic.messages_sent == traffic.messages_received == 1 + len(arrays)
        assert traffic.bytes_sent == traffic.bytes_received == 2 * sum(sizes) + 3 * (1 + len(arrays))


@dataclasses.dataclass(frozen=True)
class Push:
    clock: int
    units: tuple[int, int]
    gradient: np.ndarray
    bias: np.ndarray


def test_a_message_of_the_codec_arrives_as_it_was(pair: tuple[Transport, Transport]) -> None:
    a, b = pair
    codec = Codec([Push])
    sent = Push(3, (0, 8), np.arange(300_000, dtype=np.float32).reshape(100, 3000), np.ones(3))
    assert a.send("b", *codec.encode(sent))
    (got,) = received(gather(b, of_kind(MessageReceived), a))
    back = codec.decode(got.header, got.arrays)
    assert (got.sender, back.clock, back.units) == ("a", 3, (0, 8))
    assert np.array_equal(back.gradient, sent.gradient) and np.array_equal(back.bias, sent.bias)
    assert back.gradient.dtype == np.float32 and back.gradient.flags.aligned


def test_messages_keep_their_order(pair: tuple[Transport, Transport]) -> None:
    a, b = pair
    rng = np.random.default_rng(2)
    sizes = [int(size) for size in rng.choice([0, 10, 50_000, FRAME_BYTES + 5, 3 * FRAME_BYTES], 300)]
    for number, size in enumerate(sizes):
        assert a.send("b", str(number).encode(), [np.full(size, number % 256, np.uint8)])
    got = received(gather(b, of_kind(MessageReceived, len(sizes)), a))
    for small in (True, False):
        numbers = [number for number, size in enumerate(sizes) if (size <= EXPRESS_BYTES) is small]
        assert [int(one.header) for one in got if (one.arrays[0].nbytes <= EXPRESS_BYTES) is small] == numbers
    assert all(one.arrays[0].nbytes == sizes[int(one.header)] for one in got)
    assert all((one.arrays[0] == int(one.header) % 256).all() for one in got)


def test_what_is_small_overtakes_what_is_large(pair: tuple[Transport, Transport]) -> None:
    a, b = pair
    for _ in range(120):
        assert a.send("b", b"large", [np.zeros(8 * FRAME_BYTES, np.uint8)])
    assert a.send("b", b"small", [np.zeros(EXPRESS_BYTES, np.uint8)])
    headers = [one.header for one in received(gather(b, of_kind(MessageReceived, 121), a))]
    assert headers.index(b"small") < 115


def test_arrays_that_came_whole_are_not_copied_and_read_only(folder: Path) -> None:
    with open_transport("a", folder) as a, open_transport("b", folder) as b:
        a.connect(b.address)
        a.send("b", b"", [np.ones(10), np.ones(200_000), np.ones(2_000_000)])
        (got,) = received(gather(b, of_kind(MessageReceived), a))
        inline, frame, parts = got.arrays
        assert not inline.flags.writeable and not frame.flags.owndata
        assert parts.flags.writeable and parts.nbytes == 16_000_000


def test_a_full_queue_refuses_and_counts(folder: Path) -> None:
    with open_transport("a", folder, queue_bytes=1 << 20) as a, open_transport("b", folder) as b:
        a.connect(b.address)  # b does not receive
        block = np.zeros(1 << 20, np.uint8)
        accepted = 0
        while a.send("b", b"", [block]):
            accepted += 1
            assert accepted < 1000
        assert a.counters.peers["b"].messages_dropped == 1
        assert not a.send("b", b"still full", [block])
        assert a.send("b", b"small"), "what is small has a queue of its own"
        got = gather(b, of_kind(MessageReceived, accepted + 1), a)
        assert len(received(got)) == accepted + 1  # what was accepted comes
        assert a.send("b", b"room again", [block])
        assert received(gather(b, of_kind(MessageReceived), a))[0].header == b"room again"


def test_an_unknown_peer_is_refused_and_counted(folder: Path) -> None:
    with open_transport("a", folder) as a:
        assert not a.send("nobody", b"hello")
        assert a.counters.dropped_unknown == 1


def test_connecting_twice_is_once_and_a_new_address_replaces_the_old(folder: Path) -> None:
    with (
        open_transport("a", folder) as a,
        open_transport("b", folder) as old,
        open_transport("b", folder) as new,
    ):
        a.connect(old.address)
        a.connect(old.address)
        assert gather(a, of_kind(PeerConnected), old) == [PeerConnected("b")]
        a.connect(new.address)
        assert gather(a, of_kind(PeerConnected), new) == [PeerConnected("b")]
        a.send("b", b"hello")
        assert received(gather(new, of_kind(MessageReceived), a))[0].header == b"hello"
        a.disconnect("b")
        a.disconnect("b")
        assert not a.send("b", b"gone")
        assert old.receive(0) == []


def test_nothing_is_kept_of_a_peer_that_never_comes_back(folder: Path) -> None:
    with open_transport("a", folder) as a, open_transport("b", folder) as b:
        a.connect(b.address)
        b.connect(a.address)
        gather(b, of_kind(PeerConnected), a)
        b.send("a", b"hello")
        gather(a, of_kind(MessageReceived), b)
        assert a.counters.peers.keys() == {"b"}
        a.forget("b")
        a.forget("b")
        assert a.counters.peers == {} and not a.send("b", b"gone")


def test_a_peer_that_is_not_there_is_reported_once_and_found_when_it_comes(folder: Path) -> None:
    quick = dataclasses.replace(SLOW, unreachable_s=0.2)
    with open_transport("b", folder) as b:
        address = b.address
    with open_transport("a", folder, heartbeat=quick) as a:
        a.connect(address)
        began = time.monotonic()
        assert gather(a, of_kind(PeerLost)) == [PeerLost("b", Loss.UNREACHABLE)]
        assert time.monotonic() - began < HeartbeatTimes().unreachable_s  # its own, not the usual one
        assert not a.send("b", b"to nobody") and a.counters.peers["b"].messages_dropped == 1
        context = zmq.Context()
        late = context.socket(zmq.PULL)
        late.bind(address.ipc)
        try:
            assert gather(a, of_kind(PeerConnected)) == [PeerConnected("b")]
            assert a.send("b", b"to somebody")
        finally:
            context.destroy(0)


def test_a_peer_of_the_same_ip_with_other_files_is_reached(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Containers that share the network of their host have one IP, and each a /tmp of its own."""
    here, there = (tmp_path_factory.mktemp("tmp") for _ in range(2))
    with open_transport("a", here / "ipc") as a, open_transport("b", there / "ipc") as b:
        there.rename(there.with_name("unseen"))  # as it is for a
        a.connect(b.address)
        seen = gather(a, lambda events: bool(events), b)
        assert seen == [PeerConnected("b")]
        assert a.send("b", b"hello")
        assert received(gather(b, of_kind(MessageReceived), a))[0].header == b"hello"


def test_a_process_that_took_over_a_port_replaces_the_one_before(folder: Path) -> None:
    with open_transport("a", folder) as a, open_transport("new", folder) as new:
        a.connect(dataclasses.replace(new.address, name="old", incarnation=1))
        gather(a, of_kind(PeerConnected), new)
        a.connect(new.address)
        events = gather(a, of_kind(PeerConnected), new)
        assert events == [PeerLost("old", Loss.DISCONNECTED), PeerConnected("new")]
        assert not a.send("old", b"") and a.send("new", b"hello")
        assert received(gather(new, of_kind(MessageReceived), a))[0].header == b"hello"


def test_nothing_is_reported_of_a_peer_that_is_forgotten(folder: Path) -> None:
    """Another process took over its port in the same turn."""
    with open_transport("a", folder) as a, open_transport("new", folder) as new:
        a.connect(dataclasses.replace(new.address, name="old", incarnation=1))
        gather(a, of_kind(PeerConnected), new)
        a.connect(new.address)
        a.forget("old")
        assert gather(a, of_kind(PeerConnected), new) == [PeerConnected("new")]


def test_a_message_for_the_process_before_is_dropped(folder: Path) -> None:
    with open_transport("a", folder) as a, open_transport("b", folder) as b:
        a.connect(dataclasses.replace(b.address, incarnation=1))
        a.send("b", b"x", [np.zeros(FRAME_BYTES), np.zeros(1 << 20)])
        gather(b, lambda _: b.counters.misaddressed >= 3, a)
        a.connect(b.address)
        a.send("b", b"y")
        assert [one.header for one in received(gather(b, of_kind(MessageReceived), a))] == [b"y"]


def test_what_is_no_message_is_counted_and_harms_nobody(pair: tuple[Transport, Transport]) -> None:
    a, b = pair
    context = zmq.Context()
    stranger = context.socket(zmq.PUSH)
    stranger.connect(b.address.ipc)
    try:
        for frames in ([b""], [b"junk"], [os.urandom(100), b"more", b"frames"]):
            stranger.send_multipart(frames)
        gather(b, lambda _: b.counters.malformed == 3, a)
    finally:
        context.destroy(0)
    a.send("b", b"fine")
    assert received(gather(b, of_kind(MessageReceived), a))[0].header == b"fine"


def test_wake_ends_a_receive_from_any_thread(folder: Path) -> None:
    with open_transport("a", folder) as a:
        thread = threading.Timer(0.05, a.wake)
        thread.start()
        began = time.monotonic()
        assert a.receive(60) == []
        assert time.monotonic() - began < 60
        thread.join()
        a.wake()
        a.wake()
        assert a.receive(60) == []  # one receive answers all wakes before it
        assert a.receive(0.01) == []
    a.wake()  # after close: nothing


def test_receive_keeps_its_time(folder: Path) -> None:
    with open_transport("a", folder) as a:
        began = time.monotonic()
        assert a.receive(0.05) == []
        assert time.monotonic() - began >= 0.05
        assert a.receive(0) == []


def test_closing_leaves_no_thread_no_file_and_no_descriptor(folder: Path) -> None:
    def cycle() -> None:
        a, b = open_transport("a", folder), open_transport("b", folder, ELSEWHERE)
        a.connect(b.address)
        b.connect(a.address)
        gather(a, of_kind(PeerConnected), b)
        a.send("b", b"", [np.zeros(3_000_000)])
        a.close()
        a.close()
        b.close()

    def held() -> set[str]:
        """Descriptors, with what they stand for, and threads."""
        found = {f"thread {name}" for name in os.listdir("/proc/self/task")}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of this listing
                found.add(f"{name}: {os.readlink(f'/proc/self/fd/{name}')}")
        return found

    cycle()  # pyzmq keeps one thread of its own after the first zero-copy send
    before = held()
    took_s = []
    for _ in range(20):
        began = time.monotonic()
        cycle()
        took_s.append(time.monotonic() - began)
    assert min(took_s) < 0.3  # closing waits for nothing
    # A thread that was joined may be listed for a moment, and those of tests before this one may end.
    deadline = time.monotonic() + 600
    while left := held() - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
    assert not folder.exists()


def test_one_that_opens_while_the_last_one_closes_has_a_folder(folder: Path) -> None:
    """The one that closes removes the folder in which the other is about to listen."""
    problems: list[Exception] = []

    def cycles(name: str) -> None:
        try:
            for _ in range(300):
                open_transport(name, folder).close()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=cycles, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert not folder.exists()


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o750)
    with pytest.raises(TransportError, match=r"loose is not private: .* mode 0700, found drwxr-x---"):
        open_transport("a", loose)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    (tmp_path / "private").mkdir(mode=0o700)
    with pytest.raises(TransportError, match="is not private"):
        open_transport("a", tmp_path / "link")
    with pytest.raises(TransportError, match=r"too long: .* 107"):
        open_transport("a", tmp_path / ("x" * 100))
    assert not (tmp_path / ("x" * 100)).exists()


def test_bad_arguments_are_one_sentence(folder: Path) -> None:
    with pytest.raises(TransportError, match=r"cannot listen on 203\.0\.113\.1"):
        open_transport("a", folder, "203.0.113.1")
    assert not folder.exists()
    with pytest.raises(TransportError, match="needs the run's keys"):
        Transport("a", node_ip=HERE, ipc_folder=folder, keys=None)
    with pytest.raises(TransportError, match="1 to 255 bytes"):
        open_transport("", folder)
    with pytest.raises(ValueError, match="interval_s <= timeout_s"):
        HeartbeatTimes(interval_s=2, timeout_s=1)
    with open_transport("a", folder) as a:
        with pytest.raises(TransportError, match="no usable endpoint"):
            a.connect(dataclasses.replace(a.address, name="b", ipc=""))
        with pytest.raises(TransportError, match="peer 'b' cannot be reached at tcp://nowhere"):
            a.connect(dataclasses.replace(a.address, name="b", node_ip=ELSEWHERE, tcp="tcp://nowhere"))
        assert not a.send("b", b"") and a.counters.dropped_unknown == 1
