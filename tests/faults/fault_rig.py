"""Whole runs in this process whose plan's faults are done: what the session does with real nodes, without the nodes.

A killed machine's threads end and its sockets close; a controller is replaced by a new one on the same records.
Frozen machines need real processes: see test_real_nodes.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agileml.application import Application
from agileml.core.protocol.commands import Happened
from agileml.core.protocol.inputs import NodeDown, NodeUp, Stop
from agileml.core.protocol.plan import Strike
from agileml.events.run import CutCommitted, MembershipChanged
from agileml.events.terms import Fault, Loss, Tier
from agileml.process.head import Head, HeadState
from agileml.process.machine import Machine
from agileml.process.record_store import FileStore
from tests.agileml.process.engine_rig import LIMIT_S, Ran, Rig, reference

CHAOS_SEEDS = int(os.environ.get("CHAOS_SEEDS", "2"))  # of random faults on real nodes, in each way to train

MF = {
    "application": "mf",
    "data": {"kind": "made"},
    "model": {"mode": "gradients"},
    "optimizer": {"kind": "momentum", "learning_rate": 0.001},
    "clocks_per_pass": 16,
}
MLR = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks_per_pass": 4,
}


def job(base: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A short job of 3 machines, with cuts so often that a loss falls between two of them."""
    machines = {"reliable": 1, "transient": 2, "max": 8}
    cuts = {"every_s": 0.05, "max_clocks": 4}
    return {"clocks": 40, "slices": 8, "machines": machines, "cuts": cuts, **base, **more}


def lasting(base: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A job that goes on until it is told to stop, with clocks of some milliseconds."""
    return job(base, clocks=100_000, pace={"unit_s": 0.002}, **more)


def reference_of(ran: Ran, values: Mapping[str, Any]) -> str:
    """The params_sha256 of the sequential run of as many clocks."""
    return reference({**values, "clocks": ran.clocks, "plan": []})


class Rollback:
    """Watches for a rollback, and for training that goes on after it."""

    def __init__(self) -> None:
        self.base: int | None = None

    def is_made_good(self, state: HeadState) -> bool:
        """True once a cut is committed that is beyond the clock to which the run went back."""
        for each in state.events:
            match each.event:
                case MembershipChanged(rolled_back=True, base=base):
                    self.base = base
                case CutCommitted(clock) if self.base is not None and clock > self.base:
                    return True
        return False


class FaultRig(Rig):
    """`watch(rig, state)` is called after every look at the controller."""

    def __init__(
        self,
        values: Mapping[str, Any],
        folder: Path,
        watch: Callable[[FaultRig, HeadState], None] | None = None,
        application: Application | None = None,
        **resuming: Any,
    ) -> None:
        self._records = folder / "records"
        self._ups: dict[str, NodeUp] = {}
        self.killed: set[str] = set()
        self._heal_at_s: dict[str, float] = {}
        self._watch = watch or (lambda rig, state: None)
        super().__init__(values, folder, application, **resuming)

    def add(self, tier: Tier, *, admitted: bool = True) -> Machine:
        machine = super().add(tier, admitted=admitted)
        self._ups[machine.name] = NodeUp(machine.name, tier, admitted)
        return machine

    def kill(self, name: str) -> None:
        """The machine is gone, without a word."""
        self.killed.add(name)
        self.machines[name].stop()
        self.head.tell(NodeDown(name, Loss.PROCESS_DIED))

    def replace(self, dead: str) -> None:
        """Another machine comes in the place of one whose process died."""
        machine = self.begin(self._ups[dead].tier)
        self._ups[machine.name] = up = replace(self._ups[dead], node=machine.name)
        self.head.register(machine.address, up, self._ups[dead])

    def ask_to_stop(self) -> None:
        """The run ends with its next cut; a repeat does nothing."""
        self.head.tell(Stop())

    def kill_controller(self) -> None:
        """Another controller takes over from what is durable."""
        expected = len(self.machines)
        self.head.stop()
        self.head = Head(self.spec, expected, self.node_ip, self.keys, FileStore(self._records))
        self.head.start()
        for name, machine in self.machines.items():
            if name not in self.killed:
                machine.meet(self.head.address)
                self.head.register(machine.address, self._ups[name])

    def finish(self) -> Ran:
        events: list[Happened] = []
        until_s = time.monotonic() + LIMIT_S
        try:
            while True:
                state = self.head.state()
                events += state.events
                for strike in state.strikes:
                    self._strike(strike)
                self._heal()
                self._watch(self, state)
                if state.halted is not None:
                    return Ran(None, events, state.halted)
                if state.finished is not None:
                    parts = [
                        self.machines[backup].final_blocks(partition, state.finished.clock)
                        for partition, backup in enumerate(state.finished.backup)
                    ]
                    assert all(part is not None for part in parts)
                    layout = next(iter(self.machines.values())).job.layout
                    tables = layout.whole([p for p in parts if p is not None])
                    return Ran(tables, events, None, list(self.machines), state.finished.clock)
                assert time.monotonic() < until_s, (state, events[-8:])
                time.sleep(0.002)
        finally:
            self.stop()

    def _strike(self, strike: Strike) -> None:
        match strike.kind:
            case Fault.KILL_CONTROLLER:
                self.kill_controller()
            case Fault.KILL | Fault.KILL_RELIABLE:
                for name in strike.nodes:
                    self.kill(name)
            case Fault.FREEZE:
                raise AssertionError("a thread cannot be frozen with its connections open")
            case _:
                for name in strike.nodes:
                    self.machines[name].suffer(strike)
                    if strike.kind is Fault.CUT:
                        self._heal_at_s[name] = time.monotonic() + strike.seconds

    def _heal(self) -> None:
        """A machine that was cut off listens at another address once it is back."""
        for name in [name for name, at_s in self._heal_at_s.items() if at_s <= time.monotonic()]:
            del self._heal_at_s[name]
            self.head.register(self.machines[name].address, self._ups[name])
