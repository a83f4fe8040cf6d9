"""Preemption notices that may be too short to copy the leavers' partitions: which option costs the least.

    move        copy the leavers' partitions before they leave; no clock is computed again
    roll back   go back to the committed cut at once, from the survivors' own copies and the backups
    finish cut  let the open cut arrive at the backups while clocks go on, then go back to it

The rate of links is an estimate, and its error factor is log-uniform in [1/margin, margin]. So a copy that is
expected to take n seconds ends within l seconds with the probability

    chance(n, l) = (ln(l / n) + ln margin) / (2 ln margin), at least 0 and at most 1.

With a copy that takes m seconds, a leaver that is gone in l, and a rollback that takes b (to fetch lost state and
recompute clocks), the expected costs are

    move        p m + (1 - p) (l + b)           p = chance of the leaver that has the least time for what it has
    roll back   b
    finish cut  q (r + b') + (1 - q) (l + b)    r until the cut is whole, b' a rollback to it, q = chance(r, l)

A move that is certain to end in time (p = 1) is always chosen, so after a long enough notice no clock is computed
again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agileml.core.change.transfers import Transfer, through
from agileml.events.terms import Way

MARGIN = 2.0


@dataclass(frozen=True)
class Leaver:
    """A machine that will be taken away in `left_s` seconds; copying its `size_bytes` takes about `needed_s`
    seconds."""

    node: str
    left_s: float
    size_bytes: int
    needed_s: float

    def chance(self, margin: float = MARGIN) -> float:
        """The probability that the copy ends in time."""
        return chance(self.needed_s, self.left_s, margin)


@dataclass(frozen=True)
class RollBack:
    """A rollback to `clock`: after `fetch_s` seconds of copying, `clocks` clocks are computed again in `redo_s` seconds
    (None: not known)."""

    clock: int
    clocks: int
    redo_s: float | None
    fetch_s: float

    @property
    def seconds(self) -> float | None:
        """Its cost in seconds; None: not known."""
        return None if self.redo_s is None else self.redo_s + self.fetch_s


@dataclass(frozen=True)
class Arriving:
    """The open cut: it is whole in about `remaining_s` seconds, and `roll_back` then goes back to it."""

    remaining_s: float
    roll_back: RollBack


@dataclass(frozen=True)
class NoticeDecision:
    """The chosen option, the reason as a sentence, and the expected seconds of each option."""

    way: Way
    reason: str
    expected_s: Mapping[Way, float]


def chance(needed_s: float, left_s: float, margin: float = MARGIN) -> float:
    """The probability that a copy which is expected to take `needed_s` seconds ends within `left_s`."""
    if needed_s <= 0 or left_s >= margin * needed_s:
        return 1.0
    if left_s * margin <= needed_s:
        return 0.0
    return (math.log(left_s / needed_s) + math.log(margin)) / (2 * math.log(margin))


def leavers(moved: Sequence[Transfer], left_s: Mapping[str, float], bytes_per_s: float) -> tuple[Leaver, ...]:
    """The machines in `left_s` that something must be copied from, the least likely to finish first.

    A leaver's bytes share its own link, and the links of the machines that get them, with the bytes of other transfers.
    """
    busy = through(moved)
    sent: Counter[str] = Counter()
    needed: dict[str, int] = {}
    for transfer in moved:
        if transfer.source in left_s:
            sent[transfer.source] += transfer.size_bytes
            to = max(busy[transfer.source], busy[transfer.to])
            needed[transfer.source] = max(needed.get(transfer.source, 0), to)
    found = [Leaver(n, left_s[n], sent[n], needed[n] / bytes_per_s) for n in sent if sent[n]]
    return tuple(sorted(found, key=lambda leaver: (leaver.chance(), leaver.left_s, leaver.node)))


def judge_notice(
    pressed: Leaver, move_s: float, roll_back: RollBack | None, arriving: Arriving | None = None
) -> NoticeDecision:
    """The option with the least expected cost. `roll_back` None: there is no cut to go back to."""
    p = pressed.chance()
    if p == 1.0:
        return NoticeDecision(Way.MOVE, f"{_what(pressed)}: that is long enough", {Way.MOVE: move_s})
    if roll_back is None:
        return NoticeDecision(Way.MOVE, f"{_what(pressed)}, but the committed cut is nowhere else", {})
    back_s = roll_back.seconds
    if back_s is None:
        if p > 0.0:
            return NoticeDecision(Way.MOVE, f"{_what(pressed)}; what a clock takes is not known yet", {})
        return NoticeDecision(Way.ROLL_BACK, f"{_what(pressed)}: {_back(roll_back)}", {})
    expected_s = {
        Way.MOVE: p * move_s + (1 - p) * (max(0.0, pressed.left_s) + back_s),
        Way.ROLL_BACK: back_s,
    }
    if arriving is not None and (then_s := arriving.roll_back.seconds) is not None:
        q = chance(arriving.remaining_s, pressed.left_s)
        missed_s = max(0.0, pressed.left_s) + back_s
        expected_s[Way.FINISH_CUT] = q * (arriving.remaining_s + then_s) + (1 - q) * missed_s
    # Among equals a move comes last, because the leaver may go before its deadline.
    way = min((Way.ROLL_BACK, Way.FINISH_CUT, Way.MOVE), key=lambda w: expected_s.get(w, math.inf))
    what = {
        Way.MOVE: "it is moved all the same",
        Way.ROLL_BACK: _back(roll_back),
        Way.FINISH_CUT: f"the cut at clock {arriving.roll_back.clock} arrives first" if arriving else "",
    }[way]
    costs = ", ".join(f"{w} {expected_s[w]:.3g} s" for w in sorted(expected_s, key=lambda w: expected_s[w]))
    return NoticeDecision(way, f"{_what(pressed)}: {what} (expected: {costs})", expected_s)


def _what(leaver: Leaver) -> str:
    return (
        f"{leaver.node} goes in {max(0.0, leaver.left_s):.3g} s, and its {leaver.size_bytes / 1e6:.3g} MB take about "
        f"{leaver.needed_s:.3g} s"
    )


def _back(roll_back: RollBack) -> str:
    return f"back to clock {roll_back.clock} at once, {roll_back.clocks} clocks again"
