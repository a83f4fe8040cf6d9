"""The view: the owner and backup of each partition, the worker of each slice, the clock to resume from. Durable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, total_ordering

from straggler.coverage import Units, parse, show, union

NOBODY = ""

Share = tuple[tuple[str, Units], ...]  # (worker, its units), each worker once


@dataclass(frozen=True)
class ClockPlan:
    """How many units of a clock each worker computes: `units[i]` is for the i-th worker of the view's share. `helps`:
    workers that are ahead take over units of those that are behind."""

    clock: int
    units: tuple[int, ...]
    helps: bool = False


@total_ordering
@dataclass(frozen=True)
class CutId:
    """A cut's name: clock and epoch, so an aborted cut from another epoch cannot be confused with it.

    Cuts are ordered by epoch, then by clock.
    """

    clock: int
    epoch: int

    def __lt__(self, other: CutId) -> bool:
        return (self.epoch, self.clock) < (other.epoch, other.clock)


INITIAL = CutId(0, 0)  # the application's initial values


@dataclass(frozen=True)
class StagesFrom:
    """From `clock` on, these are the stages of a pipeline without a flush: `ends[l]` is the partition behind the last
    of stage l. At `clock` nothing is in flight. `overlapping`: the numbers of the stages that exchange the sums of a
    clock while they compute the next."""

    clock: int
    ends: tuple[int, ...]
    overlapping: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageGroup:
    """A stage of a pipeline: the partitions first .. stop - 1, and its replicas, the machines that compute with all of
    them, each its units of every clock. The machines of the group own the partitions. `overlaps`: they exchange the
    sums of a clock while they compute the next, on weights that are a clock older for it."""

    first: int
    stop: int
    replicas: Share
    overlaps: bool = False

    @property
    def machines(self) -> tuple[str, ...]:
        """The replicas, in the order of their units."""
        return tuple(node for node, _ in self.replicas)

    @property
    def all_units(self) -> Units:
        """The units of a clock."""
        return union(units for _, units in self.replicas)

    def machine_of(self, unit: int) -> str:
        """The replica that computes a unit."""
        return next(node for node, units in self.replicas if units >> unit & 1)


@dataclass(frozen=True)
class View:
    """The arrangement of one epoch: all that is durable about it, and all that nodes need to know.

    `owner[p]` and `backup[p]` name the nodes of partition p. `share` deals the units of every clock that `open` does
    not list; `open` deals exactly the units of a begun clock that some partition still lacks. `previous[s]` is the
    node that computed slice s before and still has its items (NOBODY: none). Workers go on from clock `base`.
    `timeline` is the epoch of the last rollback, `committed` the newest cut that is whole at the backups.
    `stages`: in a pipeline without a flush, all stages that computed the parameters of this timeline, in order of their
    clocks; the last are this view's. The parameters depend on them. `pipeline`: its stages, in order; none in other
    jobs.
    """

    epoch: int
    stage: int
    members: tuple[str, ...]
    owner: tuple[str, ...]
    backup: tuple[str, ...]
    share: Share
    previous: tuple[str, ...]
    base: int
    open: tuple[tuple[int, tuple[tuple[str, Units], ...]], ...]
    timeline: int
    committed: CutId
    stages: tuple[StagesFrom, ...] = ()
    pipeline: tuple[StageGroup, ...] = ()

    @cached_property
    def share_of(self) -> Mapping[str, Units]:
        """worker -> its units of every clock that is not listed in `open`."""
        return dict(self.share)

    @cached_property
    def open_at(self) -> Mapping[int, tuple[tuple[str, Units], ...]]:
        """clock -> (worker, bundle) pairs."""
        return dict(self.open)

    def workers(self) -> list[str]:
        """Nodes that compute."""
        return [node for node, _ in self.share]

    @cached_property
    def member_set(self) -> frozenset[str]:
        return frozenset(self.members)

    @cached_property
    def stage_at(self) -> Mapping[str, StageGroup]:
        """machine -> the stage that it computes, in a pipeline."""
        return {node: stage for stage in self.pipeline for node in stage.machines}

    @cached_property
    def holders(self) -> frozenset[str]:
        """Nodes that own, back up or compute something beyond the open clocks."""
        return frozenset({*self.owner, *self.backup, *self.share_of, *self.stage_at})

    @cached_property
    def group(self) -> tuple[str, ...]:
        """Nodes that own or compute something, sorted: with an all-reduce, the machines that add up together."""
        at_work = {node for _, dealt in self.open for node, _ in dealt}
        return tuple(sorted({*self.owner, *self.share_of, *self.stage_at, *at_work}))

    def last_open(self, node: str) -> int:
        """The last clock for which a node was dealt an open bundle; -1 if there is none."""
        return max((clock for clock, dealt in self.open if any(n == node for n, _ in dealt)), default=-1)

    def partitions_of(self, node: str) -> list[int]:
        """Partitions that a node owns."""
        return [p for p, owner in enumerate(self.owner) if owner == node]

    def to_text(self) -> str:
        """One JSON object; `from_text` reads it back."""
        plain = {
            "epoch": self.epoch,
            "stage": self.stage,
            "members": self.members,
            "owner": self.owner,
            "backup": self.backup,
            "share": {node: show(units) for node, units in self.share},
            "previous": self.previous,
            "base": self.base,
            "open": [[clock, [[node, show(bundle)] for node, bundle in dealt]] for clock, dealt in self.open],
            "timeline": self.timeline,
            "committed": [self.committed.clock, self.committed.epoch],
            "stages": [[each.clock, each.ends, each.overlapping] for each in self.stages],
            "pipeline": [
                [each.first, each.stop, {node: show(units) for node, units in each.replicas}, each.overlaps]
                for each in self.pipeline
            ],
        }
        return json.dumps(plain)

    @classmethod
    def from_text(cls, text: str) -> View:
        """Read what `to_text` wrote."""
        plain = json.loads(text)
        return cls(
            epoch=plain["epoch"],
            stage=plain["stage"],
            members=tuple(plain["members"]),
            owner=tuple(plain["owner"]),
            backup=tuple(plain["backup"]),
            share=tuple((node, parse(units)) for node, units in plain["share"].items()),
            previous=tuple(plain["previous"]),
            base=plain["base"],
            open=tuple(
                (clock, tuple((node, parse(bundle)) for node, bundle in dealt))
                for clock, dealt in plain["open"]
            ),
            timeline=plain["timeline"],
            committed=CutId(*plain["committed"]),
            stages=tuple(
                StagesFrom(clock, tuple(ends), tuple(overlapping))
                for clock, ends, overlapping in plain.get("stages", ())
            ),
            pipeline=tuple(
                StageGroup(
                    first, stop, tuple((node, parse(units)) for node, units in replicas.items()), overlaps
                )
                for first, stop, replicas, overlaps in plain.get("pipeline", ())
            ),
        )
