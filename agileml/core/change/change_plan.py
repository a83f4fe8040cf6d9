"""The plan of one membership change: which copies count, which bundles are still open, what is copied from where.

Pure functions: from the durable view, the promises of all live nodes and the usable machines to the next view and the
fetches that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agileml.core.cuts.checkpoint import Checkpoint
from agileml.core.protocol.deal import Deal, bundles_of, workers_of_slices
from agileml.core.protocol.exchange import nearest
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Fetch, Promise, Role, ShardState, Source, SourceKind
from agileml.core.protocol.view import NOBODY, CutId, Share, StagesFrom, View
from agileml.core.stage.pipeline_stages import place_stages
from agileml.core.stage.placement import Machines, Placement, StageRule, moves, place
from agileml.core.stage.shares import share_and_previous
from straggler.coverage import Units, union


@dataclass(frozen=True)
class Change:
    """The next view, and the fetches that nodes must answer before it can be written."""

    view: View
    fetches: tuple[tuple[str, Fetch], ...]
    rolled_back: bool
    reason: str
    lacking: tuple[int, ...] = ()  # partitions whose part of the committed cut is on no machine any more

    @property
    def committed(self) -> CutId:
        """The committed cut after the change: unchanged, unless the run returns to a checkpoint or the start."""
        return self.view.committed


class LostError(Exception):
    """No machine has some state that the run needs. The message names it."""


def plan_change(
    job: Job,
    rule: StageRule,
    epoch: int,
    view: View | None,
    committed: CutId,
    promises: Mapping[str, Promise],
    machines: Machines,
    finishing: Sequence[str] = (),
    checkpoint: Checkpoint | None = None,
) -> Change:
    """Plan the next view on these machines, so that as little as possible moves. Raises LostError.

    `finishing`: machines with a notice that have time to finish their bundles of the open clocks. `checkpoint`: where
    the run returns to if even the committed cut is lost; None: the start.
    """
    if not machines.reliable:
        raise LostError("no reliable machine is left")
    placement = _place(job, rule, view, machines)
    holders = _holders(promises)
    start = _start(job, epoch, view, committed, promises, _nearest(holders, placement), checkpoint)
    # If live copies become the cut, a backup must copy from the owner where only the owner has the optimizer's state.
    copies = {} if job.exchange.shares_state else start.copies
    backups, lacking = _plan_backups(job, epoch, replace(start, copies=copies), holders, placement)
    states, sources, rolled_back = start.states, start.sources, start.rolled_back
    base = min(state.version for state in states.values())
    share, previous = share_and_previous(job, view, placement, machines.weights)
    members = machines.reliable + machines.transient
    before = None if rolled_back else view
    had = _deal_before(job, before, promises)
    dealt = _open(job, had, states, base, share, (*members, *finishing))
    at_work = {node for _, bundles in dealt for node, _ in bundles}
    new_view = View(
        epoch=epoch,
        stage=placement.stage,
        members=(*members, *(node for node in finishing if node in at_work)),
        owner=placement.owner,
        backup=placement.backup,
        share=share,
        previous=previous,
        base=base,
        open=dealt,
        timeline=epoch if view is None or rolled_back else view.timeline,
        committed=start.committed,
        stages=_stages(job, view, base, placement),
        pipeline=placement.pipeline,
    )
    live = job.exchange.fetches(new_view, sources, start.copies)
    reason = f"{placement.reason}; {start.reason}"
    if view is not None:
        reason += f"; {moves(view.owner, placement.owner)} partitions move"
    return Change(new_view, (*live, *backups), rolled_back, reason, lacking)


def _stages(job: Job, view: View | None, base: int, placement: Placement) -> tuple[StagesFrom, ...]:
    """Return the stages whose clocks still count, then those from `base` on."""
    if job.pipeline is None or job.pipeline.flushes:
        return ()
    before = view.stages if view is not None else ()
    ends = tuple(stage.stop for stage in placement.pipeline)
    overlapping = tuple(number for number, stage in enumerate(placement.pipeline) if stage.overlaps)
    return (*(each for each in before if each.clock < base), StagesFrom(base, ends, overlapping))


@dataclass(frozen=True)
class _Start:
    """Where every partition starts in the next view: its state, a source for it, and the committed cut from then on."""

    states: Mapping[int, ShardState]
    sources: Mapping[int, Source]
    committed: CutId
    rolled_back: bool
    reason: str
    stored: Source | None = None  # set when everything comes from a checkpoint or the start
    copies: Mapping[int, Sequence[str]] = field(default_factory=dict)  # all nodes that have each source
    is_cut: bool = False  # `sources` name the committed cut


def _start(
    job: Job,
    epoch: int,
    view: View | None,
    committed: CutId,
    promises: Mapping[str, Promise],
    holders: Holders,
    checkpoint: Checkpoint | None,
) -> _Start:
    """Start from the live shards; if one is lost, roll all back to the committed cut, a checkpoint or the start."""
    if view is None:
        return _from_store(job, epoch, checkpoint, "first view", rolled_back=False)
    found = job.exchange.live_copies(view, promises, committed)
    frozen = {p: state for p, (state, _) in found.items()}
    has = {p: nodes for p, (_, nodes) in found.items()}
    lost = sorted(set(range(job.layout.partitions)) - set(frozen))
    if not lost and not _is_torn(job, frozen):
        sources = {p: Source(SourceKind.SHARD, nodes[0]) for p, nodes in has.items()}
        kept = _Start(frozen, sources, committed, rolled_back=False, reason="nothing lost", copies=has)
        return _with_backups(job, epoch, kept, holders)
    they = "stages" if job.pipeline is not None else "owners"
    why = f"partitions {lost} are lost with their owners" if lost else f"the {they} are at different clocks"
    if committed.clock == 0:
        return _from_store(job, epoch, None, f"{why}: back to the start", rolled_back=True)
    gone = [p for p in range(job.layout.partitions) if p not in holders]
    if gone:
        to = f"the checkpoint at clock {checkpoint.name.clock}" if checkpoint else "the start"
        why = f"partitions {gone} of the committed cut are lost: back to {to}"
        return _from_store(job, epoch, checkpoint, why, rolled_back=True)
    states, sources = {}, {}
    for partition in range(job.layout.partitions):
        kind, node, states[partition] = holders[partition][0]
        sources[partition] = Source(kind, node)
    why += f": back to clock {committed.clock}"
    return _Start(states, sources, committed, rolled_back=True, reason=why)


def _is_torn(job: Job, states: Mapping[int, ShardState]) -> bool:
    """True when the shards belong to different clocks and no machine can complete them. There are two cases.

    A pipeline without a flush has work in flight: other machines cannot continue it, because its parts were computed on
    weights of different ages, and no stage can undo an update. Or the machines share the optimizer's state, and only
    some of them have taken the last step: no machine has the parameters of both clocks.
    """
    flows_on = job.pipeline is not None and not job.pipeline.flushes
    if not flows_on and not job.exchange.shares_state:
        return False
    in_part = flows_on and any(state.pending for state in states.values())
    return in_part or len({state.version for state in states.values()}) > 1


def _with_backups(job: Job, epoch: int, start: _Start, holders: Holders) -> _Start:
    """Use the live replicas as the committed cut if a part of the previous cut is lost."""
    versions = {state.version for state in start.states.values()}
    is_whole = all(p in holders for p in start.states)
    if not job.exchange.has_replicas or is_whole or not start.committed.clock or len(versions) > 1:
        return start  # with replicas at different versions, the next cut replaces the lost part
    (version,) = versions
    reason = f"nothing lost but backups, made again at clock {version}"
    return replace(start, committed=CutId(version, epoch), reason=reason, is_cut=True)


def _from_store(
    job: Job, epoch: int, checkpoint: Checkpoint | None, reason: str, *, rolled_back: bool
) -> _Start:
    """Start every partition from the checkpoint; None: from the initial values."""
    partitions = range(job.layout.partitions)
    if checkpoint is None:
        initial = Source(SourceKind.INITIAL, NOBODY)
        states = {p: ShardState(0, ()) for p in partitions}
        return _Start(
            states, dict.fromkeys(partitions, initial), CutId(0, epoch), rolled_back, reason, initial
        )
    name = checkpoint.name
    saved = Source(SourceKind.CHECKPOINT, NOBODY, name)
    states = {p: ShardState(name.clock, checkpoint.counted[p]) for p in partitions}
    # The cut gets a new name, so that cuts of the abandoned timeline are not mistaken for it.
    again = CutId(name.clock, epoch)
    return _Start(states, dict.fromkeys(partitions, saved), again, rolled_back, reason, saved)


def _place(job: Job, rule: StageRule, view: View | None, machines: Machines) -> Placement:
    nobody, no_slices = (NOBODY,) * job.layout.partitions, (NOBODY,) * job.slices
    before = (nobody, nobody, no_slices, no_slices)
    if view is not None:
        before = view.owner, view.backup, workers_of_slices(job, view.share), view.previous
    if job.pipeline is not None:
        return place_stages(
            machines, job.pipeline, job.units, view.pipeline if view is not None else (), *before
        )
    return place(machines, rule, *before)


Holders = Mapping[int, Sequence[tuple[SourceKind, str, ShardState]]]


def _holders(promises: Mapping[str, Promise]) -> Holders:
    """By partition, the nodes that have its part of the committed cut; owners' own copies before backups."""
    found: dict[int, list[tuple[SourceKind, str, ShardState]]] = {}
    for kind in (SourceKind.OWN_CUT, SourceKind.BACKUP):
        for node, promise in promises.items():
            for partition, state in promise.own_cuts if kind is SourceKind.OWN_CUT else promise.backups:
                found.setdefault(partition, []).append((kind, node, state))
    return found


def _nearest(holders: Holders, placement: Placement) -> Holders:
    """The same, with the new owner of each partition first: its own copy need not travel."""
    return {p: sorted(have, key=lambda held: held[1] != placement.owner[p]) for p, have in holders.items()}


def _plan_backups(
    job: Job, epoch: int, start: _Start, holders: Holders, placement: Placement
) -> tuple[list[tuple[str, Fetch]], tuple[int, ...]]:
    """Fetches for backups that do not have their part of the committed cut yet, and the parts that are left out.

    If no machine has a part any more, the shard is the source if it is at the cut's clock, as at the end of a run.
    Otherwise the part is left out until the next cut replaces it.
    """
    fetches: list[tuple[str, Fetch]] = []
    lacking: list[int] = []
    if start.committed.clock == 0:
        return fetches, ()
    for partition, node in enumerate(placement.backup):
        if start.stored is not None:
            fetches.append((node, Fetch(epoch, partition, Role.BACKUP, start.committed, start.stored)))
            continue
        if start.is_cut:
            source = nearest(node, start.sources[partition], start.copies.get(partition, ()))
            fetches.append((node, Fetch(epoch, partition, Role.BACKUP, start.committed, source)))
            continue
        have = holders.get(partition, ())
        if have and not any(kind is SourceKind.BACKUP and holder == node for kind, holder, _ in have):
            kind, holder, _ = have[-1]  # prefer a backup as the source: owners have more to do
            source = Source(kind, holder)
            fetches.append((node, Fetch(epoch, partition, Role.BACKUP, start.committed, source)))
        elif not have and _is_at_cut(job, start, partition):
            source = start.sources[partition]
            fetches.append((node, Fetch(epoch, partition, Role.BACKUP, start.committed, source)))
        elif not have:
            lacking.append(partition)
    return fetches, tuple(lacking)


def _is_at_cut(job: Job, start: _Start, partition: int) -> bool:
    """True where the shard can replace its part of the committed cut.

    With supersteps a minibatch of the next clock is a step from which others were computed. A cut with that step in one
    partition alone belongs to no order of steps, so no log could replay what follows.
    """
    state = start.states[partition]
    return state.version == start.committed.clock and not (job.elastic is not None and state.pending)


def _deal_before(job: Job, view: View | None, promises: Mapping[str, Promise]) -> Deal | None:
    """The deal of the durable view, with the plans that partition 0 has fixed. A plan that is lost costs nothing but
    bundles that are computed again."""
    if view is None:
        return None
    return Deal(job, view, (plan for promise in promises.values() for plan in promise.plans))


def _open(
    job: Job,
    had: Deal | None,
    states: Mapping[int, ShardState],
    base: int,
    share: Share,
    members: Sequence[str],
) -> tuple[tuple[int, tuple[tuple[str, Units], ...]], ...]:
    """Deal exactly the units of each begun clock that some partition still lacks.

    Bundles that are pending at a shard keep their boundaries and are computed again as a whole. Of the other units,
    members that stay keep the bundles that they had and may be computing; the rest is dealt by the new share.
    """
    pending = [(state.version, dict(state.pending)) for state in states.values()]
    begun = {clock for _, waiting in pending for clock in waiting}
    if had is not None:
        begun |= {clock for clock in had.view.open_at if clock >= base}
        begun.add(base)
    dealt = []
    for clock in sorted(clock for clock in begun if base <= clock < job.clocks):
        counted = [
            (job.all_units if version > clock else union(waiting.get(clock, ())))
            for version, waiting in pending
        ]
        if job.pipeline is not None:
            dealt.append((clock, _deal_to_stages(job, counted, share)))
            continue
        lacking = union(job.all_units & ~units for units in counted)
        waiting_here = sorted({b for _, waiting in pending for b in waiting.get(clock, ())})
        dealt.append((clock, _deal(job, had, clock, lacking, waiting_here, share, members)))
    return tuple(dealt)


def _deal_to_stages(job: Job, counted: Sequence[Units], share: Share) -> tuple[tuple[str, Units], ...]:
    """The bundles of the units that some partition lacks. All stages compute them, whichever machine the deal names.

    `counted`: of each partition, the units that it has. Replicas of different stages push other bundles, so this
    function forms new bundles, none of which a partition has counted in part.
    """
    classes: dict[tuple[bool, ...], Units] = {}
    for unit in range(job.units):
        has = tuple(bool(units >> unit & 1) for units in counted)
        classes[has] = classes.get(has, 0) | 1 << unit
    loose = [bundle for has, units in classes.items() if not all(has) for bundle in bundles_of(job, units)]
    return tuple((share[0][0], bundle) for bundle in sorted(loose))


def _deal(
    job: Job,
    had: Deal | None,
    clock: int,
    lacking: Units,
    waiting: Sequence[Units],
    share: Share,
    members: Sequence[str],
) -> tuple[tuple[str, Units], ...]:
    """The (worker, bundle) pairs of the units that some partition lacks; `waiting`: bundles pending at a shard."""
    stays = set(members)
    before = had.assignments(clock) if had is not None else ()
    had_by = {bundle: node for node, bundle in before if node in stays}
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
        for bundle in bundles_of(job, units & free):
            give(node, bundle)
    for bundle in waiting:
        if bundle & lacking:
            give(had_by.get(bundle) or min(workers, key=lambda node: load[node]), bundle)
    return tuple(dealt)
