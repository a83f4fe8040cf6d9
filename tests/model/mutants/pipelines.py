"""A stage computes with what is not its unit's, its clock's or its epoch's, or a cut leaves a layer out."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.exchange.pause import ClockPause, StagePause
from agileml.core.exchange.stages import StageLinks
from agileml.core.node.server import Server
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import CrossingAck
from agileml.core.stage.pipeline_stages import place_stages
from agileml.core.stage.walk import Crossings, StageWalker
from tests.model.mutants.mutant import replaces


@replaces(Crossings.arrange, mode="flush", caught_by=18)
def an_activation_of_an_older_epoch_is_used(original, self, command):
    """A stage computes with what was made of weights before a rollback."""
    kept = {replace(at, epoch=command.epoch): crossing for at, crossing in self._kept.items()}
    original(self, command)
    self._kept = kept | self._kept


@replaces(StageWalker._count, mode="flush", caught_by=0)
def a_gradient_is_counted_twice(original, self, run, number):
    """The first unit of a clock weighs double where its gradient came back."""
    original(self, run, number)
    if not run.place.is_last and number == 0:
        for fold in run.folds[run.bundle_of(0)]:
            for block in fold.total().blocks if fold.counted == 1 else ():
                block.values[:] += block.values


@replaces(place_stages, mode="flush", caught_by=0)
def a_new_cut_leaves_a_layer_out(original, *arguments):
    """No machine owns the last layers after a change."""
    placement = original(*arguments)
    return replace(placement, owner=(*placement.owner[:-1], "")) if len(placement.owner) > 1 else placement


@replaces(place_stages, mode="flush", caught_by=5)
def a_machine_holds_layers_that_are_not_neighbours(original, *arguments):
    """Its own stage does not compute with them."""
    placement = original(*arguments)
    return replace(placement, owner=(*placement.owner[:-1], placement.owner[0]))


@replaces(Job.timeline_of, mode="flush", caught_by=8)
def a_computation_outlives_a_change(original, self, view):
    """A stage that has done its part of a clock does not send it to its new neighbours."""
    return view.timeline


@replaces(StageLinks.resend, mode="flush", caught_by=7)
def a_crossing_is_sent_once(original, self):
    """A neighbour waits for ever for what the network lost."""


@replaces(StageLinks.crossing, mode="flush", caught_by=7)
def any_answer_ends_all_repeats(original, self, sender, message):
    """One unit's answer stands for those of all."""
    if isinstance(message, CrossingAck):
        self._unanswered.clear()
        return
    original(self, sender, message)


@replaces(Crossings.forget, mode="flush", caught_by=7)
def a_clock_that_is_over_takes_later_ones_along(original, self, epoch, clock):
    """What a faster neighbour has sent already is gone, and it was answered."""
    self._kept.clear()


@replaces(Crossings.get, mode="flush", caught_by=0)
def a_unit_is_given_what_another_one_sent(original, self, at):
    """Stages disagree about which unit is which."""
    other = original(self, replace(at, unit=at.unit ^ 1))
    found = original(self, at)
    return other if found is not None and other is not None and at.unit == 1 else found


@replaces(StageWalker._stage, mode="flush", caught_by=6)
def a_stage_keeps_its_layers_after_a_change(original, self, here):
    """It computes with the weights of other layers."""
    if self._made is None:
        original(self, here)
    return self._made[1]


@replaces(ClockPause.settle, mode="flush", caught_by=26)
def a_drain_is_forgotten(original, self, trigger, move_s):
    """The clock under way is computed again though there was time to finish it."""
    return trigger


@replaces(StagePause._are_paused, mode="flush", caught_by=93)
def a_drain_ends_when_all_have_heard_of_it(original, self, statuses):
    """The clock under way is computed again though there was time to finish it."""
    return all(status.is_paused for status in statuses)


@replaces(StageLinks.pause, mode="flush", caught_by=79)
def every_stage_pauses_for_itself(original, self):
    """The stages stop after different clocks, and wait for each other."""
    was_asked = self._is_asked
    original(self)
    if not self._is_first and not was_asked:
        self._worker.may_leave = lambda clock: False


@replaces(Server.adopt, mode="flush", caught_by=4)
def a_pause_outlives_the_change(original, self, view, now_s):
    """The first stage never begins a clock again."""
    hold = self.hold
    original(self, view, now_s)
    self.hold = hold
