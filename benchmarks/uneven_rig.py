"""Runs of machines that stand for slower ones, on this computer: what a clock takes, who computes what, who waits."""

import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from forked_machine import FORK, ForkedMachine

from agileml.application import Application, Array, Table, Unit, Updates
from agileml.config.hardware import Hardware
from agileml.config.job import from_values
from agileml.core.compute.pace import MOST_CREDIT_S, Pace
from agileml.core.protocol.commands import Happened
from agileml.core.protocol.inputs import NodeDown, NodeUp
from agileml.driver.work_table import WorkTable
from agileml.events.run import ClockDone, FaultFired, MembershipChanged, WorkDone
from agileml.events.terms import Fault, Loss, Tier
from agileml.net.keys import KeyPair
from agileml.process.head import Head, HeadState
from agileml.process.record_store import FileStore
from agileml.process.run_transport import socket_folder
from agileml.process.spec import RunSpec
from straggler.simulate.profile import SpeedProfile


class Nothing(Application):
    """Units of almost no work on a model of 256 numbers: the pace alone sets the time."""

    def tables(self) -> Sequence[Table]:
        return [Table("w", 16, 16)]

    def load(self, slice_index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        return Updates({"w": np.zeros((16, 16), np.float32)}, loss=1.0, examples=1)


class ProfileStart:
    """The time at which the profiles of a run's machines begin: that of the first computation of any of them."""

    def __init__(self) -> None:
        self._at_s = FORK.Value("d", 0.0)  # of the monotonic clock, which is the same in all processes

    @property
    def at_s(self) -> float | None:
        """The time of the monotonic clock; None before any machine computes."""
        return float(self._at_s.value) or None

    def since(self, now_s: float) -> float:
        """Seconds from the start to a time of the monotonic clock; the first to ask starts it."""
        with self._at_s.get_lock():
            if self._at_s.value == 0.0:
                self._at_s.value = now_s
            return now_s - float(self._at_s.value)


class ProfilePace(Pace):
    """Virtual compute at a speed that changes over time: each chunk ends when the profile has done its work."""

    def __init__(self, unit_s: float, profile: SpeedProfile, start: ProfileStart) -> None:
        super().__init__(unit_s)
        self._profile = profile
        self._start = start
        self._due_s = -1.0  # when the last chunk was to end, from the start

    def computed(self, units: int, took_s: float, now_s: float) -> float:
        """The seconds until the chunk of `units` units, begun `took_s` ago, is done by the profile."""
        began_s = max(0.0, self._start.since(now_s - took_s))
        if 0 <= began_s - self._due_s <= MOST_CREDIT_S:
            began_s = self._due_s  # the pause before it ended late
        self._due_s = self._profile.time_of(self._profile.work_by(began_s) + units * self.unit_s)
        return self._due_s - self._start.since(now_s)

    def paused(self, seconds: float) -> None:
        """Deadlines are absolute: nothing to remember."""


@dataclass
class Trial:
    """What one run showed. Times are Unix seconds."""

    done_s: dict[int, float] = field(default_factory=dict)  # by completed clocks; the first time
    events: list[Happened] = field(default_factory=list)
    work: list[WorkDone] = field(default_factory=list)
    # Pairs: when, and the units that all machines had computed by then.
    units: list[tuple[float, int]] = field(default_factory=list)

    helped: int = 0  # units that machines computed for others

    def took_s(self, before: int, clock: int) -> float:
        """From `before` completed clocks to `clock`."""
        return self.done_s[clock] - self.done_s[before]

    def waiting(self, before: int, clock: int) -> float:
        """The share of their time that the machines waited from `before` completed clocks to `clock`."""
        works = [w for each in self.work if before < each.clock <= clock for w in each.by_machine.values()]
        wait_s = sum(work.wait_s for work in works)
        return wait_s / (wait_s + sum(work.compute_s for work in works))

    def unit_s(self, longest_s: float) -> float:
        """Seconds in which the machines together compute a unit, in so many seconds after the first, less a fifth of
        the looks."""
        began_s = next(at_s for at_s, units in self.units if units)
        seen = [(at_s, units) for at_s, units in self.units if units and at_s <= began_s + longest_s]
        (from_s, some), (to_s, more) = seen[len(seen) // 5], seen[-1]
        return (to_s - from_s) / (more - some)


class UnevenRun:
    """Machines as processes beside this one, which has the controller; planned faults are carried out."""

    def __init__(
        self,
        values: Mapping[str, Any],
        profiles: Sequence[SpeedProfile] = (),
        loads: Sequence[float] = (),
    ) -> None:
        """`profiles`: the speeds of the machines at the start over time; none for those of the config. `loads`: how
        much work each gets, as a multiple of the even share, whatever its speed; none for even shares."""
        self._loads = loads
        self.start = ProfileStart()
        self.spec = RunSpec(
            secrets.token_hex(4), from_values({"application": "uneven_rig:Nothing", **values})
        )
        self._folder = tempfile.mkdtemp(prefix="uneven-")
        self._keys = KeyPair.generate()
        start, waiting = self.spec.config.machines, self.spec.waiting_machines()
        tiers = [(Tier.RELIABLE, True)] * start.reliable + [(Tier.TRANSIENT, True)] * start.transient
        tiers += [(Tier.TRANSIENT, False)] * waiting[Tier.TRANSIENT]
        paces = [partial(ProfilePace, self.spec.pace_s, profile, self.start) for profile in profiles]
        # Before the head has threads.
        self._machines = {
            f"m{index}": ForkedMachine(paces[index] if paces else None) for index in range(len(tiers))
        }
        store = FileStore(Path(self._folder) / "records")
        self._head = Head(self.spec, len(tiers), "127.0.0.1", self._keys, store)
        self._head.start()
        for name, (tier, admitted) in zip(self._machines, tiers, strict=True):
            self._start(name, tier, admitted)

    def _start(self, name: str, tier: Tier, admitted: bool) -> None:
        hardware = Hardware(1, self.spec.speed_of(name, tier))
        address = self._machines[name].start(name, self.spec, self._keys, self._head.address, hardware)
        capacity = self._loads[int(name[1:])] if self._loads else 1.0
        self._head.register(address, NodeUp(name, tier, admitted, capacity))

    def train(self) -> Trial:
        """Train to the end."""
        trial, work = Trial(), WorkTable()
        try:
            while True:
                state = self._head.state()
                assert state.halted is None, state.halted
                self._take(state, trial, work)
                if state.finished is not None:
                    trial.work = [each for each in work.take() if isinstance(each, WorkDone)]
                    trial.helped = sum(machine.stop() for machine in self._machines.values())
                    self._machines = {}
                    return trial
                time.sleep(0.002)
        finally:
            for machine in self._machines.values():
                machine.stop()
            self._head.stop()
            shutil.rmtree(socket_folder(self.spec.run), ignore_errors=True)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, state: HeadState, trial: Trial, work: WorkTable) -> None:
        for machine, worked in state.worked:
            work.add(machine, worked.rows)
        for happened in state.events:
            trial.events.append(happened)
            if isinstance(happened.event, ClockDone):
                trial.done_s.setdefault(happened.event.clock, happened.at_s)
        for strike in state.strikes:
            for name in strike.nodes:
                if strike.kind is Fault.KILL:
                    self._machines[name].kill()
                    self._head.tell(NodeDown(name, Loss.PROCESS_DIED))
                else:
                    self._machines[name].suffer(strike)
        units = sum(machine.units for machine in self._machines.values())
        trial.units.append((time.time(), units))


def changes_of(trial: Trial) -> list[MembershipChanged]:
    """The changes of members."""
    return [each.event for each in trial.events if isinstance(each.event, MembershipChanged)]


def struck(trial: Trial, fault: Fault) -> list[str]:
    """The machines that a planned fault struck."""
    return [
        name
        for each in trial.events
        if isinstance(each.event, FaultFired) and each.event.fault is fault
        for name in each.event.machines
    ]
