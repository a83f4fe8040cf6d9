"""LB-BSP as a policy: measured times in, units per worker out (Chen et al., algorithm 1's BatchSizeManager).

The simulator and running jobs ask the same object. Its answer depends on its arguments alone, to the last bit: the
machines of an all-reduce each keep one, and all must come to the same plan.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from straggler.lbbsp.messages import SumsOf, best_units, messages_s, one_each
from straggler.lbbsp.remedy import Choice, divided_s, duration_s
from straggler.speed.predictors import FREE, Resources, SpeedPredictor

Worker = TypeVar("Worker", bound=Hashable)

WINDOW = 8  # of a worker's latest times of messages, and prediction errors
ENOUGH = 3  # of either, to know how large they are
UNKNOWN = 0.1  # the error of a prediction before that
TIMES = 3.0  # a gain must be so many times what the predictions are usually wrong by
AVERAGED = 16  # iterations, that a prediction is about the mean of once there are so many


@dataclass(frozen=True)
class UnitPlan(Generic[Worker]):
    """The units of a clock by worker: `units[i]` for `workers[i]`, the expected duration, and why.

    `helps`: workers that are ahead take over units of those that are behind. `chosen`: how work is shared out from this
    clock on, where that was decided now.
    """

    workers: tuple[Worker, ...]
    units: tuple[int, ...]
    predicted_s: float
    reason: str
    helps: bool = False
    chosen: Choice | None = None


class Balancer(Protocol[Worker]):
    """Decides how many units of the next clock each worker gets."""

    def observe(
        self,
        worker: Worker,
        units: int,
        seconds: float,
        resources: Resources = FREE,
        *,
        other_s: float = 0.0,
        sums: int = 1,
        expected: float | None = None,
    ) -> None:
        """The worker computed `units` units in `seconds` with these resources, and spent `other_s` on messages, of
        which it sent `sums`.

        `expected`: the units per second that it expects of itself from now on, if it has a predictor of its own.
        """

    def clock_took(self, seconds: float) -> None:
        """The clock whose workers were observed last took so long, from its parameters to its last update."""

    def plan(
        self, workers: tuple[Worker, ...], resources: Mapping[Worker, Resources] | None = None
    ) -> UnitPlan[Worker]:
        """The units of the next clock; `resources`: what each worker has now."""


class LbBsp(Generic[Worker]):
    """The policy for workers whose time grows with their units: x / v + c, v predicted and c the time of messages.

    `units`: units of one clock, over all workers. `make_predictor`: a new predictor for each worker. `home`: the units
    that each worker has where nothing is known yet; None: equal shares. A worker that has not been measured is taken
    to be as fast, for its units at home, as the mean of the others. `sums_of`: how many sums each worker sends with
    these units; None: one.

    `hold`: a new plan replaces the last one only if it is expected to save this share of the clock and three times what
    the predictions are usually wrong by, so that noise moves nothing. None: every plan is the best one.
    """

    def __init__(
        self,
        units: int,
        make_predictor: Callable[[], SpeedPredictor],
        minimum: int = 1,
        *,
        home: Mapping[Worker, int] | None = None,
        hold: float | None = None,
        sums_of: SumsOf | None = None,
    ) -> None:
        if units < 1 or minimum < 0:
            raise ValueError(f"units is {units}, minimum {minimum}; expected at least 1 and 0")
        if hold is not None and not 0 <= hold < 1:
            raise ValueError(f"hold is {hold}; expected a share of a clock, at least 0 and below 1")
        for worker, count in (home or {}).items():
            if count < 1:  # nothing says how fast it would be
                raise ValueError(f"worker {worker}: {count} units at home; expected at least 1")
        self.units = units
        self.minimum = minimum
        self.hold = hold
        self.sums_of = sums_of or one_each
        self._home = dict(home or {})
        self._make_predictor = make_predictor
        self._measured: dict[Worker, _Measured] = {}
        self._last: dict[Worker, int] | None = None
        # The best plan over a division in which each sends one sum: while it stays so, nothing need be solved.
        self._slack = 1.0

    def observe(
        self,
        worker: Worker,
        units: int,
        seconds: float,
        resources: Resources = FREE,
        *,
        other_s: float = 0.0,
        sums: int = 1,
        expected: float | None = None,
    ) -> None:
        """Record that the worker did `units` units in `seconds` with these resources (push of v^{k-1}), and spent
        `other_s` between two clocks on anything else: to pull, and to send `sums` sums. `expected` counts instead of
        what the predictor here says, until the next measurement."""
        if units <= 0 or not 0 < seconds < math.inf:
            raise ValueError(f"worker {worker}: {units} units in {seconds} s; expected positive numbers")
        if not 0 <= other_s < math.inf:
            raise ValueError(f"worker {worker}: {other_s} s for messages; expected at least 0")
        if sums < 1:
            raise ValueError(f"worker {worker}: {sums} sums; expected at least 1")
        if expected is not None and not 0 < expected < math.inf:
            raise ValueError(f"worker {worker}: {expected} units/s expected; a speed is positive and finite")
        if (measured := self._measured.get(worker)) is None:
            measured = self._measured[worker] = _Measured(self._make_predictor())
        measured.observe(units, seconds, resources, other_s, sums, expected)

    def clock_took(self, seconds: float) -> None:
        """Nothing to learn: the workers' own times say all."""

    def forget(self, worker: Worker) -> None:
        """Drop a worker that left."""
        self._measured.pop(worker, None)

    def plan(
        self, workers: tuple[Worker, ...], resources: Mapping[Worker, Resources] | None = None
    ) -> UnitPlan[Worker]:
        """The units of the next clock; `resources`: what each worker has now (c^k, m^k)."""
        known = {
            worker: self._measured[worker].speed((resources or {}).get(worker, FREE))
            for worker in workers
            if worker in self._measured
        }
        if not known and self._home.keys() >= set(workers):
            return UnitPlan(workers, tuple(self._home[w] for w in workers), 0.0, "no worker is measured yet")
        speeds = self._speeds(workers, known)
        transfers_s = [each.transfer_s if (each := self._measured.get(worker)) else 0.0 for worker in workers]
        why = (
            f"{len(known)} of {len(workers)} workers measured, {min(speeds):.4g} to {max(speeds):.4g} "
            "units/s expected"
        )
        last = self._last_for(workers) if self.hold is not None else None
        last_s = least = 0.0
        if last is not None and self.hold is not None:
            last_s = duration_s(last, speeds, messages_s(last, transfers_s, self.sums_of))
            least = self.hold + TIMES * self._doubt(workers)
            gain = 1.0 - self._slack * self._divided_s(speeds, transfers_s) / last_s
            if gain < least:  # nothing to solve
                return UnitPlan(workers, last, last_s, why + _held(gain, least, " at most"))
        best, step = best_units(self.units, speeds, transfers_s, self.sums_of, self.minimum)
        best_s = duration_s(best, speeds, messages_s(best, transfers_s, self.sums_of))
        if self.sums_of is not one_each:
            self._slack = best_s / self._divided_s(speeds, transfers_s)
        if last is not None and (gain := 1.0 - best_s / last_s) < least:
            return UnitPlan(workers, last, last_s, why + _held(gain, least))
        self._last = dict(zip(workers, best, strict=True))
        if step > 1:
            why += f"; in steps of {step} units, of which no worker sends more than {max(self.sums_of(best))} sums"
        return UnitPlan(workers, best, best_s if known else 0.0, why)

    def _speeds(self, workers: tuple[Worker, ...], known: Mapping[Worker, float]) -> list[float]:
        """Units per second of each worker; of one that is not measured, in proportion to its units at home."""
        weights = {worker: float(self._home.get(worker, 1)) for worker in workers}
        usual = sum(known[w] / weights[w] for w in workers if w in known) / len(known) if known else 1.0
        return [known.get(worker, usual * weights[worker]) for worker in workers]

    def _divided_s(self, speeds: list[float], transfers_s: list[float]) -> float:
        """When all would end together, each with one sum."""
        return divided_s(self.units, speeds, [2 * each for each in transfers_s])

    def _last_for(self, workers: tuple[Worker, ...]) -> tuple[int, ...] | None:
        """The plan that holds until a better one is found: the last one, or the units at home."""
        last = self._last if self._last is not None else self._home
        return tuple(last[worker] for worker in workers) if last.keys() == set(workers) else None

    def _doubt(self, workers: tuple[Worker, ...]) -> float:
        """How far off the predictions may be, relative to the speed, in the mean over the workers."""
        unknown = [UNKNOWN] * sum(worker not in self._measured for worker in workers)
        known = [self._measured[worker].doubt for worker in workers if worker in self._measured]
        return math.fsum(known + unknown) / len(workers)


def _held(gain: float, least: float, at_most: str = "") -> str:
    return f"; as before: another deal would save {gain:.1%}{at_most}, less than {least:.1%}"


class _Measured:
    """One worker's predictor, and two medians that change with its measurements alone: a plan asks for those of all.

    `transfer_s`: the usual time of one of the worker's messages; the median, as single ones may wait long for
    something else.
    `doubt`: how far off its predictions may be, relative to the speed, because single iterations differ: the usual
    difference, over the root of how many went into the prediction. The median of the differences does not heed that the
    worker has just changed its speed.
    """

    def __init__(self, predictor: SpeedPredictor) -> None:
        self._predictor = predictor
        self._expected: float | None = None  # by the worker's own predictor
        self.transfer_s = 0.0
        self.doubt = UNKNOWN
        self._transfers_s: deque[float] = deque(maxlen=WINDOW)
        self._errors: deque[float] = deque(maxlen=WINDOW)
        self._count = 0

    def speed(self, resources: Resources) -> float:
        """The units per second of the worker's next iteration."""
        return self._predictor.predict(resources) if self._expected is None else self._expected

    def observe(
        self,
        units: int,
        seconds: float,
        resources: Resources,
        other_s: float,
        sums: int,
        expected: float | None,
    ) -> None:
        if self._count > 0:
            expected_s = units / self.speed(resources) + (1 + sums) * self.transfer_s
            self._errors.append(abs(expected_s / (seconds + other_s) - 1.0))
        self._predictor.observe(units / seconds, resources)
        self._expected = expected
        self._transfers_s.append(other_s / (1 + sums))
        self._count += 1
        if len(self._transfers_s) >= ENOUGH:
            self.transfer_s = upper_median(self._transfers_s)
        usual = upper_median(self._errors) if len(self._errors) >= ENOUGH else UNKNOWN
        self.doubt = usual / math.sqrt(min(AVERAGED, self._count))


def upper_median(numbers: Iterable[float]) -> float:
    """The upper median: `statistics.median` takes five times as long, and a plan asks for it for every worker."""
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
