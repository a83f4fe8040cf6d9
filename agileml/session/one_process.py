"""A job in this process alone: clock after clock, or as the log of a run with supersteps or without a flush says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.application import Application, Array, InputError, StagePlan
from agileml.config.job import JobConfig, load
from agileml.config.section import Section
from agileml.config.text import ConfigError, show
from agileml.core.async_stages.replay import StagesMissingError, StagesReplay, stages_in
from agileml.core.controller.progress_log import means
from agileml.core.parameters.fold import Contribution, added_metrics
from agileml.core.parameters.loss_scale import LossScale, ScaleChange, reason
from agileml.core.protocol.job import Job
from agileml.core.protocol.view import StagesFrom
from agileml.core.sequential import Trained, train
from agileml.core.stepwise import Steps, StepsMissingError, Stepwise, serial, steps_of
from agileml.driver.best_model import BestModel
from agileml.events.observed import Evaluated, LossScaleChanged
from agileml.events.run import (
    ClockDone,
    CutCommitted,
    RunFailed,
    RunFinished,
    StagesArranged,
    StepsLogged,
)
from agileml.events.schema import Log, SchemaError, events_of
from agileml.events.sums import CutsCommitted, Standing
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import CONFIG, SUMMARY, FolderError, RunFolder
from agileml.runs.progress import SEQUENTIAL, Progress, Screen, Snapshot
from agileml.runs.summary import stopped_in

REPLAY_KEY = "--replay"
STANDING_S = 1.0  # between two events of how the run stands


@dataclass(frozen=True)
class Replay:
    """A logged run of so many clocks to compute again, and the hash of its last parameters.

    steps: of each partition, with supersteps. stages: of a pipeline without a flush.
    """

    folder: Path
    clocks: int
    params_sha256: str | None
    steps: Steps = ()
    stages: tuple[StagesFrom, ...] = ()


def read_replay(folder: Path, config: JobConfig) -> Replay:
    """The steps or stages of a run of this config. Raises FolderError where the folder does not say them, ConfigError
    where the run had another config."""
    for name in (CONFIG, EVENTS):
        if not os.path.isfile(folder / name):
            raise FolderError(f"{REPLAY_KEY}: {folder} holds no {name}, expected the folder of a run")
    try:
        then, log = load(folder / CONFIG), read_events(folder / EVENTS, steps=True)
    except (ConfigError, SchemaError) as error:
        raise FolderError(f"{REPLAY_KEY}: {folder}: {error}") from None
    _check_same(config, then, folder)
    if not is_logged(config):
        kind = config.consistency.kind
        raise ConfigError(
            f"found {REPLAY_KEY} with {kind}, expected elastic, or a pipeline with mode stash or none: only then the "
            "log says more than the config",
            key=("consistency",),
        )
    if not config.deterministic:
        raise ConfigError(
            f"found false with {REPLAY_KEY}, expected true: sums of several threads have other bits each time",
            key=("deterministic",),
        )
    assert then.partitions is not None, "the config of a run's folder says its partitions"
    clocks = end_of(log, then.clocks)
    if clocks is None:
        raise FolderError(f"{REPLAY_KEY}: {folder} holds no cut in {EVENTS}, expected a run that came to one")
    summary = folder / SUMMARY
    found = json.loads(summary.read_text("utf-8")) if summary.is_file() else {}
    digest = found.get("params_sha256")
    try:
        if config.pipeline is not None:
            return Replay(folder, clocks, digest, stages=stages_in(events_of(log, StagesArranged), clocks))
        return Replay(folder, clocks, digest, logged_steps(log, then, then.partitions, clocks))
    except (StepsMissingError, StagesMissingError) as error:
        raise FolderError(f"{REPLAY_KEY}: {folder / EVENTS}: {error}") from None


def is_logged(config: JobConfig) -> bool:
    """True where the bits of a run follow from its log, not from its config alone."""
    is_async = config.pipeline is not None and config.pipeline.mode != "flush"
    return config.consistency.kind == "elastic" or is_async


def check_verify(config: JobConfig) -> None:
    """Raises ConfigError where a resumed run cannot be compared with one process."""
    if config.verify and is_logged(config):
        where = "in a pipeline without a flush" if config.pipeline is not None else "and supersteps (elastic)"
        raise ConfigError(
            f"found true with --resume {where}, expected false: the log of a resumed run begins with the checkpoint",
            key=("verify",),
        )


class _StoppedError(Exception):
    """Told to stop in the middle."""


def train_again(
    application: Application,
    job: Job,
    config: JobConfig,
    plan: StagePlan | None,
    log: Path,
    is_stopped: Callable[[], bool],
) -> Mapping[str, Array] | None:
    """The tables of the same job trained in this process, by the log of a whole run where the bits follow from it;
    None where it is told to stop before its end, or where the log lacks what follows from it, as on a full disk.

    plan: where the layers of a pipeline are cut.
    """

    def done(number: int, loss: float, examples: int) -> bool:
        if is_stopped():
            raise _StoppedError
        return False

    print("proteus: trains the same job in one process, to compare; Ctrl-C leaves that out", file=Screen())
    try:
        return _trained_again(application, job, config, plan, read_events(log, steps=True), done)
    except _StoppedError:
        return None
    except (StepsMissingError, StagesMissingError) as error:  # the run has its result all the same
        print(f"proteus: verify: {log}: {error}; nothing is compared", file=Screen())
        return None
    except InputError as error:  # of a process without the devices that machines have
        print(f"proteus: verify: {error}; nothing is compared", file=Screen())
        return None


def _trained_again(
    application: Application,
    job: Job,
    config: JobConfig,
    plan: StagePlan | None,
    log: Log,
    done: Callable[[int, float, int], bool],
) -> Mapping[str, Array]:
    if job.elastic is not None:
        steps = logged_steps(log, config, job.layout.partitions, config.clocks)

        def stepped(position: int, made: Contribution) -> bool:
            return done(position, made.loss, made.examples)

        return Stepwise(application, job.optimizer, job.parts, steps, stepped).train().tables
    if is_logged(config):
        assert plan is not None and job.pipeline is not None
        stages = stages_in(events_of(log, StagesArranged), config.clocks)
        again = StagesReplay(application, job.optimizer, job.parts, plan, job.pipeline, done)
        return again.train(stages, config.clocks).tables
    return train(
        application,
        optimizer=job.optimizer,
        clocks=config.clocks,
        parts=config.units_per_slice,
        on_clock=done,
    ).tables


def _check_same(now: JobConfig, then: JobConfig, folder: Path) -> None:
    """Raise ConfigError where the two do not train the same model alike."""
    for name in SAME:
        mine, theirs = getattr(now, name), getattr(then, name)
        if mine != theirs:
            raise ConfigError(
                f"found {_shown(mine)}, expected {_shown(theirs)} as in {folder / CONFIG}", key=(name,)
            )
    if now.pipeline is not None and now.partitions not in (None, then.partitions):
        raise ConfigError(
            f"found {now.partitions}, expected {then.partitions} as in {folder / CONFIG}: the log tells stages in them",
            key=("partitions",),
        )


SAME = (
    "application",
    "data",
    "model",
    "optimizer",
    "clocks",
    "clocks_per_pass",
    "slices",
    "units_per_slice",
    "seed",
    "deterministic",
    "consistency",
    "pipeline",
)


def _shown(value: Any) -> str:
    return show(value.model_dump(mode="json") if isinstance(value, Section) else value)


def end_of(log: Log, clocks: int) -> int | None:
    """The clock whose cut is the result of a run, or the newest cut of one that was broken off; None: there is none."""
    failed = events_of(log, RunFailed)
    if end := stopped_in(log) or (failed[-1] if failed else None):
        return end.clock
    if events_of(log, RunFinished):
        return clocks
    newest = [each.event.clock for each in log if isinstance(each.event, CutCommitted | CutsCommitted)]
    return max(newest, default=None)


def logged_steps(log: Log, config: JobConfig, partitions: int, clocks: int) -> Steps:
    """The steps of each partition until a clock. Raises StepsMissingError."""
    units = config.slices * config.units_per_slice
    return steps_of(events_of(log, StepsLogged), (clocks * units,) * partitions)


class OneProcess:
    """Trains the job of a session in this process, and reports its clocks."""

    def __init__(
        self,
        application: Application,
        job: Job,
        folder: RunFolder,
        progress: Progress,
        is_stopped: Callable[[], bool],
        best: BestModel | None = None,
    ) -> None:
        self._best = best
        self._application, self._job = application, job
        self._folder, self._progress, self._is_stopped = folder, progress, is_stopped
        self._last_s = self._standing_due_s = time.monotonic()
        # By clock: minibatches, their loss, examples and metrics.
        self._open: dict[int, tuple[int, float, int, tuple[float, ...]]] = {}
        self._evaluates = True
        self.done = 0  # clocks

    def train(self) -> Trained:
        """Train clock after clock, until the end or until the user stops the session."""
        job = self._job
        return train(
            self._application,
            optimizer=job.optimizer,
            clocks=job.clocks,
            parts=job.parts,
            deterministic=job.deterministic,
            on_clock=self._on_clock,
            on_metrics=self._on_metrics,
            on_scale=self._on_scale,
        )

    def _on_scale(self, clock: int, scale: LossScale) -> None:
        if scale.change is not ScaleChange.NONE:
            self._folder.events.write(LossScaleChanged(clock + 1, scale.scale, scale.skipped, reason(scale)))

    def _on_metrics(
        self, clock: int, sums: tuple[float, ...], tables: Callable[[], dict[str, Array]]
    ) -> None:
        found = means(self._job.metrics, sums)
        self._folder.events.write(Evaluated(clock, found))
        if self._best is not None:
            self._best.measured(clock, found, tables)

    def take_steps(self, replay: Replay | None) -> Trained:
        """Train step by step, by the steps of a log or those that one machine would take. Raises StepsMissingError."""
        job = self._job
        # A replay goes to the end of its log: what was measured there is no reason to stop it earlier.
        self._evaluates = replay is None
        steps = replay.steps if replay is not None else [serial(job.clocks * job.units)]
        return Stepwise(self._application, job.optimizer, job.parts, steps, self._on_step).train()

    def follow_stages(self, stages: Sequence[StagesFrom], plan: StagePlan, clocks: int) -> Trained:
        """Train as the stages of a log did, whose partitions are cut as `plan` says."""
        job = self._job
        assert job.pipeline is not None
        again = StagesReplay(self._application, job.optimizer, job.parts, plan, job.pipeline, self._on_clock)
        return again.train(stages, clocks)

    def _on_step(self, position: int, made: Contribution) -> bool:
        clock = position // self._job.units
        count, loss, examples, metrics = self._open.get(clock, (0, 0.0, 0, ()))
        sums = loss + made.loss, examples + made.examples, added_metrics(metrics, made.metrics)
        self._open[clock] = count + 1, *sums
        is_stopped = False
        while self._open.get(self.done, (0,))[0] == self._job.units:
            _, loss, examples, metrics = self._open.pop(self.done)
            if metrics and self._evaluates:
                self._folder.events.write(Evaluated(self.done, means(self._job.metrics, metrics)))
            is_stopped |= self._on_clock(self.done, loss, examples)
        return is_stopped

    def _on_clock(self, clock: int, loss: float, examples: int) -> bool:
        now_s = time.monotonic()
        mean = loss / max(1, examples)
        self._folder.events.write(ClockDone(clock + 1, mean, examples, now_s - self._last_s))
        self._last_s = now_s
        self.done = clock + 1
        snapshot = Snapshot(self.done, self._job.clocks, mean, 0, 1, 0, SEQUENTIAL)
        self._progress.show(snapshot)
        if now_s >= self._standing_due_s or self.done == self._job.clocks:
            self._standing_due_s = now_s + STANDING_S
            self._folder.events.write(Standing(**vars(snapshot)))
        return self._is_stopped()
