"""One worker: a replica of a stage that runs its fixed list of actions.

It never chooses: the list says what comes next, and the versions say which weights each action uses, so the bits do not
depend on timing. An action waits for its input, and a forward for the sums of gradients that its weights need.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from pipeline.run.links import Receiver, Sender
from pipeline.run.tree import TreeSum, owned
from pipeline.run.weights import StageWeights
from pipeline.schedule.actions import Action, Kind, Schedule
from pipeline.schedule.rules import update_members
from pipeline.schedule.versions import Trace
from pipeline.stages.passes import Pass, StageCompute


@dataclass(frozen=True)
class Item:
    """The microbatch that one place of the schedule computes.

    leaf: its place in the sum of its group, where the weights change by groups. share: the factor of its loss. key: of
    random numbers. load: (flat inputs, targets); called by stages that read them.
    """

    leaf: int
    share: float
    key: int
    load: Callable[[], tuple[Sequence[Any], Sequence[Any]]]


@dataclass
class Ends:
    """A worker's connections: by worker at the other end."""

    forward_from: Mapping[int, Receiver] = field(default_factory=dict)
    forward_to: Mapping[int, Sender] = field(default_factory=dict)
    backward_from: Mapping[int, Receiver] = field(default_factory=dict)
    backward_to: Mapping[int, Sender] = field(default_factory=dict)
    sums_from: Mapping[int, Receiver] = field(default_factory=dict)
    sums_to: Mapping[int, Sender] = field(default_factory=dict)

    def receivers(self) -> list[Receiver]:
        """All receiving ends."""
        return [*self.forward_from.values(), *self.backward_from.values(), *self.sums_from.values()]


@dataclass(frozen=True)
class WorkSpan:
    """One action as it ran: it waited from wait_s to start_s and ended at end_s."""

    action: Action
    wait_s: float
    start_s: float
    end_s: float


@dataclass
class _Flight:
    """A minibatch between its forward and its last action at this stage."""

    kept: Pass
    key: int
    foreign: list[tuple[Receiver, int]]


class Worker:
    """Runs worker `number` of a traced schedule. `items` gives what a place (1-based) of the schedule computes."""

    def __init__(
        self,
        traced: Trace,
        number: int,
        compute: StageCompute,
        weights: StageWeights,
        items: Callable[[int], Item],
        ends: Ends,
    ) -> None:
        self.number, self.compute, self.weights, self.ends = number, compute, weights, ends
        self.schedule: Schedule = traced.schedule
        self.stage = self.schedule.stage_of(number)
        self.actions = self.schedule.workers[number]
        self.place = 0
        self.losses: dict[int, float] = {}
        self.spans: list[WorkSpan] = []
        self._group, self._uses, self._items = traced.group, traced.uses[number], items
        self._last_kind = self.schedule.kinds(self.stage)[-1]
        self._defers = self._last_kind is Kind.WEIGHTS
        self._flights: dict[int, _Flight] = {}
        # Gradients of weights that a backward did not put off.
        self._rest: dict[int, list[Tensor | None]] = {}
        self._sums: dict[int, TreeSum] = {}
        self._updates = deque(self._all_updates())  # that are still to be made here
        self._foreign = [r.foreign for r in ends.receivers() if r.foreign]

    @property
    def is_done(self) -> bool:
        """Whether the list is at its end and all updates are made."""
        return self.place == len(self.actions) and not self._updates

    def needs(self) -> list[Receiver]:
        """The ends at which the next step would wait for a message, once for each."""
        updates, receiver = list(self._updates), None
        if self.place < len(self.actions):
            updates = self._needed_updates(self._uses[self.place])
            receiver = self._input_of(self.actions[self.place])
        sums = [self.ends.sums_from[w] for members in updates for w in self._others(members)]
        return sums if receiver is None else [receiver, *sums]

    def step(self) -> None:
        """Run the next action, waiting for what it needs; behind the last one, make the updates that are left."""
        if self.place == len(self.actions):
            while self._updates:
                self._update()
            return
        action, wait_s = self.actions[self.place], time.perf_counter()
        version = self._uses[self.place]
        for _ in self._needed_updates(version):
            self._update()
        if action.kind is Kind.FORWARD:
            start_s = self._forward(action.minibatch, version)
        elif action.kind is Kind.BACKWARD:
            start_s = self._backward(action.minibatch)
        else:
            start_s = time.perf_counter()
            self._weights(action.minibatch)
        if action.kind is self._last_kind:
            self._finished(action.minibatch)
        self.weights.ended(self.place)
        self.place += 1
        self.spans.append(WorkSpan(action, wait_s, start_s, time.perf_counter()))

    def _forward(self, b: int, version: int) -> float:
        item, code = self._items(b), self.compute.code
        incoming: list[Tensor] = []
        foreign: list[tuple[Receiver, int]] = []
        if (receiver := self._input_of(Action(Kind.FORWARD, b))) is not None:
            incoming = [t for t in receiver.receive(b) if t is not None]
            foreign.append((receiver, b))
        start_s = time.perf_counter()
        inputs, targets = item.load() if code.inputs or code.is_last else ([], [])
        kept = self.compute.forward(
            self.weights.version(version), incoming, inputs, targets, item.key, defer=self._defers
        )
        self._flights[b] = _Flight(kept, item.key, foreign)
        if code.is_last:
            self.losses[b] = float(kept.outgoing[0].detach())
        else:
            self.ends.forward_to[self.schedule.worker(self.stage + 1, b)].send(b, kept.outgoing)
        return start_s

    def _backward(self, b: int) -> float:
        flight = self._flights[b]
        gradients: Sequence[Tensor | None]
        if (receiver := self._input_of(Action(Kind.BACKWARD, b))) is not None:
            gradients = receiver.receive(b)
            flight.foreign.append((receiver, b))
        else:
            gradients = [torch.full_like(flight.kept.outgoing[0], self._items(b).share)]
        start_s = time.perf_counter()
        into, own = self.compute.backward(flight.kept, gradients)
        if self.stage > 0:
            self.ends.backward_to[self.schedule.worker(self.stage - 1, b)].send(b, into)
        if self._defers:
            self._rest[b] = own
        else:
            self._count(b, own)
        return start_s

    def _weights(self, b: int) -> None:
        own = self._rest.pop(b)
        for place, gradient in self.compute.deferred(self._flights[b].kept).items():
            own[place] = gradient
        self._count(b, own)

    def _count(self, b: int, own: Sequence[Tensor | None]) -> None:
        """Add a microbatch's gradients of weights to the sum of its update."""
        first = self._members(b)[0]
        self._sums.setdefault(first, TreeSum()).add(self._leaf(b), 1, owned(own, self._foreign))

    def _leaf(self, b: int) -> int:
        return self._items(b).leaf if self.schedule.updates_by_group else b - self._members(b)[0]

    def _finished(self, b: int) -> None:
        """The last action of a minibatch has ended: its memory is free; after the last of an update here, send it."""
        for receiver, number in self._flights.pop(b).foreign:
            receiver.release(number)
        members = self._members(b)
        if b != self._mine(members)[-1]:
            return
        flat = [t for _, _, tensors in self._sums[members[0]].nodes() for t in tensors]
        for sender in self.ends.sums_to.values():
            sender.send(members[0], flat)
        if self.schedule.replicas[self.stage] == 1:
            self._update()

    def _update(self) -> None:
        """Receive the other replicas' parts of the next update, and make the next version of the weights."""
        members = self._updates.popleft()
        total = self._sums.pop(members[0], TreeSum())
        count = len(self.compute.code.parameters)
        for worker in self._others(members):
            receiver = self.ends.sums_from[worker]
            flat = owned(receiver.receive(members[0]), [receiver.foreign])
            receiver.release(members[0])
            for place, (leaf, size) in enumerate(self._nodes_of(worker, members)):
                total.add(leaf, size, flat[place * count : (place + 1) * count])
        gradients = total.total()
        if not self.schedule.updates_by_group and len(members) > 1:  # replicas average, groups add up
            for gradient in gradients:
                if gradient is not None:
                    gradient.div_(len(members))
        self.weights.step(members[-1], gradients, self.place)

    def _nodes_of(self, worker: int, members: Sequence[int]) -> list[tuple[int, int]]:
        """The parts of an update that another replica sends."""
        theirs = TreeSum()
        for b in members:
            if self.schedule.worker(self.stage, b) == worker:
                theirs.add(self._leaf(b), 1, [])
        return [(first, size) for first, size, _ in theirs.nodes()]

    def _needed_updates(self, version: int) -> list[list[int]]:
        """The updates that are still to be made for a version of the weights, each as its minibatches."""
        return list(takewhile(lambda members: members[-1] <= version, self._updates))

    def _all_updates(self) -> Iterator[list[int]]:
        last = 0
        while last < self.schedule.minibatches:
            members = self._members(last + 1)
            yield members
            last = members[-1]

    def _members(self, b: int) -> list[int]:
        return update_members(self.schedule, self.stage, b, self._group)

    def _mine(self, members: Sequence[int]) -> list[int]:
        return [b for b in members if self.schedule.worker(self.stage, b) == self.number]

    def _others(self, members: Sequence[int]) -> list[int]:
        """The other replicas that take part in an update."""
        workers = dict.fromkeys(self.schedule.worker(self.stage, b) for b in members)
        return [w for w in workers if w != self.number]

    def _input_of(self, action: Action) -> Receiver | None:
        """The end at which an action's input arrives; None where it needs none from elsewhere."""
        b = action.minibatch
        if action.kind is Kind.FORWARD and self.stage > 0:
            return self.ends.forward_from[self.schedule.worker(self.stage - 1, b)]
        if action.kind is Kind.BACKWARD and self.stage + 1 < self.schedule.stages:
            return self.ends.backward_from[self.schedule.worker(self.stage + 1, b)]
        return None
