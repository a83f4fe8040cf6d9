"""The run's keys are in nothing that Ray carries or keeps: not on the wire, in no file, in no environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

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
from tests.cluster.sniffer import Sniffer, may_sniff

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not may_sniff(), reason="needs the right to read raw packets"),
]

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
