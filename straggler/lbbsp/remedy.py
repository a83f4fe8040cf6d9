"""The remedies for workers that wait for slower ones, and the time of a clock with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

HELPED = 1.12  # a clock with help, over the perfect division of its work: bsp at delays of 100 to 400%


class Remedy(Enum):
    """How the work of a clock is shared out. The values are those of a config's `balance`, and its key `helping`."""

    STATIC = "static"
    SHARES = "lbbsp"
    HELP = "helping"


WORDS: Mapping[Remedy, str] = {
    Remedy.STATIC: "static shares",
    Remedy.SHARES: "shares by speed",
    Remedy.HELP: "help",
}


@dataclass(frozen=True)
class Choice:
    """From the next clock on this remedy is used. `reason`: the time of a clock with each."""

    remedy: Remedy
    reason: str


def duration_s(units: Sequence[int], speeds: Sequence[float], others_s: Sequence[float]) -> float:
    """When the last worker ends: each takes x / v for its units, and c for its messages (Chen et al., equation 3)."""
    return max(x / v + c for x, v, c in zip(units, speeds, others_s, strict=True))


def divided_s(units: int, speeds: Sequence[float], others_s: Sequence[float]) -> float:
    """When all end if they end together: sum (T - c) v = X. No shares end sooner."""
    done_meanwhile = sum(v * c for v, c in zip(speeds, others_s, strict=True))
    return (units + done_meanwhile) / sum(speeds)


def helped_s(units: int, speeds: Sequence[float], others_s: Sequence[float]) -> float:
    """About when all end if they help each other: only whole units change hands, the last one of the slowest too."""
    return HELPED * divided_s(units, speeds, others_s) + 1.0 / min(speeds)
