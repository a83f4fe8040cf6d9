"""A job in this process alone: clock after clock, or step by step from the log of a run with supersteps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.application import Application, Array
from agileml.config.job import JobConfig, load
from agileml.config.section import Section
from agileml.config.text import ConfigError, show
from agileml.core.controller.progress_log import means
from agileml.core.parameters.loss_scale import LossScale, ScaleChange, reason
from agileml.core.protocol.job import Job
from agileml.core.sequential import Trained, train
from agileml.core.stepwise import Steps, StepsMissingError, Stepwise, serial, steps_of
from agileml.driver.best_model import BestModel
from agileml.events.observed import Evaluated, LossScaleChanged
from agileml.events.run import ClockDone, CutCommitted, RunFailed, RunFinished, RunStopped, StepsLogged
from agileml.events.schema import Log, SchemaError, events_of
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import CONFIG, SUMMARY, FolderError, RunFolder
from agileml.runs.progress import Progress, Snapshot

REPLAY_KEY = "--replay"


@dataclass(frozen=True)
class Replay:
    """A logged run to compute again: `steps` of each partition in `clocks` clocks; the hash of its last parameters."""

    folder: Path
    steps: Steps
    clocks: int
    params_sha256: str | None


def read_replay(folder: Path, config: JobConfig) -> Replay:
    """The steps of a run of this config. Raises FolderError where the folder does not say them, ConfigError where the
    run had another config."""
    for name in (CONFIG, EVENTS):
        if not (folder / name).is_file():
            raise FolderError(f"{REPLAY_KEY}: {folder} holds no {name}, expected the folder of a run")
    try:
        then, log = load(folder / CONFIG), read_events(folder / EVENTS)
    except (ConfigError, SchemaError) as error:
        raise FolderError(f"{REPLAY_KEY}: {folder}: {error}") from None
    _check_same(config, then, folder)
    if config.consistency.kind != "elastic":
        kind = config.consistency.kind
        raise ConfigError(
            f"found {REPLAY_KEY} with {kind}, expected elastic: only then are steps logged",
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
    try:
        steps = logged_steps(log, then, then.partitions, clocks)
    except StepsMissingError as error:
        raise FolderError(f"{REPLAY_KEY}: {folder / EVENTS}: {error}") from None
    summary = folder / SUMMARY
    found = json.loads(summary.read_text("utf-8")) if summary.is_file() else {}
    return Replay(folder, steps, clocks, found.get("params_sha256"))


def _check_same(now: JobConfig, then: JobConfig, folder: Path) -> None:
    """Raise ConfigError where the two do not train the same model alike."""
    for name in SAME:
        mine, theirs = getattr(now, name), getattr(then, name)
        if mine != theirs:
            raise ConfigError(
                f"found {_told(mine)}, expected {_told(theirs)} as in {folder / CONFIG}", key=(name,)
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
)


def _told(value: Any) -> str:
    return show(value.model_dump(mode="json") if isinstance(value, Section) else value)


def end_of(log: Log, clocks: int) -> int | None:
    """The clock whose cut is the result of a run, or the newest cut of one that was broken off; None: there is none."""
    stopped = [each.clock for each in events_of(log, RunStopped)]
    failed = [each.clock for each in events_of(log, RunFailed)]
    if stopped or failed:
        return (stopped or failed)[-1]
    if events_of(log, RunFinished):
        return clocks
    return max((cut.clock for cut in events_of(log, CutCommitted)), default=None)


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
        self._last_s = time.monotonic()
        self._open: dict[int, tuple[int, float, int]] = {}  # by clock: minibatches, loss, examples
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
        steps = replay.steps if replay is not None else [serial(job.clocks * job.units)]
        return Stepwise(self._application, job.optimizer, job.parts, steps, self._on_step).train()

    def _on_step(self, position: int, loss: float, examples: int) -> bool:
        clock = position // self._job.units
        count, losses, seen = self._open.get(clock, (0, 0.0, 0))
        self._open[clock] = count + 1, losses + loss, seen + examples
        is_stopped = False
        while self._open.get(self.done, (0,))[0] == self._job.units:
            is_stopped |= self._on_clock(self.done, *self._open.pop(self.done)[1:])
        return is_stopped

    def _on_clock(self, clock: int, loss: float, examples: int) -> bool:
        now_s = time.monotonic()
        mean = loss / max(1, examples)
        self._folder.events.write(ClockDone(clock + 1, mean, examples, now_s - self._last_s))
        self._last_s = now_s
        self._progress.show(Snapshot(clock + 1, self._job.clocks, mean, 0, 1, 0, "sequential"))
        self.done = clock + 1
        return self._is_stopped()
