"""Which workers of a schedule send what to which others."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.run.links import Traffic
from pipeline.schedule.actions import Schedule


@dataclass(frozen=True, order=True)
class Route:
    """One direction between two workers (numbers in the schedule)."""

    source: int
    target: int
    traffic: Traffic

    @property
    def name(self) -> str:
        """A short name that is unique in the run."""
        return f"{self.source}-{self.target}-{self.traffic.value[:3]}"


def routes(schedule: Schedule) -> list[Route]:
    """All routes that a schedule's messages take."""
    found: set[Route] = set()
    for stage in range(schedule.stages):
        first, count = schedule.first_workers[stage], schedule.replicas[stage]
        for a in range(first, first + count):
            found |= {Route(a, b, Traffic.SUMS) for b in range(first, first + count) if a != b}
    for b in range(1, schedule.minibatches + 1):
        for stage in range(schedule.stages - 1):
            low, high = schedule.worker(stage, b), schedule.worker(stage + 1, b)
            found |= {Route(low, high, Traffic.ACTIVATIONS), Route(high, low, Traffic.GRADIENTS)}
    return sorted(found)


def most_used(schedule: Schedule, route: Route) -> int:
    """Messages of a route that are on their way or in use at a time: of the stage in front, as many as it has in
    flight, and one that is just being written; of sums those of the rounds that replicas are apart."""
    if route.traffic is Traffic.SUMS:
        return 3
    return schedule.in_flight[schedule.stage_of(min(route.source, route.target))] + 1


def slots(schedule: Schedule) -> int:
    """Messages of one route that may be on their way or in use at a time."""
    return 2 * schedule.in_flight[0] * schedule.replicas[0] + 2
