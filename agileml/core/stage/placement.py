"""Placement: which nodes serve, back up and compute what, with the fewest moves and a reason.

Partitions are never cut again, only reassigned (thesis 4.2). Loads differ by at most one. A node that stays keeps
what it has, up to its new load. Slices stay in runs, because a run is made of few subtrees, so few arrays are sent
(`slice_swaps`); partitions are striped, so that all servers are busy at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agileml.core.protocol.view import StageGroup
from agileml.core.stage.slice_swaps import with_fewer_sums


@dataclass(frozen=True)
class StageRule:
    """When to go from stage 1 to 2 and from 2 to 3: transient machines per reliable one (thesis 4.2).

    `active_fraction`: the share of the transient machines that serve. The thesis has half of them serve. With more
    servers each moves fewer bytes, W (1 + (N - 2) / A) each way (see `traffic`); using all of them measured fastest.
    """

    thresholds: tuple[float, float] = (1.0, 15.0)
    forced: int | None = None
    active_fraction: float = 1.0

    def stage(self, reliable: int, transient: int) -> tuple[int, str]:
        """The stage for these numbers of machines, and the reason."""
        assert reliable > 0
        machines = f"{transient} transient to {reliable} reliable"
        if transient == 0:
            return 1, "no transient machine to serve or work"
        if self.forced is not None:
            return self.forced, f"stage {self.forced} is set ({machines})"
        first, second = self.thresholds
        ratio = transient / reliable
        if ratio <= first:
            return 1, f"{machines} is at most {first:g}:1"
        if ratio <= second:
            return 2, f"{machines} is over {first:g}:1 and at most {second:g}:1"
        return 3, f"{machines} is over {second:g}:1"

    def servers(self, transient: int) -> int:
        """How many transient machines run an ActivePS in stages 2 and 3."""
        return max(1, math.ceil(transient * self.active_fraction))


def spread(current: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Assign each thing to one of `nodes`; `current[i]` has thing i now, and may be none of `nodes`.

    Loads differ by at most one, and no assignment with that property moves fewer things. Among equal nodes, those
    earlier in `nodes` get more. The things of a node stay together as far as possible.
    """
    held, load = _held_and_load(current, nodes)
    kept = {node: held[node][: load[node]] for node in nodes}
    assigned = _assign(current, kept)
    loose = iter([thing for thing, node in enumerate(assigned) if not node])
    for node in nodes:
        for _ in range(load[node] - len(kept[node])):
            assigned[next(loose)] = node
    return tuple(assigned)


def stripe(current: Sequence[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """As `spread`, but neighbours go to different nodes as far as possible.

    Workers read parameters from the first partition on and push from the last one on. With runs, they would all use one
    server at a time.
    """
    held, load = _held_and_load(current, nodes)
    kept = {node: _evenly(held[node], min(load[node], len(held[node]))) for node in nodes}
    assigned = _assign(current, kept)
    loose = iter([thing for thing, node in enumerate(assigned) if not node])
    room = {node: load[node] - len(kept[node]) for node in nodes}
    while any(room.values()):
        for node in nodes:
            if room[node]:
                room[node] -= 1
                assigned[next(loose)] = node
    return tuple(assigned)


def _held_and_load(
    current: Sequence[str], nodes: Sequence[str]
) -> tuple[Mapping[str, Sequence[int]], Mapping[str, int]]:
    """(the things that each node has now, how many each will have)."""
    assert nodes
    held: dict[str, list[int]] = {node: [] for node in nodes}
    for thing, node in enumerate(current):
        if node in held:
            held[node].append(thing)
    small, larger = divmod(len(current), len(nodes))
    # Nodes that have the most get the larger loads, which moves the least. The sort is stable: ties go by age.
    by_held = sorted(nodes, key=lambda node: -len(held[node]))
    return held, {node: small + (index < larger) for index, node in enumerate(by_held)}


def _assign(current: Sequence[str], kept: Mapping[str, Sequence[int]]) -> list[str]:
    """By thing, the node that keeps it, or an empty name."""
    assigned = [""] * len(current)
    for node, things in kept.items():
        for thing in things:
            assigned[thing] = node
    return assigned


def _evenly(things: Sequence[int], count: int) -> Sequence[int]:
    """`count` of the things, at even distances."""
    return [things[index * len(things) // count] for index in range(count)]


def deal_slices(
    current: Sequence[str], previous: Sequence[str], workers: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(worker, previous owner) of each slice: balanced, with the fewest moves, and of such deals one with few sums;
    orphans go to a node that has their items.

    A slice whose worker is gone goes to its previous owner if that one works and has room (thesis 4.2, figure 4.4);
    a slice that moves off a worker that stays makes that worker its previous owner.
    """
    members = set(workers)
    wished = tuple(
        now if now in members else (before if before in members else now)
        for now, before in zip(current, previous, strict=True)
    )
    dealt = with_fewer_sums(wished, spread(wished, workers))
    remembered = tuple(
        (now if now in members else (before if before in members and before != to else ""))
        if to != now
        else (before if before in members else "")
        for now, before, to in zip(current, previous, dealt, strict=True)
    )
    return dealt, remembered


@dataclass(frozen=True)
class Machines:
    """The machines that may hold something after a change, the longest-running first.

    `weights`: how much they can compute, relative to each other; one that is not listed has the mean of the others.
    `bytes_per_s`: of a machine's link, as far as is known.
    """

    reliable: tuple[str, ...]
    transient: tuple[str, ...]
    weights: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Placement:
    """An arrangement: by partition owner and backup, by slice worker and previous owner. `pipeline`: its stages."""

    stage: int
    owner: tuple[str, ...]
    backup: tuple[str, ...]
    worker: tuple[str, ...]
    previous: tuple[str, ...]
    reason: str
    pipeline: tuple[StageGroup, ...] = ()


def place(
    machines: Machines,
    rule: StageRule,
    owner: Sequence[str],
    backup: Sequence[str],
    worker: Sequence[str],
    previous: Sequence[str],
) -> Placement:
    """The arrangement of these machines that moves the least from the present one.

    Stage 1: reliable machines own, and back up what they own. Stages 2 and 3: the longest-running transient
    machines that do so already, then others, own; reliable machines back up. Stage 3: only transient ones work.
    """
    stage, reason = rule.stage(len(machines.reliable), len(machines.transient))
    new_backup = stripe(backup, machines.reliable)
    if stage == 1:
        new_owner = new_backup
    else:
        count = min(rule.servers(len(machines.transient)), len(owner))
        serving = set(owner)
        ranked = sorted(machines.transient, key=lambda node: node not in serving)  # stable: by age
        new_owner = stripe(owner, ranked[:count])
    workers = machines.transient if stage == 3 else machines.reliable + machines.transient
    new_worker, new_previous = deal_slices(worker, previous, workers)
    return Placement(stage, new_owner, new_backup, new_worker, new_previous, reason)


def moves(before: Sequence[str], after: Sequence[str]) -> int:
    """The number of positions at which two assignments differ."""
    return sum(a != b for a, b in zip(before, after, strict=True))
