"""Sums by all-reduce are mixed, lost, or waited for without end."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.change import change_plan
from agileml.core.exchange import replicas
from agileml.core.exchange.pause import AllReducePause
from agileml.core.exchange.reducer import Reducer
from agileml.core.node.bundles import WorkerBundles
from agileml.core.protocol.exchange import nearest
from agileml.core.protocol.messages import ShardState
from agileml.core.protocol.view import INITIAL
from tests.model.mutants.mutant import replaces


@replaces(WorkerBundles.forget, mode="allreduce", caught_by=0)
def what_was_with_a_group_is_used_again(original, self, clock, bundle):
    """Sums are made in place: the array has whatever the group left in it."""


@replaces(replicas.newest, mode="allreduce", caught_by=1)
def the_oldest_replica_counts(original, view, promises, committed):
    """Partitions of two clocks are in one model, or work that is done is applied twice."""
    oldest: dict[int, ShardState] = {}
    for promise in promises.values():
        for partition, state in promise.shards:
            known = oldest.get(partition, state)
            oldest[partition] = state if state.version < known.version else known
    claimed = {
        node: replace(promise, shards=tuple((p, oldest[p]) for p, _ in promise.shards))
        for node, promise in promises.items()
    }
    return original(view, claimed, committed)


@replaces(nearest, mode="allreduce", caught_by=0)
def a_replica_that_is_behind_stays_so(original, node, source, copies):
    """Replicas begin a view at different versions."""
    return original(node, source, [node] if copies else copies)


@replaces(replicas.newest, mode="allreduce", caught_by=127)
def replicas_older_than_the_committed_cut_count(original, view, promises, committed):
    """The committed cut is ahead of what is trained on."""
    return original(view, promises, INITIAL)


@replaces(change_plan._with_backups, mode="allreduce", caught_by=44)
def lost_backups_are_not_made_again(original, job, epoch, start, holders):
    """The last cut is committed, and a part of it is nowhere."""
    return start


@replaces(AllReducePause.settle, mode="allreduce", caught_by=10)
def a_change_does_not_wait_for_a_clocks_end(original, self, trigger, move_s):
    """A notice or a join costs sums that were under way."""
    return trigger or original(self, None, move_s)


@replaces(AllReducePause.settle, mode="allreduce", caught_by=535)
def a_pause_that_nobody_hears_of_again(original, self, trigger, move_s):
    """A joiner that dies while they pause leaves everybody paused."""
    if trigger is None:
        self._asked = None
    return original(self, trigger, move_s)


@replaces(Reducer.pause, mode="allreduce", caught_by=10)
def a_pause_takes_effect_at_once(original, self):
    """Some stop before a clock that others have begun."""
    original(self)
    self._is_paused = True


@replaces(Reducer.broken, mode="allreduce", caught_by=550)
def a_broken_group_is_said_once(original, self, event):
    """The message is lost, and everybody waits for a sum that never comes."""
    original(self, event)
    self._failure = None


@replaces(Reducer.resend, mode="allreduce", caught_by=9)
def machines_introduce_themselves_once(original, self):
    """The message is lost, and the group never meets."""
    self._has_summed = True
    original(self)


@replaces(Reducer.reduced, mode="allreduce", caught_by=27)
def sums_of_an_old_group_count(original, self, event, now_s):
    """A sum lacks a bundle, or has one twice."""
    if self._view is not None:
        event = replace(event, epoch=self._view.epoch)
    original(self, event, now_s)
