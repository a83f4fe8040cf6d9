"""`stage: auto`: which stage is the fastest on these machines and links, and when to try another one.

A run starts with the thesis' thresholds (1:1 and 15:1, 4.2); its future work (6.2.2) is to set them by the traffic of
the reliable machines. Here, a clock is the computing of its slowest worker plus the time in which all machines wait
for bytes. The machine that moves the most bytes in that time shows the rate of its tier's links. With the formulas of
`traffic`, that predicts a clock in each stage:

    clock(stage) = max over workers (units x seconds a unit) + max over machines (bytes / rate of its tier's links)

which for the current stage is the measured clock. A tier whose links were never the bottleneck counts as fast as the
other one. That may be too optimistic, so a move to another stage is a trial, undone if its measured clock is not
better. Measurements override predictions, and each failed trial doubles the wait for the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agileml.core.stage.traffic import Roles, Volume, clock_bytes, volume_of
from agileml.events.terms import Move, Tier


@dataclass(frozen=True)
class TrialRule:
    """How much evidence a move to another stage needs.

    `clocks`: clocks in a window of measurement, after `settle` clocks that do not count (connections, buffers, slices
    to load). `try_gain`, `keep_gain`: the shares of a clock that a stage must be predicted, and then measured, to
    save. `doubt`: a trial that loses by less than this share gets a second window, and the better one counts, because
    a cut or another program slows a window down but nothing speeds one up. `worth`: what a move must save over the
    rest of the run, in costs of a change. `drift`: when a clock is by this share slower or faster than its stage was
    measured before, the measurements of the other stages are dropped.
    """

    clocks: int = 6
    settle: int = 2
    try_gain: float = 0.03
    keep_gain: float = 0.02
    doubt: float = 0.05
    worth: float = 2.0
    drift: float = 0.5


SLOWER = 2.0  # times the other tier's seconds per byte: more than noise


# -- what a clock would take --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrangement:
    """One stage on given machines: their roles, and the units of a clock by worker."""

    stage: int
    roles: Roles
    units: Mapping[str, int]


@dataclass(frozen=True)
class Observed:
    """Means per clock over a window: its seconds; the seconds that each worker computed, and then waited until its
    sums were counted; the bytes that all machines together received as parameters, sums and parts of cuts."""

    clock_s: float
    compute_s: Mapping[str, float]
    push_s: Mapping[str, float]
    pulled: float
    pushed: float
    cut: float


class Links:
    """The rates of each tier's links, learned from the machine that all others wait for."""

    def __init__(self) -> None:
        self._bytes_per_s: dict[Tier, float] = {}

    def rate(self, tier: Tier) -> float:
        """Bytes per second. A tier that was never the bottleneck has the other's rate; infinite while nothing is
        known."""
        return self._bytes_per_s.get(tier, max(self._bytes_per_s.values(), default=math.inf))

    def learn(self, now: Arrangement, seen: Observed, volume: Volume, tiers: Mapping[str, Tier]) -> None:
        """Learn from a window; nothing if no time was spent waiting.

        The bottleneck is the machine that moves the most, unless machines of the other tier take far longer per byte
        that they push: then their links are the slow ones.
        """
        wait_s = seen.clock_s - max(seen.compute_s.values(), default=0.0)
        by_node = clock_bytes(now.roles, volume)
        node = max(by_node, key=lambda name: by_node[name].most)
        if wait_s <= 0 or by_node[node].most <= 0:
            return
        tier, slowness = tiers[node], _push_s_per_byte(now, seen, volume, tiers)
        other = next(t for t in Tier if t is not tier)
        factor = slowness[other] / slowness[tier] if slowness.keys() == set(Tier) else 1.0
        if factor >= SLOWER:
            node = max((n for n in by_node if tiers[n] is other), key=lambda name: by_node[name].most)
            self._bytes_per_s[tier] = factor * by_node[node].most / wait_s
            tier = other
        self._bytes_per_s[tier] = by_node[node].most / wait_s
        for name, load in by_node.items():  # a rate is never below what was just measured
            if tiers[name] in self._bytes_per_s:
                self._bytes_per_s[tiers[name]] = max(self._bytes_per_s[tiers[name]], load.most / wait_s)


def _push_s_per_byte(
    now: Arrangement, seen: Observed, volume: Volume, tiers: Mapping[str, Tier]
) -> dict[Tier, float]:
    """By tier, the seconds per byte until a push of its workers is counted; tiers that push nothing are left out."""
    share = 1 / len(now.roles.owner)
    seconds, pushed = dict.fromkeys(Tier, 0.0), dict.fromkeys(Tier, 0.0)
    for node, sums in now.roles.sums.items():
        size = sums * volume.push * (1 - share * now.roles.owner.count(node))
        if size > 0 and (s := seen.push_s.get(node, 0.0)) > 0:
            seconds[tiers[node]] += s
            pushed[tiers[node]] += size
    return {tier: seconds[tier] / pushed[tier] for tier in Tier if pushed[tier]}


def predicted_s(
    stage: Arrangement,
    now: Arrangement,
    seen: Observed,
    volume: Volume,
    links: Links,
    tiers: Mapping[str, Tier],
) -> float:
    """Seconds of a clock in another arrangement of the same machines."""
    pace = {node: s / now.units[node] for node, s in seen.compute_s.items() if now.units.get(node)}
    usual_s = sum(pace.values()) / len(pace) if pace else 0.0
    compute_s = max((units * pace.get(node, usual_s) for node, units in stage.units.items()), default=0.0)
    exchange_s = max(
        load.most / links.rate(tiers[node]) for node, load in clock_bytes(stage.roles, volume).items()
    )
    return compute_s + exchange_s


def volume_now(now: Arrangement, seen: Observed, cut_guess: float) -> Volume:
    """The bytes per role of a clock, from the measured ones; `cut_guess` where no part of a cut travels now."""
    volume = volume_of(now.roles, seen.pulled, seen.pushed, seen.cut)
    return volume if volume.cut else Volume(volume.pull, volume.push, cut_guess)


# -- whether to move ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageDecision:
    """Go to `stage`, or stay in it for KEEP, by these thresholds. `reason` is a sentence."""

    move: Move
    stage: int
    thresholds: tuple[float, float]
    reason: str


def moved(thresholds: tuple[float, float], ratio: float, stage: int) -> tuple[float, float]:
    """The nearest thresholds that give `stage` for `ratio` transient machines per reliable one."""
    first, second = thresholds
    below = math.floor(ratio * 0.95e3) / 1e3
    match stage:
        case 1:
            return max(first, ratio), max(second, first, ratio)
        case 2:
            first = first if first < ratio else below
            return first, max(second, ratio)
        case _:
            second = second if second < ratio else below
            return min(first, second), second


@dataclass
class _Trial:
    """A trial that left `stage`, where a clock took `clock_s`; in its first window, if that is over, it took
    `first_s`."""

    stage: int
    clock_s: float
    first_s: float = math.inf


@dataclass
class AutoStage:
    """Judges one window after the other, by comparing measured and predicted clocks."""

    thresholds: tuple[float, float]
    trial_rule: TrialRule = field(default_factory=TrialRule)
    _machines: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    _measured: dict[int, float] = field(default_factory=dict)
    _trial: _Trial | None = None
    _failed: int = 0
    _rest: int = 0  # windows to go before the next trial

    def meet(self, reliable: frozenset[str], transient: frozenset[str]) -> None:
        """Take the present machines. If they have changed, drop all measurements."""
        if (reliable, transient) != self._machines:
            self._machines = (reliable, transient)
            self._measured.clear()
            self._trial = None
            self._failed = self._rest = 0

    def judge(
        self, stage: int, clock_s: float, predicted: Mapping[int, float], clocks_left: int, change_s: float
    ) -> StageDecision | None:
        """Judge a window in `stage` that is over, with `clock_s` seconds per clock. Returns the decision; None: go on
        as before."""
        assert all(self._machines), "a stage is chosen where there are machines of both tiers"
        trial, self._trial = self._trial, None
        before_s = self._measured.get(stage)
        if trial is None and before_s and abs(clock_s / before_s - 1) > self.trial_rule.drift:
            self._measured.clear()
        self._measured[stage] = clock_s
        if trial is not None and stage != trial.stage:
            return self._end(trial, stage, clock_s)
        if self._rest > 0:
            self._rest -= 1
            return None
        return self._begin(stage, clock_s, predicted, clocks_left, change_s)

    def _end(self, trial: _Trial, stage: int, clock_s: float) -> StageDecision | None:
        wanted_s = (1 - self.trial_rule.keep_gain) * trial.clock_s
        if trial.first_s == math.inf and wanted_s < clock_s <= (1 + self.trial_rule.doubt) * trial.clock_s:
            self._trial = replace(trial, first_s=clock_s)
            return None
        clock_s = self._measured[stage] = min(clock_s, trial.first_s)
        compared = f"{clock_s:.3g} s a clock, {trial.clock_s:.3g} s in stage {trial.stage}"
        if clock_s <= wanted_s:
            return StageDecision(Move.KEEP, stage, self.thresholds, f"stage {stage} stays: {compared}")
        self._failed += 1
        self._rest = 1 << self._failed
        return self._to(Move.TAKE_BACK, trial.stage, f"back from stage {stage} to {trial.stage}: {compared}")

    def _begin(
        self, stage: int, clock_s: float, predicted: Mapping[int, float], clocks_left: int, change_s: float
    ) -> StageDecision | None:
        expected = {s: self._measured.get(s, seconds) for s, seconds in predicted.items() if s != stage}
        if not expected:
            return None
        best = min(expected, key=lambda s: expected[s])
        gain_s = clock_s - expected[best]
        if gain_s <= self.trial_rule.try_gain * clock_s:
            return None
        if gain_s * clocks_left <= self.trial_rule.worth * change_s:
            return None
        self._trial = _Trial(stage, clock_s)
        how = "was measured" if best in self._measured else "is predicted"
        others = ", ".join(
            f"stage {s} {'measured' if s in self._measured else 'predicted'} at {expected[s]:.3g} s"
            for s in sorted(expected)
            if s != best
        )
        reason = f"stage {best} is tried: {expected[best]:.3g} s a clock {how}, stage {stage} takes {clock_s:.3g} s"
        return self._to(Move.TRY, best, reason + (f" ({others})" if others else ""))

    def _to(self, move: Move, stage: int, reason: str) -> StageDecision:
        reliable, transient = map(len, self._machines)
        before, self.thresholds = self.thresholds, moved(self.thresholds, transient / reliable, stage)
        old, new = (" and ".join(f"{t:g}:1" for t in pair) for pair in (before, self.thresholds))
        return StageDecision(move, stage, self.thresholds, f"{reason}; thresholds {old} become {new}")
