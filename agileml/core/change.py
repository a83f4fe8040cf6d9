"""The plan of one change of members: what counts as true, what is still open, what must be copied from where.

Pure and without memory: the durable view, the promises of all live nodes and the machines that may hold things go
in; the next view and the fetches that make it true come out. PROTOCOL: CHANGE, steps 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agileml.core.job import Job
from agileml.core.messages import Fetch, Kind, Promise, Role, ShardState, Source
from agileml.core.placement import Machines, Placement, StageRule, moves, place
from agileml.core.view import NOBODY, CutId, View
from straggler.coverage import Units, aligned_subtrees, ranges, union


@dataclass(frozen=True)
class Change:
    """A view that becomes true once every fetch is answered: (node, what it must get)."""

    view: View
    fetches: tuple[tuple[str, Fetch], ...]
    rolled_back: bool
    reason: str


class LostError(Exception):
    """Something that the run needs is nowhere any more. The sentence says what."""


def plan_change(
    job: Job,
    rule: StageRule,
    epoch: int,
    view: View | None,
    committed: CutId,
    promises: Mapping[str, Promise],
    machines: Machines,
    finishing: Sequence[str] = (),
) -> Change:
    """The change to the nearest arrangement on these machines. Raises `LostError`.

    `finishing` are machines that will go, but have the time to end what they compute for clocks that are begun.
    """
    if not machines.reliable:
        raise LostError("no reliable machine is left")
    placement = _place(job, rule, view, machines)
    members = machines.reliable + machines.transient
    holders = _holders(promises)
    backups = _plan_backups(epoch, committed, holders, placement, view)
    if view is None:
        states = {p: ShardState(0, ()) for p in range(job.layout.partitions)}
        sources = {p: Source(Kind.INITIAL, NOBODY) for p in states}
        timeline, rolled_back, because = epoch, False, "first view"
    else:
        frozen = _authoritative(view, promises)
        rolled_back = len(frozen) < job.layout.partitions
        if rolled_back:
            lost = sorted(set(range(job.layout.partitions)) - set(frozen))
            states, sources = _from_cut(job, view, committed, holders)
            timeline = epoch
            because = f"partitions {lost} are lost with their owners: back to clock {committed.clock}"
        else:
            states = frozen
            sources = {p: Source(Kind.SHARD, view.owner[p]) for p in frozen}
            timeline = view.timeline
            because = "nothing lost"
    base = min(state.version for state in states.values())
    share = _share(job, placement)
    members = machines.reliable + machines.transient
    before = None if rolled_back else view
    dealt = _open(job, before, states, base, share, (*members, *finishing))
    at_work = {node for _, bundles in dealt for node, _ in bundles}
    new_view = View(
        epoch=epoch,
        stage=placement.stage,
        members=(*members, *(node for node in finishing if node in at_work)),
        owner=placement.owner,
        backup=placement.backup,
        share=share,
        previous=placement.previous,
        base=base,
        open=dealt,
        timeline=timeline,
        committed=committed,
    )
    fetches = [
        (node, Fetch(epoch, p, Role.OWNER, sources[p])) for p, node in enumerate(placement.owner)
    ] + backups
    reason = f"{placement.reason}; {because}"
    if view is not None:
        reason += f"; {moves(view.owner, placement.owner)} partitions move"
    return Change(new_view, tuple(fetches), rolled_back, reason)


def _place(job: Job, rule: StageRule, view: View | None, machines: Machines) -> Placement:
    nobody = (NOBODY,) * job.layout.partitions
    if view is None:
        no_slices = (NOBODY,) * job.slices
        return place(machines, rule, nobody, nobody, no_slices, no_slices)
    return place(machines, rule, view.owner, view.backup, _worker_of_slice(job, view), view.previous)


def _worker_of_slice(job: Job, view: View) -> tuple[str, ...]:
    workers = [NOBODY] * job.slices
    for node, units in view.share:
        for start, stop in ranges(units):
            workers[start // job.parts : stop // job.parts] = [node] * ((stop - start) // job.parts)
    return tuple(workers)


def _share(job: Job, placement: Placement) -> tuple[tuple[str, Units], ...]:
    units: dict[str, Units] = {}
    for index, node in enumerate(placement.worker):
        units[node] = units.get(node, 0) | job.units_of_slice(index)
    return tuple(units.items())


def _authoritative(view: View, promises: Mapping[str, Promise]) -> dict[int, ShardState]:
    """The frozen shards of the durable view, by partition: only its owner's copy counts."""
    found = {}
    for partition, owner in enumerate(view.owner):
        promise = promises.get(owner)
        for p, state in promise.shards if promise else ():
            if p == partition:
                found[partition] = state
    return found


Holders = Mapping[int, Sequence[tuple[Kind, str, ShardState]]]


def _holders(promises: Mapping[str, Promise]) -> Holders:
    """By partition, who has its part of the committed cut; owners' own copies before backups."""
    found: dict[int, list[tuple[Kind, str, ShardState]]] = {}
    for kind in (Kind.OWN_CUT, Kind.BACKUP):
        for node, promise in promises.items():
            for partition, state in promise.own_cuts if kind is Kind.OWN_CUT else promise.backups:
                found.setdefault(partition, []).append((kind, node, state))
    return found


def _from_cut(
    job: Job, view: View, committed: CutId, holders: Holders
) -> tuple[dict[int, ShardState], dict[int, Source]]:
    """Every partition from the committed cut: where it is, and what of later clocks it has."""
    states, sources = {}, {}
    for partition in range(job.layout.partitions):
        if committed.clock == 0:
            states[partition], sources[partition] = ShardState(0, ()), Source(Kind.INITIAL, NOBODY)
            continue
        if partition not in holders:
            raise LostError(
                f"partition {partition} at clock {committed.clock} is lost: "
                f"its owner {view.owner[partition]} and its backup {view.backup[partition]} are gone"
            )
        kind, node, states[partition] = holders[partition][0]
        sources[partition] = Source(kind, node)
    return states, sources


def _plan_backups(
    epoch: int,
    committed: CutId,
    holders: Holders,
    placement: Placement,
    view: View | None,
) -> list[tuple[str, Fetch]]:
    """Fetches for backups that do not have their part of the committed cut yet."""
    fetches: list[tuple[str, Fetch]] = []
    if committed.clock == 0:
        return fetches
    for partition, node in enumerate(placement.backup):
        have = holders.get(partition, ())
        if any(kind is Kind.BACKUP and holder == node for kind, holder, _ in have):
            continue
        if not have:
            gone = view.backup[partition] if view else NOBODY
            raise LostError(f"the backup of partition {partition} is lost with machine {gone}")
        kind, holder, _ = have[-1]  # a backup rather than an owner, which has more to do
        fetches.append((node, Fetch(epoch, partition, Role.BACKUP, Source(kind, holder))))
    return fetches


def _open(
    job: Job,
    view: View | None,
    states: Mapping[int, ShardState],
    base: int,
    share: Sequence[tuple[str, Units]],
    members: Sequence[str],
) -> tuple[tuple[int, tuple[tuple[str, Units], ...]], ...]:
    """Deal exactly what some partition still lacks of every clock that is begun.

    Bundles that wait in any shard keep their boundaries and are re-done whole. Of the rest, members that stay go on
    with the bundles they had, which they may be computing, and the others are dealt by the new share.
    """
    pending = [(state.version, dict(state.pending)) for state in states.values()]
    begun = {clock for _, waiting in pending for clock in waiting}
    if view is not None:
        begun |= {clock for clock in view.open_at if clock >= base}
        begun.add(base)
    dealt = []
    for clock in sorted(clock for clock in begun if base <= clock < job.clocks):
        counted = [
            (job.all_units if version > clock else union(waiting.get(clock, ())))
            for version, waiting in pending
        ]
        lacking = union(job.all_units & ~units for units in counted)
        waiting_here = sorted({b for _, waiting in pending for b in waiting.get(clock, ())})
        dealt.append((clock, _deal(job, view, clock, lacking, waiting_here, share, members)))
    return tuple(dealt)


def _deal(
    job: Job,
    view: View | None,
    clock: int,
    lacking: Units,
    waiting: Sequence[Units],
    share: Sequence[tuple[str, Units]],
    members: Sequence[str],
) -> tuple[tuple[str, Units], ...]:
    had = _assignments(job, view, clock) if view is not None else []
    stays = set(members)
    had_by = {bundle: node for node, bundle in had if node in stays}
    workers = [node for node, _ in share]
    load = dict.fromkeys(workers, 0)
    dealt: list[tuple[str, Units]] = []

    def give(node: str, bundle: Units) -> None:
        load[node] = load.get(node, 0) + bundle.bit_count()
        dealt.append((node, bundle))

    free = lacking & ~union(waiting)
    for bundle, node in had_by.items():
        if bundle & ~free == 0:
            give(node, bundle)
            free &= ~bundle
    for node, units in share:
        left = units & free
        for bundle in aligned_subtrees(left) if job.deterministic else [left] * bool(left):
            give(node, bundle)
    for bundle in waiting:
        if bundle & lacking:
            give(had_by.get(bundle) or min(workers, key=lambda node: load[node]), bundle)
    return tuple(dealt)


def _assignments(job: Job, view: View, clock: int) -> list[tuple[str, Units]]:
    """(worker, bundle) of a clock under a view."""
    if (dealt := view.open_at.get(clock)) is not None:
        return list(dealt)
    return [
        (node, bundle)
        for node, units in view.share
        for bundle in (aligned_subtrees(units) if job.deterministic else [units])
    ]
