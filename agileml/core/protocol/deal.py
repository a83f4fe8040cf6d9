"""Who computes which units of which clock: the one answer that workers, all-reduce, changes and the stage rule use.

A clock that the view lists in `open` is dealt as the list says; every other clock is dealt by the view's share.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.core.protocol.job import Job
from agileml.core.protocol.view import NOBODY, Share, View
from straggler.coverage import Units, aligned_subtrees, ranges


def bundles_of(job: Job, units: Units) -> tuple[Units, ...]:
    """The bundles in which one worker contributes a set of units: aligned subtrees in a deterministic job, otherwise
    one."""
    if job.deterministic:
        return tuple(aligned_subtrees(units))
    return (units,) if units else ()


class Deal:
    """The bundles of every clock under one view."""

    def __init__(self, job: Job, view: View) -> None:
        self._view = view
        self._shares = {worker: bundles_of(job, units) for worker, units in view.share}

    def bundles(self, clock: int, worker: str) -> tuple[Units, ...]:
        """The bundles of a clock that a worker computes."""
        dealt = self._view.open_at.get(clock)
        if dealt is not None:
            return tuple(bundle for node, bundle in dealt if node == worker)
        return self._shares.get(worker, ())

    def assignments(self, clock: int) -> tuple[tuple[str, Units], ...]:
        """All (worker, bundle) pairs of a clock."""
        dealt = self._view.open_at.get(clock)
        if dealt is not None:
            return dealt
        return tuple((worker, bundle) for worker, bundles in self._shares.items() for bundle in bundles)


# -- shares and slices --------------------------------------------------------------------------------------


def share_of_slices(job: Job, workers: Sequence[str]) -> Share:
    """The share that gives each slice to a worker; `workers[s]` is the worker of slice s."""
    units: dict[str, Units] = {}
    for index, node in enumerate(workers):
        units[node] = units.get(node, 0) | job.units_of_slice(index)
    return tuple(units.items())


def workers_of_slices(job: Job, share: Share) -> tuple[str, ...]:
    """The reverse of `share_of_slices`: the worker of each slice, NOBODY where there is none."""
    workers = [NOBODY] * job.slices
    for node, units in share:
        for start, stop in ranges(units):
            workers[start // job.parts : stop // job.parts] = [node] * ((stop - start) // job.parts)
    return tuple(workers)
