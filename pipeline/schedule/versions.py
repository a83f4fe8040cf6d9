"""Which version of the weights each forward and backward uses (thesis 5.3.3), and how many a worker keeps.

A version is named by the number of minibatches whose updates are in it. A stage updates after each round: one
minibatch per replica, gradients averaged (GPipe and 1F1B with a flush: after each group, summed; double-buffered:
after each group, averaged). The pipeline empties at the end of an epoch; from then on every worker has all updates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.schedule.actions import Kind, Schedule
from pipeline.schedule.rules import epoch_bounds, newest, update_members


class Versions(Enum):
    """How forward and backward find their weights.

    STASHING: a forward uses the newest version at its worker, the backward the same one. VERTICAL_SYNC: the
    version that the minibatch saw at the input stage, at every stage. NONE: forward and backward each use the
    newest. DOUBLE_BUFFERED: two versions in all; weights change once per group of minibatches, a group runs
    on the weights from before the group ahead of it.
    """

    STASHING = "stashing"
    VERTICAL_SYNC = "vertical-sync"
    NONE = "none"
    DOUBLE_BUFFERED = "double-buffered"


class VersionsError(ValueError):
    """A combination of schedule and versions that cannot be; the message is one sentence."""


@dataclass(frozen=True)
class Trace:
    """uses: per worker, the version of each of its actions. peak: per worker, the most versions that it has
    to keep at once, the newest included. group: minibatches per update (double-buffered), else None."""

    schedule: Schedule
    mode: Versions
    uses: tuple[tuple[int, ...], ...]
    peak: tuple[int, ...]
    group: int | None

    def __str__(self) -> str:
        """As a schedule's text, each action with @version."""
        head, *lines = str(self.schedule).splitlines()
        out = [f"{head} versions={self.mode.value}"]
        for line, versions in zip(lines, self.uses, strict=True):
            name, _, actions = line.partition(":")
            marked = " ".join(f"{a}@{v}" for a, v in zip(actions.split(), versions, strict=True))
            out.append(f"{name}: {marked}")
        return "\n".join(out) + "\n"


def trace(schedule: Schedule, mode: Versions, *, group: int | None = None) -> Trace:
    """The versions that a schedule's actions use.

    group: minibatches per update for DOUBLE_BUFFERED, by default as many as are in flight. Raises
    VersionsError if it is smaller than that.
    """
    most = schedule.in_flight[0] * schedule.replicas[0]
    if mode is Versions.DOUBLE_BUFFERED:
        group = most if group is None else group
        if group < most:
            raise VersionsError(
                f"double-buffered weights need groups no smaller than the {most} minibatches in flight, "
                f"found {group}"
            )
    elif group is not None:
        raise VersionsError(f"groups are for double-buffered weights, not for {mode.value}")
    entry = {
        action.minibatch: version
        for worker in range(schedule.replicas[0])
        for action, version in zip(schedule.workers[worker], newest(schedule, worker)[0], strict=True)
        if action.kind is Kind.FORWARD
    }
    uses, peaks = [], []
    for worker in range(len(schedule.workers)):
        versions, after = _worker(schedule, worker, mode, group, entry)
        uses.append(tuple(versions))
        peaks.append(_peak(versions, after))
    return Trace(schedule, mode, tuple(uses), tuple(peaks), group)


def _worker(
    schedule: Schedule, worker: int, mode: Versions, group: int | None, entry: dict[int, int]
) -> tuple[list[int], list[int]]:
    """The version of each action at a worker, and the newest there after it."""
    stage = schedule.stage_of(worker)
    before, after = newest(schedule, worker)
    forward: dict[int, int] = {}
    versions = []
    for index, action in enumerate(schedule.workers[worker]):
        b = action.minibatch
        if mode is Versions.DOUBLE_BUFFERED:
            assert group is not None
            versions.append(_double_buffered(schedule, b, group))
            if action.kind is not Kind.FORWARD:
                members = update_members(schedule, stage, b, group)
                after[index] = members[-1] if b == members[-1] else members[0] - 1
            else:
                after[index] = versions[-1]
        elif mode is Versions.VERTICAL_SYNC:
            versions.append(_not_newer(schedule, stage, entry[b]))
        elif mode is Versions.STASHING and action.kind is not Kind.FORWARD:
            versions.append(forward[b])
        else:
            versions.append(before[index])
        if action.kind is Kind.FORWARD:
            forward[b] = versions[-1]
    return versions, after


def _double_buffered(schedule: Schedule, minibatch: int, group: int) -> int:
    """Group g of an epoch runs on the weights after group g - 2: W(g+1) = W(g) - nu grad f(W(g-1))."""
    base, _ = epoch_bounds(schedule, minibatch)
    index = (minibatch - 1 - base) // group
    return base + max(index - 1, 0) * group


def _not_newer(schedule: Schedule, stage: int, version: int) -> int:
    """The newest version of a stage that holds no minibatch after `version`."""
    if version == 0 or version in schedule.drains:
        return version
    members = update_members(schedule, stage, version)
    return version if members[-1] == version else members[0] - 1


def _peak(versions: Sequence[int], newest: Sequence[int]) -> int:
    """The most versions that exist at a worker and are still needed, the newest included.

    In one pass: a run of 200,000 minibatches has as many versions, of which few are there at a time.
    """
    last_use = {version: index for index, version in enumerate(versions)}
    to_come = deque(sorted(last_use))
    kept: set[int] = set()  # are there, and some action from now on uses them
    peak, current = 1, 0
    for index, version in enumerate(versions):
        # Up to an action's end its own version and the newest so far are there.
        _arrive(to_come, kept, current)
        peak = max(peak, len(kept | {current}))
        current = max(current, newest[index])
        _arrive(to_come, kept, current)
        if last_use[version] == index:
            kept.discard(version)
        peak = max(peak, len(kept | {current}))
    return peak


def _arrive(to_come: deque[int], kept: set[int], newest: int) -> None:
    """Move the versions up to the newest from those that are still to come to those that are there."""
    while to_come and to_come[0] <= newest:
        kept.add(to_come.popleft())
