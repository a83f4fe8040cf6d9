"""A random `plan` that a job survives: faults, and enough joins to replace machines. Equal seeds give equal plans."""

from __future__ import annotations

import random
from typing import Any

from agileml.config.job import JobConfig
from agileml.config.plan import EventConfig, event_of
from agileml.config.text import ConfigError

SPARE_CLOCKS = 8  # the fewest between two events


def random_plan(config: JobConfig, seed: int, faults: int) -> tuple[int, list[EventConfig]]:
    """(clocks, plan): `faults` faults spread over the run, which is made long enough for them.

    Raises ConfigError where no machine could ever be lost.
    """
    draw = random.Random(f"chaos/{seed}")
    reliable, transient = config.machines.reliable, config.machines.transient
    events: list[dict[str, Any]] = []
    for _ in range(faults):
        if transient < 2:
            joining = min(2, config.machines.max - reliable - transient)
            if not transient + joining:
                raise ConfigError(
                    f"found {config.machines.max} with as many reliable machines, expected more: faults strike "
                    "transient ones",
                    key=("machines", "max"),
                )
            events += [{"join": joining}] if joining else []
            transient += joining
        event, lost = _draw_fault(draw, reliable, transient, checkpoints=config.checkpoint is not None)
        events.append(event)
        if "kill_reliable" in event:
            reliable -= lost
        else:
            transient -= lost
    clocks = max(config.clocks, (len(events) + 2) * SPARE_CLOCKS)
    # Events keep their order; the clock of each is drawn within its part of the run.
    share = (clocks - 1) / (len(events) + 1)
    at = [int(share * (index + draw.uniform(0.3, 0.9))) + 1 for index in range(len(events))]
    return clocks, [event_of({"at_clock": clock, **event}) for clock, event in zip(at, events, strict=True)]


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
