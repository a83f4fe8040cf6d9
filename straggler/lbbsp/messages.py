"""Shares by speed where a worker's messages depend on which units it has.

In a deterministic job of dense tables a worker sends a sum as large as the parameters for each aligned subtree of its
units (`straggler.coverage`). Of 256 units on four workers 97 may be six sums and 96 one or two, so a deal that is a
little uneven ends earlier where sums take longer than the units that it moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from straggler.lbbsp.remedy import duration_s
from straggler.lbbsp.sizes import cpu_batch_sizes, gpu_batch_sizes

SumsOf = Callable[[tuple[int, ...]], Sequence[int]]  # from the units of each worker, how many sums each sends


def one_each(units: tuple[int, ...]) -> Sequence[int]:
    """Every worker sends one sum, whichever units it has."""
    return [1] * len(units)


def messages_s(units: tuple[int, ...], transfers_s: Sequence[float], sums_of: SumsOf) -> list[float]:
    """The seconds of each worker's messages: it pulls the parameters once, and sends its sums, which are as large.

    transfers_s: of each worker, the seconds of one of these transfers.
    """
    return [(1 + sums) * each for sums, each in zip(sums_of(units), transfers_s, strict=True)]


def best_units(
    total: int, speeds: Sequence[float], transfers_s: Sequence[float], sums_of: SumsOf, minimum: int
) -> tuple[tuple[int, ...], int]:
    """The units of each worker with which the last one ends earliest, among the best deals in steps of 1, 2, 4, 8 ...
    units, and the step. Units in larger steps are fewer sums: the borders of shares lie between larger subtrees."""
    fewest_s = messages_s((total,) * len(speeds), transfers_s, one_each)
    best: tuple[int, ...] = ()
    best_s, best_step, step = math.inf, 0, 1
    while total % step == 0 and len(speeds) * step * -(-minimum // step) <= total:
        found = _earliest(total, speeds, fewest_s, minimum, step)
        if sums_of is one_each:
            return found, step
        if duration_s(found, speeds, fewest_s) > best_s:
            break  # and so does every deal in larger steps, whatever it sends
        as_sent = messages_s(found, transfers_s, sums_of)
        for units in (found, _earliest(total, speeds, as_sent, minimum, step)):
            took_s = duration_s(units, speeds, messages_s(units, transfers_s, sums_of))
            if took_s <= best_s:
                best, best_s, best_step = units, took_s, step
        step *= 2
    return best, best_step


def _earliest(
    total: int, speeds: Sequence[float], others_s: Sequence[float], minimum: int, step: int
) -> tuple[int, ...]:
    """The best deal in steps of so many units, where messages take `others_s` whatever the units are."""
    if not any(others_s):
        return tuple(cpu_batch_sizes(speeds, total, minimum, unit=step).tolist())
    nothing = np.zeros(len(speeds), dtype=np.int64)
    found = gpu_batch_sizes(
        [1.0 / speed for speed in speeds],
        np.zeros(len(speeds)),
        others_s,
        nothing,
        nothing + total,
        total,
        minimum,
        unit=step,
    )
    return tuple(found.tolist())
