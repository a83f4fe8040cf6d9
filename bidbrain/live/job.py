"""A live job: its plan, market, trainer, clock and journal, and the state folded from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from bidbrain.live.cloud import Cloud, Instance, InstanceNotice
from bidbrain.live.decide import Measurements
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Record
from bidbrain.live.state import JobState
from bidbrain.policy.base import Policy
from bidbrain.setting import Setting

EXIT_FINISHED, EXIT_STOPPED, EXIT_BUDGET, EXIT_MARKET_CLOSED = 0, 0, 3, 4


@dataclass(frozen=True)
class TrainerReport:
    """The job as its trainer sees it. finished_s: when the work was done; drained: an end now would lose nothing."""

    done_vcpu_s: float
    finished_s: int | None = None
    drained: bool = False
    measured: Measurements = field(default_factory=Measurements)


class Trainer(Protocol):
    """Trains on the instances. Calls may be repeated: a restarted service sends everything again."""

    def report(self, now_s: int) -> TrainerReport: ...

    def hold(self, now_s: int, reliable: tuple[Instance, ...], transient: tuple[Instance, ...]) -> None:
        """Train on exactly these instances from now on."""
        ...

    def warn(self, now_s: int, notice: InstanceNotice) -> None:
        """Take a preemption notice: the market will, or may, take an instance."""
        ...

    def lost(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        """Take note that the market evicted these instances."""
        ...

    def leave(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        """Move partitions and work of these instances to others. The service gives them back as soon as this returns.

        After `drain`, if these are all instances that the job holds, the job ends.
        """
        ...

    def drain(self, now_s: int, deadline_s: int) -> None:
        """Save the work done, by a checkpoint; `report` tells when it is saved."""
        ...


class Timekeeper(Protocol):
    """The clock of the market: Unix time, or market time in a replay. It never goes backwards."""

    @property
    def trouble(self) -> str:
        """A sentence about a fault of the clock; empty if it has none."""
        ...

    def now_s(self) -> int: ...

    def wait(self, until_s: int, market: bool) -> None:
        """Wait until then at most; a live clock returns every few seconds. market: wait for its changes too."""
        ...


@dataclass(frozen=True)
class JobPlan:
    """The job to be run: its policy, setting and limits.

    drain_s, leave_s: seconds that its end may take: to save the work, and then to give the last instance back.
    """

    name: str
    scheme: str
    setting: Setting
    policy: Policy
    start_s: int
    with_reliable: bool = True
    guards: Guards = field(default_factory=Guards)
    drain_s: int = 120
    leave_s: int = 60

    @cached_property
    def limits(self) -> Guards:
        """The guards, whose reserve also pays for the job's end."""
        return self.guards.lasting(self.drain_s + self.leave_s)


class Log(Protocol):
    """The journal as the service needs it."""

    @property
    def records(self) -> tuple[Record, ...]: ...

    def append(self, record: Record) -> None: ...


class LiveJob:
    """The parts of a job that its service works with. Only `put` changes the state."""

    def __init__(self, plan: JobPlan, cloud: Cloud, trainer: Trainer, time: Timekeeper, journal: Log) -> None:
        self.plan = plan
        self.cloud = cloud
        self.trainer = trainer
        self.time = time
        self.state = JobState(plan.setting, journal.records)
        self._journal = journal

    def put(self, record: Record) -> None:
        """Journal a record, and apply it to the state."""
        self._journal.append(record)
        self.state.apply(record)
