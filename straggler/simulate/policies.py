"""When a worker may go on and with how many units: the schemes' policies as the simulator and an engine ask them.

A *round* is a worker's own piece of work between two questions: a clock of BSP, SSP, LB-BSP and FlexRR; one
iteration drawn from the common sequence in ASP and ElasticBSP, where workers make different numbers of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from straggler.consistency import Consistency, Read
from straggler.elasticbsp import ElasticBsp
from straggler.lbbsp.policy import LbBsp
from straggler.speed.predictors import FREE, Resources


@dataclass(frozen=True)
class Measured:
    """A worker's measurement of a round: the time of its own computing, and the resources that were free for it."""

    worker: int
    units: int
    seconds: float
    resources: Resources


class SchemePolicy(Protocol):
    """How a scheme keeps its workers together."""

    @property
    def in_clocks(self) -> bool:
        """Rounds are clocks that all workers share, so that they can be complete."""

    @property
    def at_barrier(self) -> bool:
        """All workers have arrived; `open_barrier` lets them go on."""

    def open_barrier(self, now_ns: int) -> None:
        """Plan the next superstep, once every worker knows that all have arrived."""

    def deal(self, worker: int, round_: int, version: int, now_ns: int) -> dict[int, int] | None:
        """The units of this round by worker, the asking worker among them; None: it waits.

        `version`: how many clocks are complete.
        """

    def measured(self, what: Measured) -> None:
        """A worker finished its own work of a round."""

    def counted(self, worker: int, round_: int) -> bool:
        """All of a worker's round was counted. True: workers that wait should ask again."""

    def left(self, worker: int) -> None:
        """A worker left."""


class _NoBarrier:
    at_barrier = False

    def open_barrier(self, now_ns: int) -> None:
        raise AssertionError("there is no barrier to open")

    def counted(self, worker: int, round_: int) -> bool:
        return False  # only the version makes workers wait


class ClockPolicy(_NoBarrier):
    """BSP, SSP, FlexRR, LB-BSP: the same clocks for all, with `units` x workers units each (or `total`).

    Shares are in proportion to `shares`, or planned by `balancer`, which asks `look(worker, now_ns)` for
    the resources that are free for each worker. A clock's plan is fixed when the first worker asks for it.
    """

    in_clocks = True

    def __init__(
        self,
        consistency: Consistency,
        clocks: int,
        units: int,
        shares: list[float],
        balancer: LbBsp[int] | None = None,
        look: Callable[[int, int], Resources] = lambda worker, now_ns: FREE,
        *,
        total: int | None = None,
    ) -> None:
        self.consistency = consistency
        self.clocks = clocks
        self.total = units * len(shares) if total is None else total
        self._shares = dict(enumerate(shares))
        self._balancer = balancer
        self._look = look
        self._plans: dict[int, dict[int, int]] = {}

    def deal(self, worker: int, round_: int, version: int, now_ns: int) -> dict[int, int] | None:
        if round_ >= self.clocks:
            return None
        if self.consistency.read(round_, version, has_previous=False) is Read.WAIT:
            return None
        if round_ not in self._plans:
            self._plans[round_] = self._plan(now_ns)
        return self._plans[round_]

    def _plan(self, now_ns: int) -> dict[int, int]:
        members = tuple(sorted(self._shares))
        if self._balancer is None:
            return in_proportion(self._shares, self.total)
        plan = self._balancer.plan(members, {w: self._look(w, now_ns) for w in members})
        return dict(zip(members, plan.units, strict=True))

    def measured(self, what: Measured) -> None:
        if self._balancer is not None and what.worker in self._shares and what.units > 0:
            self._balancer.observe(what.worker, what.units, what.seconds, what.resources)

    def left(self, worker: int) -> None:
        self._shares.pop(worker, None)
        if self._balancer is not None:
            self._balancer.forget(worker)


class PoolPolicy(_NoBarrier):
    """SSP and ASP with one pool: whoever is free draws the next bundle, those of the earliest clock first.

    bundles: of each clock the units of its bundles. slack: clocks before a bundle's own that may be open when it is
    begun (SSP); None: any (ASP, where no worker waits).
    """

    in_clocks = False  # a worker's rounds are its bundles

    def __init__(self, bundles: Sequence[Sequence[int]], slack: int | None = None) -> None:
        self._slack = slack
        self._left = ((clock, units) for clock, each in enumerate(bundles) for units in each)
        self._next = next(self._left, None)
        self._open = Counter({clock: len(each) for clock, each in enumerate(bundles)})
        self._complete = 0  # clocks
        self._clocks: dict[tuple[int, int], int] = {}  # (worker, round) -> the clock of the bundle

    def deal(self, worker: int, round_: int, version: int, now_ns: int) -> dict[int, int] | None:
        if self._next is None:
            return None
        clock, units = self._next
        if self._slack is not None and clock > self._complete + self._slack:
            return None
        self._next = next(self._left, None)
        self._clocks[worker, round_] = clock
        return {worker: units}

    def measured(self, what: Measured) -> None:
        """A pool plans nothing."""

    def counted(self, worker: int, round_: int) -> bool:
        before = self._complete
        self._open[self._clocks.pop((worker, round_))] -= 1
        while self._open.get(self._complete) == 0:
            self._complete += 1
        return self._slack is not None and self._complete > before

    def left(self, worker: int) -> None:
        """A pool keeps nothing about members."""


class SuperstepPolicy:
    """ElasticBSP: iterations from one sequence; in each superstep as many per worker as the policy says."""

    in_clocks = False

    def __init__(self, policy: ElasticBsp, workers: int, iterations: int, units: int) -> None:
        self.policy = policy
        self.units = units
        self.left_over = iterations
        self.supersteps = 0
        self._to_start = dict.fromkeys(range(workers), 0)
        self._running: set[int] = set()

    @property
    def at_barrier(self) -> bool:
        return not self._running and not any(self._to_start.values()) and self.left_over > 0

    def open_barrier(self, now_ns: int) -> None:
        plan = self.policy.plan(now_ns, tuple(sorted(self._to_start)), self.left_over)
        self.supersteps += 1
        self._to_start = dict(zip(plan.workers, plan.units, strict=True))
        self.left_over -= sum(plan.units)

    def deal(self, worker: int, round_: int, version: int, now_ns: int) -> dict[int, int] | None:
        self._running.discard(worker)
        if self._to_start.get(worker, 0) == 0:
            return None
        self._to_start[worker] -= 1
        self._running.add(worker)
        return {worker: self.units}

    def measured(self, what: Measured) -> None:
        if what.worker in self._to_start:
            self.policy.observe(what.worker, max(1, round(what.seconds * 1e9)))

    def counted(self, worker: int, round_: int) -> bool:
        return False  # only the barrier makes workers wait

    def left(self, worker: int) -> None:
        self._running.discard(worker)
        self.left_over += self._to_start.pop(worker, 0)
        self.policy.forget(worker)


def in_proportion(shares: Mapping[int, float], total: int) -> dict[int, int]:
    """Whole units that sum to `total`: the running sums, rounded. Even ones, if all with a share have left."""
    whole = sum(shares.values())
    given, reached, plan = 0, 0.0, {}
    if not whole:
        shares, whole = dict.fromkeys(shares, 1.0), float(len(shares))
    for worker, share in shares.items():
        reached += share
        stop = round(total * reached / whole)
        plan[worker] = stop - given
        given = stop
    return plan
