"""A machine of the engine in a process of its own, on this computer, that computes at the speed that a rig says.

Forked before the rig has threads: a speed profile is made by a generator, which no pipe carries.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from agileml.config.hardware import Hardware
from agileml.core.compute.pace import Pace
from agileml.core.protocol.plan import Strike
from agileml.net.keys import KeyPair
from agileml.process.compute import ComputeThread
from agileml.process.machine import Machine
from agileml.process.spec import RunSpec

LOOK_S = 0.002  # between looks at how many units a machine has computed
STOPS_S = 10.0
FORK = multiprocessing.get_context("fork")


class ForkedMachine:
    """One machine. `pace`: makes its pace in its process; None: that of the config."""

    def __init__(self, pace: Callable[[], Pace] | None) -> None:
        self._pipe, theirs = FORK.Pipe()
        self._units = FORK.Value("q", 0)
        self._process = FORK.Process(target=_serve, args=(theirs, self._units, pace), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, name: str, spec: RunSpec, keys: KeyPair, head: Any, hardware: Hardware) -> Any:
        """Begin to serve, and return the address."""
        self._pipe.send((name, spec, (keys.public, keys.secret), head, hardware))
        return self._pipe.recv()

    @property
    def units(self) -> int:
        """The units that it has computed so far."""
        return int(self._units.value)

    def suffer(self, strike: Strike) -> None:
        """Carry out a planned fault other than a kill."""
        self._pipe.send(strike)

    def kill(self) -> None:
        """It is gone at once."""
        self._process.kill()
        self._process.join()

    def stop(self) -> int:
        """End it, and return the units that it computed for others; 0 of one that was killed."""
        helped = 0
        if self._process.is_alive():
            self._pipe.send(None)
            helped = self._pipe.recv() if self._pipe.poll(STOPS_S) else 0
            self._process.join(STOPS_S)
            self._process.kill()
        self._process.join()
        self._pipe.close()
        return helped


def _serve(pipe: Connection, units: Any, pace: Callable[[], Pace] | None) -> None:
    """A machine's process: from its start until its parent says None or is gone."""
    try:
        name, spec, halves, head, hardware = pipe.recv()
    except EOFError:
        return
    machine = Machine(name, spec, spec.build(), "127.0.0.1", KeyPair(*halves), head, hardware)
    if pace is not None:
        assert isinstance(machine.compute, ComputeThread)
        machine.compute.pace = pace()
    machine.start()
    pipe.send(machine.address)
    is_over = threading.Event()

    def count() -> None:
        while not is_over.wait(LOOK_S):
            units.value = machine.node.spent.units

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    try:
        while (strike := pipe.recv()) is not None:
            machine.suffer(strike)
    except EOFError:
        return
    is_over.set()
    counter.join()
    pipe.send(machine.node.spent.units_helped)
    machine.stop()
