"""Of large messages that wait for one peer, urgent ones leave first, and the parts of two never mix."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import zmq

from agileml.net import wire
from agileml.net.events import Address
from agileml.net.links import Link, Pipe
from agileml.net.transport import Transport

FRAME_BYTES = 100_000
PIPE = 2  # ZeroMQ messages that libzmq takes before anybody listens


class Line:
    """A link that nobody reads yet."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/line"
        self.context = zmq.Context()
        self.link = Link("a", 7, self.open, itertools.count(1), FRAME_BYTES, 1 << 30)
        self.sent: list[tuple[int, int]] = []  # urgency and parts, by the message's number

    def open(self) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.PUSH)
        socket.sndhwm = PIPE
        socket.connect(self.endpoint)
        return socket

    def send(self, urgency: int, parts: int) -> None:
        assert self.link.send(b"", [np.zeros(parts * FRAME_BYTES, np.uint8)], urgency)
        self.sent.append((urgency, parts))

    def read(self, most: int = 1 << 30) -> list[int]:
        """The numbers of the messages, one for each ZeroMQ message, in the order in which they arrive."""
        pull = self.context.socket(zmq.PULL)
        pull.rcvhwm = 1
        pull.bind(self.endpoint)
        left = sum(1 if parts == 1 else 1 + parts for _, parts in self.sent)
        found = []
        while len(found) < min(left, most):
            self.link.pump()
            if pull.poll(20):
                envelope = wire.read(pull.recv_multipart()[0])
                found.append(envelope.number)
        return found


@pytest.fixture
def line(tmp_path: Path):
    made = Line(tmp_path)
    yield made
    made.link.reset()
    made.context.destroy(0)


def test_what_waits_leaves_by_urgency_and_by_age(line: Line) -> None:
    for urgency in (5, 5, 5, 3, 0, 3, 9):
        line.send(urgency, parts=1)
    assert line.read() == [1, 2, 5, 4, 6, 3, 7]


def test_a_message_that_is_under_way_is_ended_first(line: Line) -> None:
    line.send(9, parts=4)
    line.send(0, parts=2)
    line.send(1, parts=1)
    assert line.read() == [1] * 5 + [2] * 3 + [3]


@pytest.mark.parametrize("seed", range(5))
def test_no_two_messages_mix_and_none_is_lost(line: Line, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        line.send(draw.randint(0, 4), draw.randint(1, 3))
    found = line.read()
    runs = [(number, len(list(run))) for number, run in itertools.groupby(found)]
    assert sorted(runs) == [(n + 1, 1 if p == 1 else 1 + p) for n, (_, p) in enumerate(line.sent)]
    assert not line.link.waits and line.link.reset() == 0


def test_a_reset_counts_what_had_not_left(line: Line) -> None:
    for urgency in (1, 0, 2, 0, 1):
        line.send(urgency, parts=1)
    assert line.link.reset() == 5 - PIPE


@pytest.mark.parametrize(("node_ip", "frame_bytes"), [("127.0.0.1", 40_000), ("127.0.0.2", 20_000)])
def test_peers_on_other_hosts_have_a_pipe_of_their_own(
    node_ip: str, frame_bytes: int, tmp_path: Path
) -> None:
    elements = 120_000
    pipes = {"pipe": Pipe(frame_bytes=40_000), "remote_pipe": Pipe(20_000, 1, 50_000)}
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.bind(f"ipc://{tmp_path}/b")
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        b = Address("b", node_ip, f"tcp://127.0.0.1:{port}", f"ipc://{tmp_path}/b", 7)
        with Transport(
            "a", node_ip="127.0.0.1", ipc_folder=tmp_path / "a", keys=None, curve=False, **pipes
        ) as a:
            a.connect(b)
            assert a.send("b", b"", [np.zeros(elements, np.uint8)])
            parts: list[int] = []
            while sum(parts) < elements:
                a.receive(0.01)
                if pull.poll(10):
                    _, *arrays = pull.recv_multipart()
                    parts += map(len, arrays)
    assert set(parts) == {frame_bytes}
