"""Random faults on real machines, and whether the result is still the sequential one: to the bit, or in its loss.

A seed makes a plan, always the same: faults that the job's machines survive, and joins so that they do not run out.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from agileml.application import InputError
from agileml.checkpoints.errors import CheckpointError
from agileml.cluster.own_folder import orphans
from agileml.config.job import ConfigError, JobConfig
from agileml.events.run import ClockDone, PlanFired
from agileml.events.schema import events_of
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import FolderError, check_out
from agileml.session import Result, run

SPARE_CLOCKS = 8  # between two events, at least
DYING_S = 2.0  # what was killed is given so long, ours and that of other runs here
LAST_CLOCKS = 16  # whose mean loss is compared where bits are not promised
TOLERANCE = 0.05  # of that loss, relative
PLAN, RUN, SEQUENTIAL, CHECKPOINTS = "plan.yaml", "run", "sequential", "checkpoints"


@dataclass(frozen=True)
class ChaosResult:
    """What came of a chaos run."""

    seed: int
    planned: int
    fired: Mapping[str, int]
    clocks_redone: int
    same_bits: bool | None  # None: the job does not promise them
    processes_left: int
    loss_off: float | None = None  # relative to the sequential run's, where bsp does not promise the bits

    @property
    def is_good(self) -> bool:
        """True when everything fired, the promise held and nothing is left."""
        return (
            sum(self.fired.values()) == self.planned
            and self.same_bits is not False
            and (self.loss_off is None or self.loss_off <= TOLERANCE)
            and not self.processes_left
        )

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.fired.items()))
        bits = {True: "same bits", False: "OTHER BITS", None: "bits not promised"}[self.same_bits]
        if self.loss_off is not None:
            is_same = "within" if self.loss_off <= TOLERANCE else "NOT WITHIN"
            bits += f", loss {is_same} {TOLERANCE:.0%} of the sequential run's ({self.loss_off:.2%} off)"
        return (
            f"chaos: seed {self.seed}, {sum(self.fired.values())} of {self.planned} faults fired ({kinds}), "
            f"{self.clocks_redone} clocks redone, {bits}, {self.processes_left} processes left"
        )


def chaos_plan(config: JobConfig, seed: int, faults: int) -> tuple[int, list[dict[str, Any]]]:
    """(clocks, plan): `faults` faults spread over the run, which is made long enough for them."""
    draw = random.Random(f"chaos/{seed}")
    reliable, transient = config.machines.reliable, config.machines.transient
    events: list[dict[str, Any]] = []
    for _ in range(faults):
        if transient < 2:
            joining = min(2, config.machines.max - reliable - transient)
            events.append({"join": joining})
            transient += joining
        event, lost = _draw_fault(draw, reliable, transient, checkpoints=config.checkpoint is not None)
        events.append(event)
        if "kill_reliable" in event:
            reliable -= lost
        else:
            transient -= lost
    clocks = max(config.clocks, (len(events) + 2) * SPARE_CLOCKS)
    # Events keep their order; where they fall in their part of the run is drawn.
    share = (clocks - 1) / (len(events) + 1)
    at = [int(share * (index + draw.uniform(0.3, 0.9))) + 1 for index in range(len(events))]
    return clocks, [{"at_clock": clock, **event} for clock, event in zip(at, events, strict=True)]


def _draw_fault(
    draw: random.Random, reliable: int, transient: int, *, checkpoints: bool
) -> tuple[dict[str, Any], int]:
    """(event, machines lost by it)."""
    kinds = ["kill", "kill", "freeze", "cut", "slow", "notice", "short_notice", "kill_controller"]
    kinds += (
        ["kill_many"] * (transient >= 3) + ["disk_full"] * checkpoints + ["kill_reliable"] * (reliable > 1)
    )
    kind = draw.choice(kinds)
    match kind:
        case "kill_many":
            count = draw.randint(2, transient)
            return {kind: count}, count
        case "notice":
            return {kind: 1, "warning_s": 30.0}, 1
        case "short_notice":
            return {kind: 1, "warning_s": draw.choice([0.0, 0.05])}, 1
        case "freeze" | "cut":
            return {kind: 1, "seconds": draw.choice([0.3, 1.5, 2.5])}, 0
        case "slow":
            return {kind: 1, "factor": 10.0, "seconds": 1.0}, 0
        case "disk_full":
            return {kind: True, "seconds": 1.0}, 0
        case "kill_controller":
            return {kind: True}, 0
        case _:
            return {kind: 1}, 1


def run_chaos(config: JobConfig, seed: int, faults: int, out: Path) -> ChaosResult:
    """Run a plan of a seed on local nodes and, without faults, in one process; compare.

    Everything goes to `out`: plan.yaml, the run in `run` (its checkpoints in `checkpoints`, whatever the config says),
    the reference in `sequential`. Nothing is left of a job that cannot start. Raises what `run` raises, and FolderError
    when another one went there.
    """
    check_chaos_out(out)
    clocks, plan = chaos_plan(config, seed, faults)
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    (out / PLAN).write_text(yaml.safe_dump({"clocks": clocks, "plan": plan}, sort_keys=False))
    if config.checkpoint is not None:  # never among the checkpoints of a real run
        saves = config.checkpoint.model_copy(update={"path": str((out / CHECKPOINTS).resolve())})
        config = config.changed(checkpoint=saves.model_dump())
    try:
        result = run(config, name="chaos", clocks=clocks, plan=plan, out=str(out / RUN))
    except (ConfigError, InputError, FolderError, CheckpointError):
        (out / PLAN).unlink()
        if is_new:
            with suppress(OSError):
                out.rmdir()
        raise
    same_bits = loss_off = None
    if config.consistency.kind == "bsp":  # else what a clock reads is a matter of the machines' speeds
        reference = run(
            config, name="chaos", sequential=True, clocks=clocks, plan=[], out=str(out / SEQUENTIAL)
        )
        if config.deterministic:
            same_bits = reference.summary["params_sha256"] == result.summary["params_sha256"]
        else:
            wanted = _last_loss(reference)
            loss_off = abs(_last_loss(result) - wanted) / wanted
    fired = _fired(result, plan)
    redone = result.summary["clocks_redone"]
    return ChaosResult(seed, faults, fired, redone, same_bits, _left_behind(), loss_off)


def _last_loss(result: Result) -> float:
    """The mean loss of the last clocks, each as it was done last."""
    events = read_events(result.folder / EVENTS)
    losses = {done.clock: done.loss for done in events_of(events, ClockDone)}
    last = sorted(losses)[-LAST_CLOCKS:]
    return sum(losses[clock] for clock in last) / len(last)


def check_chaos_out(out: Path) -> None:
    """Raise FolderError if nothing could be written to `out`, or another chaos run went there."""
    check_out(out)
    if held := [name for name in (PLAN, RUN, SEQUENTIAL, CHECKPOINTS) if (out / name).exists()]:
        raise FolderError(
            f"out: {out} holds another chaos run (found {held[0]}), expected a new or an empty folder"
        )


def _fired(result: Result, plan: list[dict[str, Any]]) -> dict[str, int]:
    """Faults that fired, by kind; joins are no faults."""
    events = read_events(result.folder / EVENTS)
    indices = {fired.index for fired in events_of(events, PlanFired)}
    kinds = [next(key for key in event if key not in ("at_clock", "tier")) for event in plan]
    return dict(Counter(kind for index, kind in enumerate(kinds) if index in indices and kind != "join"))


def _left_behind() -> int:
    """Processes of the run that still live: children of this one, and those that have lost their parent."""
    until_s = time.monotonic() + DYING_S
    while True:
        children = psutil.Process().children(recursive=True)
        live = {c.pid for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE}
        live |= {process.pid for process in orphans()}
        if not live or time.monotonic() > until_s:
            return len(live)
        time.sleep(0.1)
