"""Shared by the transport's tests: open transports, peers in processes of their own, waiting with a deadline."""

import base64
import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agileml.net.events import Address, Event
from agileml.net.keys import KeyPair
from agileml.net.transport import Transport

PEER = Path(__file__).with_name("transport_peer.py")
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"  # two node IPs of one machine


def gather(
    transport: Transport, done: Callable[[list[Event]], bool], *others: Transport, within_s: float = 600.0
) -> list[Event]:
    """Receive until what came satisfies `done`; the others receive meanwhile, and what they get is dropped."""
    events: list[Event] = []
    deadline = time.monotonic() + within_s
    while not done(events):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s; came: {events[-5:]}; {transport.counters}")
        events += transport.receive(0.01)
        for other in others:
            other.receive(0)
    return events


def of_kind(kind: Any, count: int = 1) -> Callable[[list[Event]], bool]:
    return lambda events: sum(isinstance(event, kind) for event in events) >= count


@contextlib.contextmanager
def peer_process(
    name: str, node_ip: str, folder: Path, keys: KeyPair | None, *connect_to: Address
) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    """Run transport_peer.py; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, str(PEER), name, node_ip, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    halves = None if keys is None else (keys.public, keys.secret)
    try:
        process.stdin.write(base64.b64encode(pickle.dumps((halves, connect_to))).decode() + "\n")
        process.stdin.flush()
        yield pickle.loads(base64.b64decode(process.stdout.readline())), process  # noqa: S301  our own child
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
