"""The bundles of one worker: dealt to it, being computed, or kept until every partition has counted them.

A worker keeps the contributions of a bundle until all partitions have acknowledged them, so that a membership change in
between needs no second computation, and drops them when a rollback starts another timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agileml.core.parameters.fold import Contribution
from agileml.core.protocol.commands import Begin, Compute, Computed
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.job import Job
from agileml.core.protocol.view import ClockPlan, View
from straggler.coverage import Units, union

Key = tuple[int, Units]  # a clock and a bundle of it


@dataclass
class Kept:
    """The contributions of a bundle that are computed, by partition, and the partitions that have counted them."""

    contributions: dict[int, Contribution] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    compute_s: float = 0.0


class WorkerBundles:
    """The bundles of the worker `me` under the newest view."""

    def __init__(self, me: str, job: Job) -> None:
        self.partitions: tuple[int, ...] = ()  # those that this worker reads and pushes
        self._me, self._job = me, job
        self._deal: Deal | None = None  # under the view
        self._kept: dict[Key, Kept] = {}
        self._computing: set[Key] = set()  # at the shell, in this timeline
        self._orders: list[Compute] = []  # computations that may be under way
        # Bundles at the shell that are to be dropped, with the number of contributions still to come.
        self._void: dict[Key, int] = {}
        self._recut: dict[int, tuple[Units, ...]] = {}  # by clock, what is left after giving units away

    # -- dealt ------------------------------------------------------------------------------------------------

    def adopt(self, view: View, *, is_new_timeline: bool) -> None:
        """Take the deal of a new view: keep what is computed in its timeline, and abort what it wants no more."""
        if is_new_timeline:
            self._kept.clear()
            self._void.clear()
        for key in [key for key in self._computing if key[0] in self._recut]:
            self.drop(key)
        self._recut.clear()  # the view deals units that were given away anew
        self._deal = Deal(self._job, view)
        self.partitions = self._deal.partitions(self._me)
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= view.base}
        self._abort_unwanted(view)

    def _abort_unwanted(self, view: View) -> None:
        """Abort computations of which this view wants no bundle from this worker."""
        orders, self._orders = self._orders, []
        for order in filter(self._is_under_way, orders):
            dealt = self.of(order.clock) if order.timeline == self._job.timeline_of(view) else ()
            if set(order.bundles) & set(dealt or ()):
                self._orders.append(order)
                continue
            order.cursor.abort()
            for bundle in order.bundles:
                self.drop((order.clock, bundle))

    def learn(self, plan: ClockPlan) -> None:
        """Deal a clock as partition 0 has planned it."""
        assert self._deal is not None
        self._deal.learn(plan)

    def of(self, clock: int) -> tuple[Units, ...] | None:
        """The bundles of a clock that the worker computes under the present view; None while they are not planned."""
        assert self._deal is not None
        return self._recut.get(clock) or self._deal.bundles(clock, self._me)

    def helps(self, clock: int) -> bool:
        """True for a clock of the present view in which workers help each other."""
        return self._deal is not None and self._deal.helps(clock)

    def dealt_to(self, worker: str, clock: int) -> Units:
        """The units of a clock that any worker was dealt under the present view; none while they are not planned."""
        return union(self._deal.bundles(clock, worker) or ()) if self._deal is not None else 0

    def missing(self, clock: int) -> Begin | None:
        """The bundles of a clock that are neither computed nor being computed; None while it has no plan."""
        assert self._deal is not None
        if (bundles := self.of(clock)) is None:
            return None
        missing = [b for b in bundles if (clock, b) not in self._kept and (clock, b) not in self._computing]
        return Begin(self._job.timeline_of(self._deal.view), clock, tuple(missing))

    def give_away(self, clock: int, kept: tuple[Units, ...]) -> None:
        """Give the tail of this worker's units of a clock to others; it keeps these bundles."""
        before = self.of(clock) or ()
        self._recut[clock] = kept
        self._computing -= {(clock, bundle) for bundle in before if bundle not in kept}
        self._computing |= {(clock, bundle) for bundle in kept if bundle not in before}

    def take_back(self, clock: int, bundle: Units) -> None:
        """Compute a bundle here that was given away."""
        self._recut[clock] = (*(self.of(clock) or ()), bundle)
        self._computing.add((clock, bundle))

    def leave(self, clock: int) -> None:
        """Drop a clock and those before it: the worker has gone on."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] > clock}
        self._recut.pop(clock, None)

    # -- being computed -----------------------------------------------------------------------------------------

    @property
    def is_computing(self) -> bool:
        """True while a bundle is at the shell."""
        return bool(self._computing)

    def begin(self, order: Compute) -> None:
        """Record that the shell computes the bundles of an order."""
        self._computing |= {(order.clock, bundle) for bundle in order.bundles}
        self._orders = [earlier for earlier in self._orders if self._is_under_way(earlier)] + [order]

    def abort(self, order: Compute) -> None:
        """Abort an order: none of its bundles is computed."""
        self._computing -= {(order.clock, bundle) for bundle in order.bundles}
        order.cursor.abort()

    def _is_under_way(self, order: Compute) -> bool:
        return any((order.clock, bundle) in self._computing for bundle in order.bundles)

    def awaits(self, key: Key) -> bool:
        """True for a bundle that is being computed."""
        return key in self._computing

    def drop(self, key: Key) -> None:
        """Wait no longer for a bundle that is being computed: dealt again later, it is computed whole."""
        if key in self._computing:
            self._computing.discard(key)
            self._kept.pop(key, None)
            self._void.pop(key, None)

    def forget(self, clock: int, bundle: Units) -> None:
        """Drop the contributions of a bundle, whose arrays were overwritten. It is computed again if still dealt."""
        key = (clock, bundle)
        kept = self._kept.pop(key, None)
        if key in self._computing and key not in self._void:
            self._void[key] = len(self.partitions) - (len(kept.contributions) if kept else 0)

    def is_void(self, key: Key) -> bool:
        """True for a bundle that was forgotten while it was being computed."""
        return key in self._void

    def came_void(self, key: Key, contributions: int) -> bool:
        """Drop contributions of a forgotten bundle. True if they were the last: it may be computed again."""
        self._void[key] -= contributions
        if self._void[key]:
            return False
        del self._void[key]
        self._computing.discard(key)
        return True

    # -- kept ---------------------------------------------------------------------------------------------------

    @property
    def has_kept(self) -> bool:
        """True while contributions are kept."""
        return bool(self._kept)

    def keep(self, event: Computed) -> Kept:
        """The place for the contributions of a bundle that is being computed."""
        kept = self._kept.setdefault((event.clock, event.bundle), Kept())
        kept.compute_s = event.compute_s
        return kept

    def finish(self, key: Key) -> None:
        """Record that all contributions of a bundle are here."""
        self._computing.discard(key)

    def kept(self, clock: int) -> list[tuple[Units, Kept]]:
        """The contributions of the clock's bundles, as far as they are computed."""
        found = ((bundle, self._kept.get((clock, bundle))) for bundle in self.of(clock) or ())
        return [(bundle, kept) for bundle, kept in found if kept is not None]

    def acked(self, clock: int, bundle: Units, partition: int) -> bool:
        """Record that a partition has counted a bundle; False if the bundle is not kept any more."""
        if (kept := self._kept.get((clock, bundle))) is None:
            return False
        kept.acked.add(partition)
        return True

    def has_computed(self, clock: int) -> bool:
        """True when all bundles of a clock are computed."""
        return all(kept and len(kept.contributions) == len(self.partitions) for kept in self._all(clock))

    def has_computed_for(self, clock: int, partition: int) -> bool:
        """True when the contributions of all bundles of a clock to a partition are computed."""
        return all(kept and partition in kept.contributions for kept in self._all(clock))

    def are_counted(self, clock: int) -> bool:
        """True when every partition has counted all bundles of a clock."""
        return all(kept and len(kept.acked) == len(self.partitions) for kept in self._all(clock))

    def _all(self, clock: int) -> list[Kept | None]:
        """The contributions of each of the clock's bundles; None where none is computed."""
        return [self._kept.get((clock, bundle)) for bundle in self.of(clock) or ()]
