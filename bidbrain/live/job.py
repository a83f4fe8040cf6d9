"""What a live job consists of beside the market: its plan, its engine, its clock, its journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from bidbrain.live.cloud import Instance, Notice
from bidbrain.live.decide import Measured
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Record
from bidbrain.policy.base import Policy
from bidbrain.setting import Setting

EXIT_FINISHED, EXIT_STOPPED, EXIT_BUDGET, EXIT_MARKET_CLOSED = 0, 0, 3, 4


@dataclass(frozen=True)
class TrainerReport:
    """The job as its engine sees it. finished_s: when the work was done; drained: nothing would be lost now."""

    done_vcpu_s: float
    finished_s: int | None = None
    drained: bool = False
    measured: Measured = field(default_factory=Measured)


class Trainer(Protocol):
    """What trains on the instances. Calls may be repeated (a service that died says things again)."""

    def report(self, now_s: int) -> TrainerReport: ...

    def hold(self, now_s: int, reliable: tuple[Instance, ...], transient: tuple[Instance, ...]) -> None:
        """All instances that it has from now on."""
        ...

    def warn(self, now_s: int, notice: Notice) -> None:
        """An instance will go, or may."""
        ...

    def lost(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        """The market took these."""
        ...

    def leave(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        """These are given back as soon as this returns: move off what they hold."""
        ...

    def drain(self, now_s: int, deadline_s: int) -> None:
        """Bring what is done into safety (a checkpoint); `report` says when it is."""
        ...


class Timekeeper(Protocol):
    """The clock of the market: Unix time, or market time in a replay."""

    def now_s(self) -> int: ...

    def wait(self, until_s: int, market: bool) -> None:
        """Until then, or less: a live one returns every few seconds. `market`: a change of the market matters too."""
        ...


@dataclass(frozen=True)
class JobPlan:
    """The job to be run: who decides, on which setting, within which limits."""

    name: str
    scheme: str
    setting: Setting
    policy: Policy
    start_s: int
    with_reliable: bool = True
    guards: Guards = field(default_factory=Guards)
    drain_s: int = 120


class Log(Protocol):
    """The journal as the service needs it."""

    @property
    def records(self) -> tuple[Record, ...]: ...

    def append(self, record: Record) -> None: ...
