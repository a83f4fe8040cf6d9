"""`proteus chaos`: random faults on real local machines, and a comparison with the sequential run."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from agileml.application import InputError
from agileml.checkpoints.errors import CheckpointError
from agileml.cluster.errors import ClusterError
from agileml.cluster.processes import is_alive
from agileml.cluster.ray_startup import environment
from agileml.cluster.watchdog import marked, processes_marked
from agileml.config.job import ConfigError, JobConfig
from agileml.config.plan import EventConfig
from agileml.config.random_plan import random_plan
from agileml.errors import RunError
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import FolderError, check_out, new_folder
from agileml.runs.summary import fired_in
from agileml.runs.thinning import clocks_of
from agileml.session import Result, run
from agileml.session.one_process import is_logged

MARK = "PROTEUS_CHAOS"  # in the environment of every process of the run
DYING_S = 20.0  # how long they may take to die on a busy computer
LAST_SHARE = 0.25  # of the clocks, whose mean loss is compared where equal bits are not promised
TOLERANCE = 0.05  # of that loss, relative, beside what chance explains
ERRORS = 3.0  # standard errors of the mean that chance explains: dropout draws other masks for other batches
PLAN, RUN, SEQUENTIAL, CHECKPOINTS = "plan.yaml", "run", "sequential", "checkpoints"


@dataclass(frozen=True)
class LossOff:
    """By how much the loss of the last clocks differs from the sequential run's, and the standard error of that, both
    relative to the sequential run's. The clocks are compared one by one: both runs have the same items in them."""

    mean: float
    error: float

    @classmethod
    def of(cls, losses: Mapping[int, float], reference: Mapping[int, float]) -> LossOff:
        """Of the losses by clock of two runs with the same clocks. A controller that died may have taken some along."""
        clocks = sorted(losses.keys() & reference.keys())
        last = clocks[-max(2, round(LAST_SHARE * len(clocks))) :]
        wanted = np.array([reference[clock] for clock in last])
        off = np.array([losses[clock] for clock in last]) - wanted
        scale = abs(float(wanted.mean()))  # a likelihood is below 0
        return cls(float(off.mean()) / scale, float(off.std(ddof=1)) / len(last) ** 0.5 / scale)

    @property
    def is_small(self) -> bool:
        """True where it is within the tolerance and what chance explains."""
        return abs(self.mean) <= TOLERANCE + ERRORS * self.error

    def __str__(self) -> str:
        is_same = "within" if self.is_small else "NOT WITHIN"
        return (
            f"loss {is_same} {TOLERANCE:.0%} and {ERRORS:g} standard errors of the sequential run's "
            f"({self.mean:+.2%}, standard error {self.error:.2%})"
        )


@dataclass(frozen=True)
class ChaosResult:
    """The outcome of a chaos run."""

    seed: int
    planned: int
    fired: Mapping[str, int]
    clocks_redone: int
    same_bits: bool | None  # None: the job does not promise equal bits
    processes_left: int
    loss_off: LossOff | None = None  # where bsp does not promise equal bits

    @property
    def is_good(self) -> bool:
        """True when every fault fired, the promise held and no process is left."""
        return (
            sum(self.fired.values()) == self.planned
            and self.same_bits is not False
            and (self.loss_off is None or self.loss_off.is_small)
            and not self.processes_left
        )

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.fired.items()))
        bits = {True: "same bits", False: "OTHER BITS", None: "bits not promised"}[self.same_bits]
        if self.loss_off is not None:
            bits += f", {self.loss_off}"
        return (
            f"chaos: seed {self.seed}, {sum(self.fired.values())} of {self.planned} faults fired ({kinds}), "
            f"{self.clocks_redone} clocks redone, {bits}, {self.processes_left} processes left"
        )


def run_chaos(config: JobConfig, seed: int, faults: int, out: Path) -> ChaosResult:
    """Run the plan of a seed on local nodes and, without faults, in one process; compare the two.

    Everything goes to `out`: plan.yaml, the run in `run` (its checkpoints in `checkpoints`, not where the config says),
    the reference in `sequential`. A job that cannot start leaves nothing there. Raises the errors of `run`, RunError if
    one of the two was stopped, and FolderError if `out` holds another chaos run.
    """
    check_chaos_out(out)
    clocks, plan = random_plan(config, seed, faults)
    events = [event.model_dump(exclude_unset=True) for event in plan]
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    (out / PLAN).write_text(yaml.safe_dump({"clocks": clocks, "plan": events}, sort_keys=False))
    config = disturbed(config, out)
    mark = secrets.token_hex(8)
    try:
        with environment(marked(mark, MARK)):
            result = whole(run(config, name="chaos", clocks=clocks, plan=events, out=str(out / RUN)), clocks)
    except (ConfigError, InputError, FolderError, ClusterError, CheckpointError):
        (out / PLAN).unlink()
        if is_new:
            with suppress(OSError):
                out.rmdir()
        raise
    same_bits = loss_off = None
    has_log = is_logged(config) and config.deterministic
    if config.consistency.kind == "bsp" or has_log:  # otherwise what is read depends on the machines' speeds
        reference = reference_of(config, clocks, out, out / RUN if has_log else None)
        if config.deterministic:
            same_bits = reference.summary["params_sha256"] == result.summary["params_sha256"]
        else:
            loss_off = LossOff.of(_losses(result), _losses(reference))
    fired = _fired(result, plan)
    redone = result.summary["clocks_redone"]
    return ChaosResult(seed, faults, fired, redone, same_bits, left_behind(mark), loss_off)


def disturbed(config: JobConfig, out: Path) -> JobConfig:
    """The job that faults strike: it goes on to its last clock, with checkpoints apart from those of a real run."""
    config = config.changed(early_stopping=None)
    if config.checkpoint is None:
        return config
    saves = config.checkpoint.model_copy(update={"path": str((out / CHECKPOINTS).resolve())})
    return config.changed(checkpoint=saves.model_dump())


def reference_of(config: JobConfig, clocks: int, out: Path, log: Path | None) -> Result:
    """The same job without faults, in one process, which has no machines to profile. log: the run that it repeats."""
    alone = config.changed(clocks=clocks, plan=[], profile=False, out=str(out / SEQUENTIAL))
    return whole(run(alone, name="chaos", sequential=True, replay=log), clocks)


def whole(result: Result, clocks: int) -> Result:
    """A result that can be compared. Raises RunError for that of a run which was stopped."""
    if result.summary["stopped"]:
        raise RunError(
            f"the run was stopped after {result.summary['clocks']} of {clocks} clocks: there is nothing to compare"
        )
    return result


def _losses(result: Result) -> Mapping[int, float]:
    """By clock; of one that was redone, the last one."""
    events = read_events(result.folder / EVENTS)
    return {done.event.clock: done.event.loss for done in clocks_of(events)}


@contextmanager
def chaos_folder(out: Path | None, name: str) -> Iterator[Path]:
    """`out`, or a new folder in runs/, which goes again if it stays empty. Raises FolderError."""
    if out is not None:  # `run_chaos` checks it
        yield out
        return
    check_out(None)
    try:
        made = new_folder(Path("runs"), name)
    except OSError as error:
        raise FolderError(f"out: {error.filename} cannot be made: {error.strerror}") from None
    try:
        yield made
    finally:
        with suppress(OSError):  # it holds something
            made.rmdir()


def check_chaos_out(out: Path) -> None:
    """Raise FolderError if `out` cannot be written to or holds another chaos run."""
    check_out(out)
    if held := [name for name in (PLAN, RUN, SEQUENTIAL, CHECKPOINTS) if (out / name).exists()]:
        raise FolderError(
            f"out: {out} holds another chaos run (found {held[0]}), expected a new or an empty folder"
        )


def _fired(result: Result, plan: Sequence[EventConfig]) -> dict[str, int]:
    """How many faults of each kind fired; a join is no fault."""
    indices = fired_in(read_events(result.folder / EVENTS))
    return dict(Counter(plan[index].kind for index in sorted(indices) if plan[index].kind != "join"))


def left_behind(mark: str, wait_s: float = DYING_S) -> int:
    """Processes of the run that live on after `wait_s`: children of this one, and those that have lost their parent."""
    until_s = time.monotonic() + wait_s
    while True:
        live = [process for process in processes_marked(mark, MARK) if is_alive(process)]
        if not live or time.monotonic() > until_s:
            return len(live)
        time.sleep(0.1)
