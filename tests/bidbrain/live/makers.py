"""A job that needs no machines: the simulator's model of progress as an engine, and a clock that jumps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bidbrain.accounts.ledger import Ledger
from bidbrain.history.prices import NEVER_S
from bidbrain.live.cloud import Cloud, Instance, InstanceNotice
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan, Log, TrainerReport
from bidbrain.live.journal import Closing, Journal, Record
from bidbrain.live.replay import InstantLauncher, Replay, Warnings
from bidbrain.live.service import Service
from bidbrain.live.state import JobState
from bidbrain.policy.registry import Scheme
from bidbrain.setting import Setting
from bidbrain.simulate.simulator import Progress


class ModelTrainer:
    """Works as the simulator says that machines work (boots, pauses), on what it was told it holds."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self.progress = Progress(setting.job, start_s)
        self.done_s: int | None = None
        self.held: set[str] = set()
        self.told: list[tuple[str, int]] = []
        self.draining = False

    def report(self, now_s: int) -> TrainerReport:
        return TrainerReport(self.progress.done_vcpu_s, self.done_s, drained=self.draining)

    def hold(self, now_s: int, reliable: tuple[Instance, ...], transient: tuple[Instance, ...]) -> None:
        now = {machine.instance_id for machine in transient}
        if now - self.held:
            self.progress.granted(now_s)
        self.held = now

    def warn(self, now_s: int, notice: InstanceNotice) -> None:
        self.told.append((notice.instance_id, notice.deadline_s))

    def lost(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        self.progress.evicted(now_s)

    def leave(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        pass

    def drain(self, now_s: int, deadline_s: int) -> None:
        self.draining = True


class LiveRig:
    """Market, machines, engine and clock: what goes on while services come and go."""

    trouble = ""

    def __init__(self, setting: Setting, start_s: int, warnings: Warnings | None = None) -> None:
        self.setting, self.start_s, self.at_s = setting, start_s, start_s
        self.launcher = InstantLauncher()
        self.replay = Replay(setting, lambda: self.at_s, self.launcher, warnings)
        self.engine = ModelTrainer(setting, start_s)
        self.state: JobState | None = None

    def now_s(self) -> int:
        return self.at_s

    def wait(self, until_s: int, market: bool) -> None:
        """Jump to the next thing that happens; the model works on the way there."""
        assert self.state is not None
        times = [until_s, self.replay.end_s, self.replay.next_eviction_s(self.at_s)]
        times.append(self.replay.next_change_s(self.at_s) if market else NEVER_S)
        then_s = min(times)
        workers = self.state.account.held()
        workers += [a for a in self.state.account.open if a.on_demand and a.number >= 0]
        done_s = self.engine.progress.advance(self.at_s, then_s, workers)
        self.engine.done_s = done_s
        self.at_s = then_s if done_s is None else done_s


class Memory:
    """A journal without a file."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = tuple(records)

    def append(self, record: Record) -> None:
        self.records += (record,)


def plan_of(setting: Setting, scheme: Scheme, start_s: int, guards: Guards | None = None) -> JobPlan:
    policy = scheme.make(setting, start_s)
    what = ("job", scheme.name, setting, policy, start_s, scheme.reliable)
    return JobPlan(*what, guards or Guards())


def play(
    ground: LiveRig, scheme: Scheme, log: Log, guards: Guards | None = None, cloud: Cloud | None = None
) -> tuple[Closing, Ledger]:
    """One service from its journal to the job's end."""
    plan = plan_of(ground.setting, scheme, ground.start_s, guards)
    service = Service(plan, cloud or ground.replay, ground.engine, ground, log)
    ground.state = service.state
    return service.run(), service.state.ledger()


def play_in(
    folder: Path, ground: LiveRig, scheme: Scheme, guards: Guards | None = None
) -> tuple[Closing, Ledger]:
    with Journal(folder) as journal:
        return play(ground, scheme, journal, guards)
