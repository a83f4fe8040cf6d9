"""What only a repeat brings back: these cost time, and show on a network where nobody repeats anything."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from agileml.core.change.run import ChangeRun
from agileml.core.controller.changes import MembershipChanges
from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.node.overlap.piggyback import DelayedAcks, piggybacked
from agileml.core.node.server import Server
from agileml.core.protocol.commands import Send
from agileml.core.protocol.messages import Push
from tests.model.mutants.mutant import replaces


@replaces(Server.adopt, mode="bsp", caught_by=2, orderly=True)
def a_view_forgets_who_asked_before_it_came(original, self, view, now_s):
    """A worker that had the view first waits until it asks again."""
    self._waiting.clear()
    original(self, view, now_s)


@replaces(ChangeRun.unasked, mode="bsp", caught_by=243, orderly=True)
def who_appears_in_a_change_is_not_asked(original, self, nodes):
    """A change waits for a promise that nobody asked for."""
    return [] if self._asked else original(self, nodes)


@replaces(MembershipChanges.committed, mode="bsp", caught_by=261, orderly=True)
def a_save_is_asked_of_the_old_backups_alone(original, self, before):
    """A checkpoint, and the end of the run, wait for parts that nobody was asked for."""
    with patch.object(CutKeeper, "send_save"):
        original(self, before)


@replaces(Server.push, mode="dense", caught_by=14, orderly=True)
def a_push_that_asks_for_more_gets_nothing(original, self, worker, message, now_s, *, given):
    """The worker waits until it repeats its question."""
    original(self, worker, replace(message, pulls_next=False), now_s, given=given)


@replaces(piggybacked, mode="dense", caught_by=27, orderly=True)
def the_question_rides_on_any_push(original, commands):
    """Other partitions are not asked for what the worker waits for."""
    asked: set[tuple[str, int]] = set()
    found = []
    for command in original(commands):
        if isinstance(command, Send) and isinstance(command.message, Push) and command.message.pulls_next:
            key = command.to, command.message.clock
            command = replace(command, message=replace(command.message, pulls_next=key not in asked))
            asked.add(key)
        found.append(command)
    return found


@replaces(
    DelayedAcks.answered,
    mode="dense",
    safe="the parameters of the next clock come in the end; without them the push is repeated",
    orderly=True,
)
def every_answer_acknowledges_all(original, self, worker, partition, clock, version):
    """Parameters for work that is done again say nothing of the clock that was pushed."""
    self.take(worker, partition)


@replaces(
    DelayedAcks.due,
    mode="dense",
    safe="a clock that takes long is pushed again and again; a server does not count twice what it knows",
    orderly=True,
)
def an_owed_acknowledgement_is_never_sent(original, self, now_s):
    """A worker that is told nothing pushes again."""
    return iter(())
