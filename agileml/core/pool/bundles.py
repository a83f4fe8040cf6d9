"""The bundles of a view that no worker has drawn yet, at the server of partition 0."""

from __future__ import annotations

from collections import Counter

from agileml.core.protocol.deal import Deal
from agileml.core.protocol.job import Job
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.view import View
from straggler.coverage import Units


class BundlePool:
    """Hands out every bundle of a view's clocks once, those of the earliest clock first.

    A worker gets its own first, whose items it has loaded, then those of the worker that has drawn least. Nothing of
    this is kept: another view has a pool of its own, of the bundles that some partition lacks.
    """

    def __init__(self, job: Job, view: View) -> None:
        self.epoch = view.epoch
        self._job = job
        self._deal = Deal(job, view)
        self._workers = frozenset(view.workers())
        self._clock = view.base - 1
        self._left: list[tuple[str, Units]] = []  # (worker whose share it is, bundle) of `_clock`
        self._ahead: set[tuple[int, Units]] = set()  # bundles of later clocks that are drawn
        self._answers: dict[str, BundleDrawn] = {}  # by worker, the last
        self.draws: Counter[str] = Counter()  # bundles of each worker so far

    def draw(self, worker: str, message: DrawBundle) -> BundleDrawn | None:
        """The answer to a worker; None where nothing is left, or where it asks for what it was told long ago."""
        last = self._answers.get(worker)
        if last is not None and message.number <= last.number:
            return last if message.number == last.number else None
        if worker not in self._workers:
            return None
        assert message.number == (last.number + 1 if last else 0), (worker, message, last)
        found = self._wanted(message) or self._next(worker)
        if found is None:
            return None
        self.draws[worker] += 1
        answer = self._answers[worker] = BundleDrawn(self.epoch, message.number, *found)
        return answer

    def _wanted(self, message: DrawBundle) -> tuple[int, Units] | None:
        """The bundle that a worker has begun already, if nobody has drawn it."""
        for clock, bundle in message.wants:
            if clock > self._clock:
                is_free = (clock, bundle) not in self._ahead
                if is_free and any(each == bundle for _, each in self._deal.assignments(clock)):
                    self._ahead.add((clock, bundle))
                    return clock, bundle
            for each in self._left if clock == self._clock else ():
                if each[1] == bundle:
                    self._left.remove(each)
                    return clock, bundle
        return None

    def _next(self, worker: str) -> tuple[int, Units] | None:
        while not self._left:
            if self._clock + 1 >= self._job.clocks:
                return None
            self._clock += 1
            dealt = self._deal.assignments(self._clock)
            self._left = [each for each in dealt if (self._clock, each[1]) not in self._ahead]
        found = min(self._left, key=lambda each: (each[0] != worker, self.draws[each[0]]))
        self._left.remove(found)
        return self._clock, found[1]
