"""A change of members loses, doubles or mixes what was counted. PROTOCOL: CHANGE."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from agileml.core.change.broken_links import BrokenLinks
from agileml.core.change.change_plan import _deal, plan_change
from agileml.core.change.membership import Membership
from agileml.core.change.run import ChangeRun
from agileml.core.change.short_notice import leavers
from agileml.core.controller.changes import MembershipChanges
from agileml.core.controller.control import Control
from agileml.core.controller.controller import Controller
from agileml.core.controller.notices import NoticeHandler
from agileml.core.node.server import Server
from agileml.core.node.shard.shard import Shard
from agileml.core.protocol.commands import Released
from agileml.core.protocol.inputs import Notice, Persisted, Superseded
from agileml.core.protocol.messages import Announce, Prepare, Role, Source, SourceKind
from tests.model.mutants.mutant import replaces


@replaces(Server.prepare, mode="bsp", caught_by=404)
def staged_copies_are_authoritative(original, self, message):
    """A copy of a view that was never written has counted what no other partition has."""
    for copies in self._copies.values():
        if message.tag in copies:
            copies[message.tag] = copies[max(copies)]
    original(self, message)


@replaces(Control.send, mode="bsp", caught_by=43)
def tag_of_the_last_attempt(original, self, to, message):
    """Copies of the durable view are dropped."""
    if isinstance(message, Prepare):
        message = replace(message, tag=message.epoch - 1)
    original(self, to, message)


@replaces(ChangeRun.unpromised, mode="bsp", caught_by=3)
def not_everybody_has_promised(original, self, nodes):
    """An owner goes on counting, or everybody goes back for no reason."""
    missing = original(self, nodes)
    return missing if len(missing) > 1 else []


@replaces(MembershipChanges._needed, mode="bsp", caught_by=86)
def a_change_waits_for_machines_that_it_does_not_need(original, self):
    """One that loads its items for ever lets the whole run stand still."""
    return [member.name for member in self._control.members.alive()]


@replaces(Membership.record_message, mode="bsp", caught_by=270)
def a_machine_that_hears_nothing_counts_as_alive(original, self, node, now_s):
    """A change waits for its promise for ever."""
    if node in self.nodes:
        self.nodes[node].is_unreachable = False
    return original(self, node, now_s)


@replaces(BrokenLinks.judge, mode="bsp", caught_by=29)
def nobody_is_given_up_for_a_broken_link(original, self, members, view, is_needed, now_s):
    """Two machines wait for each other for ever."""


@replaces(Control.persist, mode="bsp", caught_by=134)
def view_announced_before_it_is_durable(original, self, record, *then):
    """Nodes drop what the durable view says they hold."""
    original(self, record, *then)
    if record.view is not None and record.view != self.view:
        for member in self.members.alive():
            self.send(member.name, Announce(record.view, self.limit))


@replaces(Controller.handle, mode="bsp", caught_by=43)
def no_compare_and_set(original, self, event, now_s):
    """Two controllers act at once."""
    if isinstance(event, Superseded):
        event = Persisted(event.number)
    return original(self, event, now_s)


@replaces(plan_change, mode="bsp", caught_by=8)
def base_is_the_newest_version(original, job, rule, epoch, view, committed, promises, *others):
    """A partition that is behind never gets what it lacks."""
    change = original(job, rule, epoch, view, committed, promises, *others)
    if view is None or change.rolled_back:
        return change
    newest = max(state.version for promise in promises.values() for _, state in promise.shards)
    dealt = tuple((clock, bundles) for clock, bundles in change.view.open if clock >= newest)
    return replace(change, view=replace(change.view, base=newest, open=dealt))


@replaces(Shard.copy, mode="bsp", caught_by=16)
def pending_contributions_do_not_move(original, self, have=None):
    """Acknowledged work is lost."""
    return replace(original(self, have), pending=())


@replaces(_deal, mode="sum", caught_by=46)
def boundaries_are_not_kept(original, job, had, clock, lacking, waiting, share, members):
    """Bundles overlap in part."""
    return original(job, had, clock, lacking, (), share, members)


@replaces(_deal, mode="bsp", caught_by=6)
def pending_work_is_dealt_to_nobody(original, job, had, clock, lacking, waiting, share, members):
    """A dead worker's half-delivered bundle is never finished."""
    dealt = original(job, had, clock, lacking, waiting, share, members)
    before = dict(had.view.open).get(clock, ()) if had else ()
    kept = {bundle for node, bundle in before if node in members}
    return tuple((node, bundle) for node, bundle in dealt if bundle not in waiting or bundle in kept)


@replaces(plan_change, mode="bsp", caught_by=71)
def survivors_are_not_rolled_back(original, job, rule, epoch, view, committed, promises, *others):
    """Partitions of two times are in one model."""
    change = original(job, rule, epoch, view, committed, promises, *others)
    if view is None or not change.rolled_back or change.committed != committed:
        return change
    frozen = {p: node for node, promise in promises.items() for p, _ in promise.shards}
    fetches = tuple(
        (node, replace(fetch, source=Source(SourceKind.SHARD, frozen[fetch.partition])))
        if fetch.role is Role.OWNER and fetch.partition in frozen
        else (node, fetch)
        for node, fetch in change.fetches
    )
    return replace(change, fetches=fetches)


@replaces(plan_change, mode="bsp", caught_by=13)
def a_rollback_keeps_the_timeline(original, job, rule, epoch, view, *others):
    """Workers keep contributions of clocks that are undone."""
    change = original(job, rule, epoch, view, *others)
    if view is None:
        return change
    return replace(change, view=replace(change.view, timeline=view.timeline))


@replaces(Membership.may_hold, mode="bsp", caught_by=20)
def machines_under_notice_get_work(original, self, member):
    """The notice is wasted: everybody goes back for no reason."""
    return member.is_alive and member.admitted


@replaces(Controller.handle, mode="bsp", caught_by=36)
def machines_under_notice_leave_at_once(original, self, event, now_s):
    """The partitions that they hold go with them."""
    commands = original(self, event, now_s)
    return [*commands, Released(event.node)] if isinstance(event, Notice) else commands


@replaces(ChangeRun.is_good, mode="bsp", caught_by=74)
def a_change_counts_on_a_source_that_is_dead(original, self, members):
    """The change waits for ever for the copies that the dead machine has not given yet."""
    return original(replace(self, _open={}, _sources=Counter()), members)


@replaces(leavers, mode="bsp", caught_by=20)
def a_notice_is_never_long_enough(original, moved, left_s, bytes_per_s):
    """Clocks are done again though there was time to move everything."""
    return original(moved, dict.fromkeys(left_s, 0.0), bytes_per_s)


@replaces(NoticeHandler._roll_back, mode="bsp", caught_by=386)
def a_short_notice_gives_the_committed_cut_up(original, self, plan, move, promises, rate):
    """Everyone goes back to a checkpoint, or to the start, though the leaver lives."""

    def plan_as_if_kept(some):
        change = plan(some)
        return replace(change, view=replace(change.view, committed=move.committed))

    return original(self, plan_as_if_kept, move, promises, rate)
