"""The faults of a soak: when each comes, drawn from a seed. A plan prints as text and parses back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Harm(StrEnum):
    """What is done to the run. A machine is drawn when its fault is due."""

    MACHINE = "machine"  # the process of a machine is killed; it starts again, as another machine
    FREEZE = "freeze"  # the process of a machine stands still
    SLOW = "slow"  # the process of a machine gets a tenth of its time
    CONTROLLER = "controller"  # the controller's process is killed
    STORM = "storm"  # the processes of all machines and of the controller are killed at once
    DISK_FULL = "disk_full"  # no checkpoint can be written
    SICK = "sick"  # work fails on one machine, which is sent away with its Ray node
    NODE = "node"  # a transient machine is killed with its Ray node
    DRIVER = "driver"  # the run's process is killed, and Ray's head with it
    GCS = "gcs"  # Ray's head is killed under the run


HEADS = (Harm.DRIVER, Harm.GCS)
LOSSES = (Harm.SICK, Harm.NODE)  # they take a Ray node, which only a new head brings back
PASSING = (
    *(Harm.MACHINE,) * 3,
    *(Harm.FREEZE,) * 2,
    *(Harm.SLOW,) * 2,
    *(Harm.CONTROLLER,) * 2,
    *(Harm.DISK_FULL,) * 2,
    Harm.STORM,
)  # fmt: skip
LASTS_S = {Harm.FREEZE: 2.5, Harm.SLOW: 3.0, Harm.DISK_FULL: 2.0}


@dataclass(frozen=True)
class Due:
    """A fault, so many seconds after the first clock."""

    at_s: float
    harm: Harm

    def __str__(self) -> str:
        return f"{self.at_s:.2f} s: {self.harm}"


def draw(seed: int, seconds: float, every_s: float, heads: int, losses: int) -> tuple[Due, ...]:
    """Faults at random moments, one each `every_s` seconds on average, over `seconds`.

    heads: how often the head dies, at even distances, its halves in turn. losses: how many Ray nodes each head's life
    can spare.
    """
    chance = random.Random(f"soak/{seed}")
    head_at_s = [seconds * (number + 1) / (heads + 1) for number in range(heads)]
    found = [Due(at_s, HEADS[number % len(HEADS)]) for number, at_s in enumerate(head_at_s)]
    at_s, lives, spared = 0.0, 0, losses
    while (at_s := at_s + chance.expovariate(1 / every_s)) < seconds:
        before = sum(head_s <= at_s for head_s in head_at_s)
        if before > lives:
            lives, spared = before, losses
        harm = chance.choice((*PASSING, *(LOSSES if spared else ())))
        spared -= harm in LOSSES
        found.append(Due(at_s, harm))
    return tuple(sorted(found, key=lambda due: due.at_s))


def to_text(plan: Sequence[Due]) -> str:
    return "".join(f"{due}\n" for due in plan)


def from_text(text: str) -> tuple[Due, ...]:
    """Raises ValueError for text that `to_text` did not write."""
    found = []
    for line in text.splitlines():
        at_s, _, harm = line.partition(" s: ")
        found.append(Due(float(at_s), Harm(harm)))
    return tuple(found)
