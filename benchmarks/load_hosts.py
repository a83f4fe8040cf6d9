"""Machines without Ray: each process holds some, which speak the real protocol over real sockets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.events.terms import Tier
from agileml.net.events import Address
from agileml.net.keys import KeyPair
from agileml.process.machine import Machine
from agileml.process.spec import RunSpec

POLL_S = 0.05
NODE_IP = "127.0.0.1"


class Counting(Application):
    """Almost no work, but a unit that counts twice or not at all shows in the bits."""

    def __init__(self) -> None:
        super().__init__(Settings())

    def with_settings(self, settings: Settings) -> Counting:
        self.settings = settings
        return self

    def tables(self) -> Sequence[Table]:
        return (Table("w", 16, 16),)

    def load(self, slice_index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        wanted = np.float32((unit.clock * 31 + unit.slice * 7 + unit.part) % 97)
        return Updates({"w": parameters["w"] - wanted}, 1.0, 1)


@dataclass(frozen=True)
class Add:
    """To a host: start this machine. It answers `Up`, and `Gone` when the machine has left."""

    name: str
    tier: Tier


@dataclass(frozen=True)
class Up:
    name: str
    address: Address


@dataclass(frozen=True)
class Gone:
    name: str


@dataclass(frozen=True)
class Final:
    """To the host of a backup: its part of the last cut, which is the answer."""

    name: str
    partition: int
    clock: int


class Host:
    """A process with machines."""

    def __init__(self, spec: RunSpec, keys: KeyPair, head: Address) -> None:
        context = multiprocessing.get_context("spawn")
        self.link, other = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(other, spec, (keys.public, keys.secret), head), daemon=True
        )
        self._process.start()
        other.close()

    def stop(self) -> None:
        """End all its machines."""
        self.link.close()
        self._process.join(10)
        self._process.kill()


def _serve(link: Connection, spec: RunSpec, halves: tuple[bytes, bytes], head: Address) -> None:
    keys = KeyPair(*halves)
    machines: dict[str, Machine] = {}
    try:
        while True:
            while link.poll(POLL_S):
                match link.recv():
                    case Add(name):
                        machine = machines[name] = Machine(name, spec, spec.build(), NODE_IP, keys, head)
                        machine.start()
                        link.send(Up(name, machine.address))
                    case Final(name, partition, clock):
                        link.send(machines[name].final_blocks(partition, clock))
            for name in [name for name, machine in machines.items() if not machine.is_running]:
                machines.pop(name).stop()
                link.send(Gone(name))
    except (EOFError, OSError):  # the benchmark has ended
        for machine in machines.values():
            machine.stop()
