"""The plan of a change: what counts as true, what is still open, what comes from where."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.change.change_plan import LostError, plan_change
from agileml.core.protocol.deal import Deal
from agileml.core.protocol.messages import Promise, Role, ShardState, SourceKind
from agileml.core.protocol.view import INITIAL, CutId, View
from agileml.core.stage.placement import Machines, StageRule
from straggler.coverage import Verdict, aligned_subtrees, judge, span, union
from tests.agileml.core.fixtures import make_job
from tests.model.invariants import check_view
from tests.thorough import examples

RULE = StageRule(thresholds=(0.5, 15.0), active_fraction=1.0)
MACHINES = Machines(("r",), ("t", "u"))


def first_view(job, machines=MACHINES):
    return plan_change(job, RULE, 1, None, INITIAL, {}, machines).view


def promises_of(view, states, *, own=None, backed=None, without=()):
    """What the owners promise; `own` and `backed` are clocks of the committed cut that owners and backups hold."""
    found = {}
    for node in view.members:
        if node in without:
            continue
        mine = view.partitions_of(node)
        held = [p for p, name in enumerate(view.backup) if name == node]
        found[node] = Promise(
            2,
            tuple((p, states[p]) for p in mine),
            tuple((p, ShardState(own, ())) for p in mine if own is not None),
            tuple((p, ShardState(backed, ())) for p in held if backed is not None),
        )
    return found


def change(job, view, promises, machines, committed=INITIAL):
    return plan_change(job, RULE, 2, view, committed, promises, machines)


def sources(found, role):
    return {f.partition: (node, f.source.kind, f.source.node) for node, f in found.fetches if f.role is role}


def test_the_first_view_starts_from_the_initial_values():
    job = make_job(partitions=4)
    found = plan_change(job, RULE, 1, None, INITIAL, {}, MACHINES)
    check_view(job, found.view)
    assert {kind for _, kind, _ in sources(found, Role.OWNER).values()} == {SourceKind.INITIAL}
    assert (found.view.base, found.view.timeline, found.rolled_back) == (0, 1, False)


def test_without_a_reliable_machine_there_is_no_view():
    with pytest.raises(LostError, match="no reliable machine is left"):
        plan_change(make_job(), RULE, 1, None, INITIAL, {}, Machines((), ("t",)))


def test_a_partition_that_does_not_move_is_fetched_from_its_owner_itself():
    job = make_job(partitions=4)
    view = first_view(job)
    states = {p: ShardState(7, ()) for p in range(4)}
    found = change(job, view, promises_of(view, states), Machines(("r",), ("t", "u", "w")))
    for partition, (node, kind, source) in sources(found, Role.OWNER).items():
        assert kind is SourceKind.SHARD
        assert source == view.owner[partition]
        assert node == found.view.owner[partition]
    assert found.view.timeline == view.timeline
    assert "1 partitions move" in found.reason


def test_survivors_use_their_own_cut_and_lost_partitions_the_backup():
    job = make_job(partitions=2)
    view = first_view(job)
    states = {p: ShardState(9, ()) for p in range(2)}
    lost = view.owner[0]
    promises = promises_of(view, states, own=6, backed=6, without=(lost,))
    left = Machines(("r",), tuple(n for n in ("t", "u") if n != lost))
    found = change(job, view, promises, left, CutId(6, 1))
    assert found.rolled_back
    assert (found.view.base, found.view.open, found.view.timeline) == (6, (), 2)
    where = sources(found, Role.OWNER)
    assert where[0][1:] == (SourceKind.BACKUP, "r")
    assert where[1][1:] == (SourceKind.OWN_CUT, view.owner[1])
    assert "back to clock 6" in found.reason


def test_after_a_rollback_a_new_owner_uses_what_it_has_itself():
    """Back in stage 1 the backups serve: nothing travels, though survivors have own copies as well."""
    job = make_job(partitions=2)
    view = first_view(job)
    states = {p: ShardState(9, ()) for p in range(2)}
    promises = promises_of(view, states, own=6, backed=6, without=(view.owner[0],))
    survivor = Machines(("r",), (view.owner[1],))
    found = plan_change(job, StageRule(forced=1), 2, view, CutId(6, 1), promises, survivor)
    assert found.rolled_back
    assert list(sources(found, Role.OWNER).values()) == [("r", SourceKind.BACKUP, "r")] * 2


def test_only_the_owner_of_the_durable_view_has_the_shard():
    """A machine that was frozen may still hold a copy of a partition that it does not own any more."""
    job = make_job(partitions=1)
    view = first_view(job, Machines(("r",), ("t",)))
    assert view.owner == ("t",)
    stale = {"r": Promise(2, ((0, ShardState(99, ())),), (), ())}
    found = change(job, view, stale, Machines(("r",), ()))
    assert found.rolled_back
    assert found.view.base == 0


@st.composite
def open_clocks(draw):
    """A job, its view, and owners' states: version base or base + 1, some bundles pending in each."""
    mode = draw(st.sampled_from(["bsp", "sum"]))
    job = make_job(mode, slices=8, partitions=draw(st.integers(1, 3)), clocks=30)
    view = first_view(job, Machines(("r",), tuple(f"t{i}" for i in range(draw(st.integers(1, 4))))))
    bundles = [b for _, u in view.share for b in (aligned_subtrees(u) if job.deterministic else [u])]
    states = {}
    for p in range(job.layout.partitions):
        version = draw(st.integers(3, 4))
        # Who pushes clock 4 has read it everywhere: with a partition at 3 nothing of clock 4 is pending.
        some = draw(st.lists(st.sampled_from(bundles), unique=True, max_size=len(bundles) - 1))
        states[p] = ShardState(version, ((3, tuple(some)),) if version == 3 and some else ())
    gone = draw(st.sets(st.sampled_from(sorted(set(view.members) - {"r"} - set(view.owner)) or [""])))
    return job, view, states, gone


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(open_clocks())
def test_open_clocks_deal_exactly_what_is_lacking_and_keep_the_boundaries(case):
    job, view, states, gone = case
    stay = tuple(n for n in view.members if n != "r" and n not in gone)
    found = change(job, view, promises_of(view, states, without=gone), Machines(("r",), stay))
    check_view(job, found.view)
    base = found.view.base
    assert base == min(state.version for state in states.values())
    waiting = {b for s in states.values() for clock, pending in s.pending if clock == base for b in pending}
    counted = [
        job.all_units if s.version > base else union(dict(s.pending).get(base, ())) for s in states.values()
    ]
    lacking = union(job.all_units & ~units for units in counted)
    dealt = found.view.open_at[base]
    assert union(b for _, b in dealt) & lacking == lacking, "something is dealt to nobody"
    for _, bundle in dealt:
        assert bundle & lacking, "work that every partition has is dealt again"
        assert all(bundle == w or not bundle & w for w in waiting), "a bundle overlaps another in part"
        if job.deterministic:
            assert aligned_subtrees(bundle) == [bundle]
    before = {b: node for node, u in view.share for b in (aligned_subtrees(u) if job.deterministic else [u])}
    for node, bundle in dealt:
        if before.get(bundle) in found.view.members:
            assert node == before[bundle], "who stays goes on with what it may be computing"


def test_the_backup_of_a_dead_reliable_machine_is_made_again_from_the_owners_own_cut():
    job = make_job(partitions=2)
    view = first_view(job, Machines(("r", "s"), ("t", "u")))
    states = {p: ShardState(9, ()) for p in range(2)}
    lost = view.backup[0]
    promises = promises_of(view, states, own=6, backed=6, without=(lost,))
    left = tuple(n for n in ("r", "s") if n != lost)
    found = change(job, view, promises, Machines(left, ("t", "u")), CutId(6, 1))
    assert not found.rolled_back
    assert sources(found, Role.BACKUP)[0] == (left[0], SourceKind.OWN_CUT, view.owner[0])


@pytest.mark.parametrize(
    ("mode", "version", "pending", "is_made"),
    [
        ("bsp", 6, (), True),
        ("bsp", 7, (), False),
        ("bsp", 6, ((6, (0b11,)),), True),
        ("asp", 6, ((6, (0b11,)),), True),  # the part says which bundles of the next clock it holds
        ("elastic", 6, (), True),
        ("elastic", 6, ((6, (0b1,)),), False),  # the log would lack the steps that others were computed from
    ],
)
def test_a_part_that_is_nowhere_is_the_shard_itself_at_the_clock_of_the_cut(mode, version, pending, is_made):
    """A run's last cut has no next one to make good what it lacks."""
    job = make_job(mode, partitions=2)
    view = first_view(job, Machines(("r", "s"), ("t", "u")))
    states = {p: ShardState(version, pending) for p in range(2)}
    lost = view.backup[0]
    promises = promises_of(view, states, backed=6, without=(lost,))  # owners got their shards by a move
    left = tuple(n for n in ("r", "s") if n != lost)
    found = change(job, view, promises, Machines(left, ("t", "u")), CutId(6, 1))
    assert not found.rolled_back and found.committed == CutId(6, 1)
    made = {0: (left[0], SourceKind.SHARD, view.owner[0])} if is_made else {}
    assert sources(found, Role.BACKUP) == made
    lost_parts = tuple(p for p, node in enumerate(view.backup) if node == lost)
    assert found.lacking == (() if is_made else lost_parts)


def test_machines_that_are_finishing_keep_their_part_of_the_open_clock_and_nothing_else():
    job = make_job(partitions=1)
    view = first_view(job)
    states = {0: ShardState(3, ())}
    promises = promises_of(view, states)
    leaver = next(n for n in ("t", "u") if n not in view.owner) if len(set(view.owner)) < 2 else "u"
    stay = tuple(n for n in ("t", "u") if n != leaver)
    found = plan_change(job, RULE, 2, view, INITIAL, promises, Machines(("r",), stay), finishing=(leaver,))
    assert leaver not in found.view.holders
    assert union(b for n, b in found.view.open_at[3] if n == leaver) == view.share_of[leaver]
    assert leaver in found.view.members


def test_no_clock_after_the_last_is_dealt():
    job = make_job(partitions=1, clocks=5)
    view = first_view(job)
    found = change(job, view, promises_of(view, {0: ShardState(5, ())}), MACHINES)
    assert found.view.open == ()
    assert isinstance(found.view, View)
    assert span(0, 8) == job.all_units


@settings(max_examples=examples(100), deadline=None)
@given(
    counted=st.lists(st.integers(0, 255), min_size=3, max_size=3),
    before=st.integers(2, 5),
    after=st.integers(1, 5),
)
def test_what_stages_have_counted_of_an_open_clock_is_never_pushed_in_part(counted, before, after):
    """Whatever each stage has, and whichever machines are its replicas now: every partition gets what it lacks."""
    job = make_job("flush", partitions=3)
    job = replace(job, pipeline=replace(job.pipeline, most=2, replicas=3))
    machines = [f"t{number}" for number in range(5)]
    view = first_view(job, Machines(("r",), tuple(machines[:before])))
    view = replace(view, base=5, timeline=1)
    states = {
        partition: ShardState(5, ((5, tuple(aligned_subtrees(units))),) if units else ())
        for partition, units in enumerate(counted)
        if units != 255
    }
    states |= {partition: ShardState(6, ()) for partition in range(3) if partition not in states}
    promises = promises_of(view, states)
    found = change(job, view, promises, Machines(("r",), tuple(machines[:after])))
    check_view(job, found.view)
    assert not found.rolled_back
    deal = Deal(job, found.view)
    for partition, state in states.items():
        has = union(dict(state.pending).get(5, ())) if state.version == 5 else 255
        (stage,) = [each for each in found.view.pipeline if each.first <= partition < each.stop]
        pushed = [bundle for node in stage.machines for bundle in deal.bundles(5, node)]
        if found.view.base > 5:
            continue
        for bundle in pushed:
            verdict = judge(has, bundle)  # an error where a part of it is counted
            has |= bundle if verdict is Verdict.COUNT else 0
        assert has == 255, (partition, pushed)
