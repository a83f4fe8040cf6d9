"""A whole run in this process: head and machines as threads, over real sockets, without Ray."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agileml.application import Application, Array
from agileml.config.hardware import Hardware
from agileml.config.job import JobConfig, from_values
from agileml.core.protocol.commands import Halt, Happened
from agileml.core.protocol.inputs import NodeUp
from agileml.core.sequential import run_sequential
from agileml.events.schema import E
from agileml.events.terms import Tier
from agileml.net.keys import KeyPair
from agileml.process.head import Head
from agileml.process.machine import Machine
from agileml.process.record_store import FileStore
from agileml.process.run_transport import socket_folder
from agileml.process.spec import RunSpec
from agileml.runs.model_file import params_sha256

LIMIT_S = 240.0  # no run takes long: one that takes this hangs


@dataclass
class Ran:
    """What a run left."""

    tables: dict[str, Array] | None
    events: list[Happened]
    halted: Halt | None
    machines: list[str] = field(default_factory=list)
    clocks: int = 0  # at its end

    @property
    def sha256(self) -> str:
        assert self.tables is not None, self.halted
        return params_sha256(self.tables)

    def of(self, kind: type[E]) -> list[E]:
        """The events of a class."""
        return [each.event for each in self.events if isinstance(each.event, kind)]


class Rig:
    """Starts the machines of a config and waits for the end."""

    node_ip = "127.0.0.1"
    machine_type = Machine
    cores = 1  # of each machine

    def __init__(
        self,
        values: Mapping[str, Any] | JobConfig,
        folder: Path,
        application: Application | None = None,
        resume: str | None = None,
        *,
        may_change_optimizer: bool = False,
    ):
        config = values if isinstance(values, JobConfig) else from_values(values)
        spec = RunSpec(
            secrets.token_hex(4),
            config,
            application,
            resume=resume,
            may_change_optimizer=may_change_optimizer,
        )
        self.spec = spec.measured(spec.build()) if config.pipeline is not None else spec
        self.keys = KeyPair.generate()
        waiting = self.spec.waiting_machines()
        start = config.machines
        expected = start.reliable + start.transient + sum(waiting.values())
        self.head = Head(self.spec, expected, self.node_ip, self.keys, FileStore(folder / "records"))
        self.machines: dict[str, Machine] = {}
        self.head.start()
        for tier, count, admitted in [
            (Tier.RELIABLE, start.reliable, True),
            (Tier.TRANSIENT, start.transient, True),
            *((tier, count, False) for tier, count in waiting.items()),
        ]:
            for _ in range(count):
                self.add(tier, admitted=admitted)

    def add(self, tier: Tier, *, admitted: bool = True) -> Machine:
        machine = self.begin(tier)
        self.head.register(machine.address, NodeUp(machine.name, tier, admitted))
        return machine

    def begin(self, tier: Tier) -> Machine:
        """A machine's process comes up; the controller does not know it yet."""
        name = f"m{len(self.machines)}"
        application = self.spec.build()
        hardware = Hardware(self.cores, self.spec.speed_of(name, tier))
        machine = self.machine_type(
            name, self.spec, application, self.node_ip, self.keys, self.head.address, hardware
        )
        self.machines[name] = machine
        machine.start()
        return machine

    def finish(self) -> Ran:
        events: list[Happened] = []
        until_s = time.monotonic() + LIMIT_S
        try:
            while True:
                state = self.head.state()
                events += state.events
                if state.halted is not None:
                    return Ran(None, events, state.halted)
                if state.finished is not None:
                    parts = [
                        self.machines[backup].final_blocks(partition, state.finished.clock)
                        for partition, backup in enumerate(state.finished.backup)
                    ]
                    assert all(part is not None for part in parts), state.finished
                    layout = next(iter(self.machines.values())).job.layout
                    tables = layout.whole([p for p in parts if p is not None])
                    return Ran(tables, events, None, list(self.machines), state.finished.clock)
                assert time.monotonic() < until_s, (state, events[-5:])
                time.sleep(0.005)
        finally:
            self.stop()

    def stop(self) -> None:
        for machine in self.machines.values():
            machine.stop()
        self.head.stop()
        shutil.rmtree(socket_folder(self.spec.run), ignore_errors=True)


def reference(values: Mapping[str, Any] | JobConfig, application: Application | None = None) -> str:
    """The params_sha256 of the sequential run."""
    config = values if isinstance(values, JobConfig) else from_values(values)
    spec = RunSpec("reference", config, application)
    application = spec.build()
    spec = spec.measured(application)
    tables = run_sequential(
        application,
        optimizer=spec.job(application).optimizer,
        clocks=config.clocks,
        parts=config.units_per_slice,
        deterministic=config.deterministic,
    )
    return params_sha256(tables)
