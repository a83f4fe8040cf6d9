"""What the controller tells the driver arrives once, whatever answers are lost."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agileml.config.job import from_values
from agileml.core.controller.controller import Controller
from agileml.core.protocol.commands import ControllerCommand
from agileml.core.protocol.inputs import ControllerInput, Received
from agileml.core.protocol.messages import CONTROLLER, Status
from agileml.core.protocol.plan import Strike
from agileml.events.run import FaultFired, MachineReleased, Warned
from agileml.events.schema import RunEvent
from agileml.events.terms import Fault
from agileml.net.keys import KeyPair
from agileml.net.outbox import Done, Outbox, OutboxReader
from agileml.process.head import ForDriver, Head, HeadState
from agileml.process.record_store import FileStore
from agileml.process.run_transport import Usage, open_transport, run_codec
from agileml.process.spec import RunSpec
from tests.agileml.process.engine_rig import LIMIT_S
from tests.faults.fault_rig import MLR, FaultRig, job


def states(head: Head) -> Iterator[HeadState]:
    """The states that a driver gets which loses every second answer, until the run is finished."""
    reader = OutboxReader[ForDriver]()
    until_s = time.monotonic() + LIMIT_S
    while True:
        dealt_with = reader.done or Done(head.address, 0)
        head.state(dealt_with)
        state = head.state(dealt_with)
        yield replace(state, pending=reader.take(state.address, state.first, state.pending))
        assert state.halted is None, state.halted
        if state.finished is not None:
            return
        assert time.monotonic() < until_s, state


def test_releases_and_faults_are_told_until_the_driver_has_dealt_with_them(tmp_path: Path) -> None:
    plan = [
        {"at_clock": 6, "slow": 1, "factor": 2, "seconds": 0.1},
        {"at_clock": 12, "notice": 1, "warning_s": 60},
    ]
    rig = FaultRig(job(MLR, plan=plan), tmp_path)
    events: list[RunEvent] = []
    released: list[str] = []
    strikes: list[Strike] = []
    try:
        for state in states(rig.head):
            events += [each.event for each in state.events]
            released += state.released
            strikes += state.strikes
    finally:
        rig.stop()
    left = [event.machine for event in events if isinstance(event, MachineReleased)]
    assert released == left
    assert len(left) == 1
    assert [strike.kind for strike in strikes] == [Fault.SLOW]
    assert sum(isinstance(event, FaultFired) for event in events) == 1


class Watched:
    """A controller, and what it was told: of each event its kind, and whether the next step was looked for."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.told: list[tuple[str, bool]] = []

    def handle(self, event: ControllerInput, now_s: float, *, acts: bool = True) -> list[ControllerCommand]:
        kind = type(event.message if isinstance(event, Received) else event).__name__
        self.told.append((kind, acts))
        return self._controller.handle(event, now_s, acts=acts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


def test_heartbeats_that_come_together_have_the_machines_looked_at_once(tmp_path: Path) -> None:
    """Each of hundreds of machines sends ten a second, and to look for the next step is to look at all of them."""
    spec, keys = RunSpec(secrets.token_hex(4), from_values(job(MLR))), KeyPair.generate()
    head = Head(spec, 1, "127.0.0.1", keys, FileStore(tmp_path))
    head._controller = watched = Watched(head._controller)
    machine = open_transport("m0", spec.run, "127.0.0.1", keys, 1.0)
    try:
        machine.connect(head.address)
        for message in (Status(0, (), 0, ()), Usage(0.0, (0,) * 5, (0,) * 5, (0.0,) * 6, 0, 0.0)) * 20:
            header, arrays = run_codec().encode(message)
            assert machine.send(CONTROLLER, header, arrays)
        until_s = time.monotonic() + LIMIT_S
        while sum(not acts for _, acts in watched.told) < 40:
            head._turn()
            assert watched.told[-1] == ("Tick", True)
            machine.receive(0.0)
            assert time.monotonic() < until_s
    finally:
        machine.close()
        head.stop()
        head._transport.close()
    assert {kind for kind, acts in watched.told if not acts} == {"Status", "Measured"}
    assert {kind for kind, acts in watched.told if acts}.isdisjoint({"Status", "Measured"})


class Guarded(Outbox[ForDriver]):
    """Takes an item only from a thread that has the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self._lock = lock

    def append(self, item: ForDriver) -> None:
        assert self._lock.locked(), item
        super().append(item)


def test_a_warning_of_another_thread_does_not_meet_a_look_at_the_state(tmp_path: Path) -> None:
    """As of the threads that write manifests."""
    spec = RunSpec(secrets.token_hex(4), from_values(job(MLR)))
    head = Head(spec, 1, "127.0.0.1", KeyPair.generate(), FileStore(tmp_path))
    head._outbox = Guarded(head._lock)
    head.start()
    try:
        head._warn("a problem")
        assert [each.event for each in head.state().events] == [Warned("a problem")]
    finally:
        head.stop()
