"""What must hold of every view and record that becomes durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agileml.application import Update
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Cut
from agileml.core.protocol.record import Record
from agileml.core.protocol.view import CutId, StageGroup, StagesFrom, View
from agileml.events.run import MachineLost, MachinesJoined, MembershipChanged, ShortNoticeJudged
from agileml.events.terms import Way
from straggler.coverage import members, show
from tests.model.staged_toy import counters
from tests.model.toy import ASYNC

if TYPE_CHECKING:
    from tests.model.simulator import Simulation


def check_view(job: Job, view: View) -> None:
    """Exactly one owner and backup for each partition, exactly one worker for each unit of each clock."""
    assert len(view.owner) == len(view.backup) == job.layout.partitions
    assert len(set(view.members)) == len(view.members), view
    assert {*view.owner, *view.backup} <= set(view.members), view
    if job.pipeline is not None and not job.pipeline.flushes:
        clocks = [each.clock for each in view.stages]
        assert clocks == sorted(set(clocks)), f"stages of one clock twice: {view.stages}"
        overlapping = tuple(at for at, stage in enumerate(view.pipeline[:-1]) if len(stage.replicas) > 1)
        stops = tuple(stage.stop for stage in view.pipeline)
        assert view.stages[-1] == StagesFrom(view.base, stops, overlapping)
    if job.pipeline is not None:
        check_pipeline(job, view)
    covered = 0
    for node, units in view.share:
        assert node in view.members, view
        assert units, view
        assert not units & covered, f"{node} shares {show(units & covered)} with another worker"
        covered |= units
    assert covered == job.all_units, f"nobody works on {show(job.all_units & ~covered)}"
    for clock, dealt in view.open:
        assert view.base <= clock < job.clocks, view
        seen = 0
        for node, bundle in dealt:
            assert node in view.members, view
            assert bundle, view
            assert not bundle & seen, f"clock {clock}: {show(bundle & seen)} is dealt twice"
            seen |= bundle
    assert view.committed.clock <= view.base, view


def check_pipeline(job: Job, view: View) -> None:
    """Each partition is of one stage, and owned by one of its machines; each unit is at one machine of each stage."""
    assert [0, *(stage.stop for stage in view.pipeline)] == [
        *(stage.first for stage in view.pipeline),
        job.layout.partitions,
    ], view
    machines = [node for stage in view.pipeline for node in stage.machines]
    assert len(set(machines)) == len(machines) and set(machines) <= set(view.members), view
    for stage in view.pipeline:
        assert stage.first < stage.stop, view
        assert set(view.owner[stage.first : stage.stop]) <= set(stage.machines), view
        check_units(job, stage)


def check_units(job: Job, stage: StageGroup) -> None:
    covered = 0
    for node, units in stage.replicas:
        assert units and not units & covered, f"{node} shares {show(units & covered)} with another replica"
        covered |= units
    assert covered == job.all_units, f"nobody computes {show(job.all_units & ~covered)} at a stage"


def check_commit(simulation: Simulation, record: Record) -> None:
    """The committed cut never goes back, is never ahead of a version, and is whole at the backups."""
    committed = record.committed
    before = simulation.newest_record()
    view = record.view
    assert committed >= simulation.committed, (committed, simulation.committed)
    if committed == simulation.committed:
        return
    simulation.committed = committed
    assert view is not None
    if before is None or before.view != view:  # everyone goes back to a checkpoint
        is_worse = before is not None and before.committed.clock > committed.clock
        if before is not None and before.view is not None and (view.timeline == view.epoch or is_worse):
            check_given_up(simulation, before.view, before.committed)
        assert committed.clock == view.base
        assert committed.epoch == view.epoch
        assert view.timeline == view.epoch or simulation.schedule.toy_mode == "allreduce"
        return
    for partition, node in enumerate(view.backup):
        backup = simulation.nodes[node].node.backup
        cut = backup.arrived(partition) or backup.cut(partition)
        assert cut is not None, (partition, node, committed)
        assert cut.clock == committed.clock, (partition, node, committed, cut.clock)
        simulation.kept.add((committed, partition, node))
        check_counts(simulation.job, partition, cut)
        assert not (simulation.job.elastic and cut.counted), (
            f"a cut in the middle of a superstep: {cut.counted}"
        )
        owner = simulation.nodes[view.owner[partition]]
        if not owner.is_dead:
            for p, version in owner.node.server.versions(view.epoch):
                assert p != partition or version >= committed.clock


def note_backups(simulation: Simulation, view: View) -> None:
    """A view is durable: whoever has its part of the committed cut by now, staged for it or before, has to keep it."""
    for partition, name in enumerate(view.backup):
        backup = simulation.nodes[name].node.backup
        if backup.is_staged(view.epoch, partition) or backup.name(partition) == view.committed:
            simulation.kept.add((view.committed, partition, name))


def check_backed_up(simulation: Simulation, view: View) -> None:
    """A durable view whose replicas are all at one clock has every part of the committed cut at its backup.

    A part can be nowhere for a while with servers, and with replicas at different clocks: until the next cut.
    """
    names = {*view.group, *view.backup}
    # One that is in the next change already has dropped what it staged.
    is_gone = any(simulation.nodes[name].node.promised > view.epoch for name in names)
    if is_gone or not simulation.job.exchange.has_replicas or view.committed.clock == 0:
        return
    servers = [simulation.nodes[name].node.server for name in view.group]
    if len({version for server in servers for _, version in server.versions(view.epoch)}) == 1:
        for partition, name in enumerate(view.backup):
            assert (view.committed, partition, name) in simulation.kept, (partition, name, view)


def check_given_up(simulation: Simulation, view: View, committed: CutId) -> None:
    """The committed cut is given up only when a part of it is with no machine that lives (and speaks).

    A part can be with no backup for a while: its backup died, and so did its owner before the next cut was whole, or
    the owner got the partition from another machine and so has no own copy of that cut.
    """
    members = [simulation.nodes[name] for name in view.members]
    alive = [node for node in members if not simulation.is_lost_to_controller(node)]
    for partition, backup in enumerate(view.backup):
        if (committed, partition, backup) in simulation.kept and simulation.nodes[backup] in alive:
            continue  # it had the part when the cut was committed, and has been its backup since then
        backed_up = any(n.node.backup.committed == committed and n.node.backup.cut(partition) for n in alive)
        copies = [n.node.server._copies.get(partition, {}).values() for n in alive]
        if not backed_up and not any(committed in shard.cuts.known for held in copies for shard in held):
            return
    raise AssertionError(f"{committed} is given up although machines that live have every part of it")


def check_rollbacks(simulation: Simulation) -> None:
    """Nothing is rolled back unless an owner died or did not answer, or must go sooner than it can give its shards."""
    owners: set[str] = set()
    lost: set[str] = set()
    pressed: set[str] = set()
    for event in simulation.events:
        match event:
            case MachineLost(machine):
                lost.add(machine)
            case MachinesJoined(machines):
                lost -= machines.keys()
            case MembershipChanged():
                missing = {name for name in owners if name in lost or simulation.nodes[name].is_dead}
                may_be_torn = simulation.schedule.toy_mode in ASYNC or simulation.schedule.is_sharded
                is_torn = may_be_torn and "at different clocks" in event.reason
                assert missing or pressed & owners or is_torn or not event.rolled_back, event
                owners = set(event.owners)
                pressed = set()
            case ShortNoticeJudged(machines, Way.ROLL_BACK, left_s, needed_s):
                assert left_s < 2 * needed_s, event
                pressed = set(machines)


def check_counts(job: Job, partition: int, cut: Cut) -> None:
    """Exactly the clocks < `cut.clock`, and of later ones what the cut says, have been counted once by each unit."""
    start, stop = job.layout.range_of(0, partition)
    seen = np.array([[1.0, (clock + 1.0) ** 2] for clock in range(cut.clock)]).reshape(-1, 2).sum(axis=0)
    if job.pipeline is not None:
        if job.layout.tables[0].update is Update.STEP:
            assert (counters(cut.blocks[0], job.units) == seen).all(), (partition, cut.clock, cut.blocks[0])
        return
    expected = np.tile(seen, (job.units, 1))
    for clock, bundles in cut.counted:
        for bundle in bundles:
            for unit in members(bundle):
                expected[unit] += [1.0, (clock + 1.0) ** 2]
    # The rows of a sparse table, or the elements of a dense one.
    found, expected = (
        cut.blocks[0],
        (expected if job.layout.tables[0].sparse else expected.reshape(-1))[start:stop],
    )
    assert (found == expected).all(), (
        f"partition {partition}, cut {cut.clock}: counted {found}, not {expected}"
    )
