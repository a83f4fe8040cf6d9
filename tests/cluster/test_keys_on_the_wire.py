"""The run's keys are in nothing that Ray carries or keeps: not on the wire, in no file, in no environment."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest
from zmq.utils import z85

import agileml
from agileml.cluster.local import LocalCluster
from agileml.driver.actor_group import ActorGroup
from agileml.events.run import FaultFired
from agileml.events.schema import events_of
from agileml.net.keys import KeyPair
from agileml.runs.event_log import EVENTS, read_events
from tests.cluster.shared_fleet import SharedFleet

pytestmark = pytest.mark.cluster

EVERY_PROTOCOL = 3
SOL_PACKET, PACKET_STATISTICS = 263, 6  # linux/if_packet.h
JOB = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks": 24,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "transient": 1, "max": 4},
    "plan": [{"at_clock": 6, "join": 1}, {"at_clock": 12, "kill_controller": True}],
}


class Sniffer:
    """Everything that crosses the loopback interface while it is entered."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        self._socket.bind(("lo", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE, 1 << 28)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen = bytearray()
        self.dropped = 0

    def _read(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._socket], [], [], 0.1)[0]:
                self.seen += self._socket.recv(1 << 17)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        _, self.dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()


def may_sniff() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError:
        return False
    return True


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError):
                yield str(path), path.read_bytes()


def environments() -> Iterator[tuple[str, bytes]]:
    for process in psutil.Process().children(recursive=True):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                yield f"{name} of {process.pid}", Path(f"/proc/{process.pid}/{name}").read_bytes()


@pytest.mark.skipif(not may_sniff(), reason="needs the right to read raw packets")
def test_the_keys_of_a_run_are_nowhere_where_ray_is(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[KeyPair] = []
    runs: list[str] = []
    generate, begin = KeyPair.generate, ActorGroup.__init__

    def kept() -> KeyPair:
        made.append(generate())
        return made[-1]

    def noted(self: ActorGroup, spec: object, *rest: object) -> None:
        runs.append(spec.run)  # type: ignore[attr-defined]
        begin(self, spec, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyPair, "generate", kept)
    monkeypatch.setattr(ActorGroup, "__init__", noted)
    told: list[tuple[str, bytes]] = []

    class Look(agileml.Callback):
        def on_clock(self, row: object) -> None:
            if not told:
                told.extend(environments())

    with Sniffer() as sniffer:
        values = {**JOB, "out": str(tmp_path / "run")}
        agileml.run(values, fleet=SharedFleet(cluster, values), callbacks=[Look()])
    fired = events_of(read_events(tmp_path / "run" / EVENTS), FaultFired)
    assert len(made) == len(runs) == len(fired) == 1, "one pair, for the second controller too"
    (keys,), seen = made, bytes(sniffer.seen)
    assert sniffer.dropped == 0
    assert runs[0].encode() in seen, "the sniffer sees what Ray tells the processes of a run"
    assert cluster._folder is not None
    places = [*files_of(cluster._folder), *files_of(tmp_path), *told, ("the wire", seen)]
    assert len(told) > 10 and len(places) > len(told) + 10
    for secret in (keys.secret, z85.decode(keys.secret), z85.decode(keys.secret).hex().encode()):
        assert [place for place, data in places if secret in data] == []
