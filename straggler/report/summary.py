"""Means over the seeds of one scheme on one pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from straggler.simulate.schemes import Row


@dataclass(frozen=True)
class Summary:
    """Over the seeds of one scheme on one pattern with one variant: means, and the spread of the time."""

    pattern: str
    variant: str
    scheme: str
    seeds: int
    per_iteration_s: float
    least_s: float
    most_s: float
    ideal_s: float
    over_ideal: float
    waiting_share: float
    moved_share: float
    messages: float
    redone_units: float
    supersteps: float


def summarise(rows: Sequence[tuple[str, Row]]) -> list[Summary]:
    """Rows (variant, row) to summaries, in the order of their first appearance."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for variant, row in rows:
        groups.setdefault((row.pattern, variant, row.scheme), []).append(row)
    return [
        Summary(
            pattern,
            variant,
            scheme,
            len(found),
            fmean(row.per_iteration_s for row in found),
            min(row.per_iteration_s for row in found),
            max(row.per_iteration_s for row in found),
            fmean(row.ideal_s for row in found),
            fmean(row.over_ideal for row in found),
            fmean(row.waiting_share for row in found),
            fmean(row.moved_share for row in found),
            fmean(row.messages for row in found),
            fmean(row.redone_units for row in found),
            fmean(row.supersteps for row in found),
        )
        for (pattern, variant, scheme), found in groups.items()
    ]
