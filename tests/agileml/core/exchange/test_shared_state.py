"""Where machines share the optimizer's state out: what a change may start from, and who copies what from whom."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.change.change_plan import plan_change
from agileml.core.exchange import SharedStateExchange, shared_state
from agileml.core.protocol.messages import Promise, Role, ShardState, Source, SourceKind
from agileml.core.protocol.view import INITIAL, NOBODY, CutId, View
from agileml.core.stage.placement import Machines, StageRule
from tests.agileml.core.fixtures import make_job

VIEW = View(
    epoch=1,
    stage=2,
    members=("r", "t", "u"),
    owner=("t", "u", "t"),
    backup=("r", "r", "r"),
    share=(("r", 1), ("t", 2), ("u", 4)),
    previous=(NOBODY,) * 8,
    base=0,
    open=(),
    timeline=1,
    committed=INITIAL,
)


def promise(version: int) -> Promise:
    """All shards at a version."""
    return Promise(2, tuple((p, ShardState(version, ())) for p in range(3)), (), ())


def test_machines_at_one_clock_lose_nothing() -> None:
    found = shared_state.owners(VIEW, {name: promise(5) for name in VIEW.members})
    assert {p: (state.version, nodes[0], sorted(nodes)) for p, (state, nodes) in found.items()} == {
        p: (5, owner, ["r", "t", "u"]) for p, owner in enumerate(VIEW.owner)
    }


def test_a_machine_that_owns_nothing_may_be_lost() -> None:
    assert sorted(shared_state.owners(VIEW, {"t": promise(5), "u": promise(5)})) == [0, 1, 2]


def test_a_lost_owner_takes_its_state_along() -> None:
    assert sorted(shared_state.owners(VIEW, {"r": promise(5), "t": promise(5)})) == [0, 2]


def test_owners_count_and_others_copy_from_them() -> None:
    """u has the old values of t's partitions, r those of all."""
    of_u = Promise(2, tuple((p, ShardState(6 if p == 1 else 5, ())) for p in range(3)), (), ())
    found = shared_state.owners(VIEW, {"r": promise(5), "t": promise(6), "u": of_u})
    assert {p: (state.version, nodes) for p, (state, nodes) in found.items()} == {
        0: (6, ["t"]),
        1: (6, ["u", "t"]),
        2: (6, ["t"]),
    }


def test_owners_at_different_clocks_go_back_to_the_cut() -> None:
    job = replace(make_job("allreduce", partitions=3), exchange=SharedStateExchange())
    kept = Promise(2, promise(5).shards, (), tuple((p, ShardState(4, ())) for p in range(3)))
    for version, is_torn in ((5, False), (6, True)):
        promises = {"r": kept, "t": promise(version), "u": promise(5)}
        machines = Machines(("r",), ("t", "u"))
        found = plan_change(job, StageRule(), 2, VIEW, CutId(4, 1), promises, machines)
        assert (found.rolled_back, "the owners are at different clocks" in found.reason) == (is_torn, is_torn)


def test_who_copies_what() -> None:
    """t keeps partition 0 and gives 2 to a newcomer; u has the values of all partitions already."""
    after = replace(VIEW, epoch=2, owner=("t", "u", "v"), share=(*VIEW.share, ("v", 8)))
    sources = {p: Source(SourceKind.SHARD, owner) for p, owner in enumerate(VIEW.owner)}
    found = {
        (node, f.partition): (f.role, f.source.node)
        for node, f in shared_state.fetches(after, sources, dict.fromkeys(range(3), VIEW.members))
    }
    assert found == {
        ("r", 0): (Role.REPLICA, "r"),
        ("r", 1): (Role.REPLICA, "r"),
        ("r", 2): (Role.REPLICA, "r"),
        ("t", 0): (Role.OWNER, "t"),
        ("t", 1): (Role.REPLICA, "t"),
        ("t", 2): (Role.REPLICA, "t"),
        ("u", 0): (Role.REPLICA, "u"),
        ("u", 1): (Role.OWNER, "u"),
        ("u", 2): (Role.REPLICA, "u"),
        ("v", 0): (Role.REPLICA, "t"),
        ("v", 1): (Role.REPLICA, "u"),
        ("v", 2): (Role.OWNER, "t"),
    }


def test_after_a_rollback_all_come_from_the_cut() -> None:
    sources = {p: Source(SourceKind.BACKUP, "r") for p in range(3)}
    found = shared_state.fetches(replace(VIEW, epoch=2), sources, {})
    assert {(f.role is Role.OWNER, f.source) for _, f in found} == {
        (is_owner, Source(SourceKind.BACKUP, "r")) for is_owner in (True, False)
    }
    assert len(found) == 9
