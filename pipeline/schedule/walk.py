"""The order in which workers that never wait without need run a stretch of minibatches, by a walk through time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.schedule.actions import Action, Kind


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one minibatch at a stage and, `link_s`, on the way to the next stage or back. weights_s: None where
    gradients of weights are not put off, else their part of backward_s."""

    forward_s: float
    backward_s: float
    link_s: float = 0.0
    weights_s: float | None = None

    def of(self, kind: Kind) -> float:
        """Seconds of one action."""
        if kind is Kind.FORWARD:
            return self.forward_s
        put_off_s = self.weights_s or 0.0
        return put_off_s if kind is Kind.WEIGHTS else self.backward_s - put_off_s


class Walk:
    """Minibatches first..last, from an empty pipeline to an empty pipeline.

    Each worker alternates forward and backward; where its turn's action cannot run yet it runs the other kind, within
    its limit, and where neither can run the gradients of weights that it has put off. Walking through time with the
    stages' seconds makes that one fixed list.

    limits: per stage, minibatches in flight at a replica. holds: per stage, minibatches whose gradients of weights are
    still to come at a replica. rounds: the weights change after each round of the replicas, so a forward waits for
    rounds. barrier: so does the worker itself. takers: by stage, the replica of each minibatch; None: they take them in
    turn.
    """

    def __init__(
        self,
        replicas: Sequence[int],
        limits: Sequence[int],
        holds: Sequence[int],
        times: Sequence[StageTimes],
        span: tuple[int, int],
        *,
        rounds: bool,
        barrier: bool = False,
        takers: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.takers = takers
        self.replicas, self.limits, self.holds, self.times = replicas, limits, holds, times
        (self.first, self.last), self.rounds, self.barrier = span, rounds, barrier
        self.stage_of = [stage for stage, count in enumerate(replicas) for _ in range(count)]
        workers = range(len(self.stage_of))
        self.mine: list[list[int]] = [[] for _ in workers]
        for b in range(self.first, self.last + 1):
            for stage in range(len(replicas)):
                self.mine[self._worker(stage, b)].append(b)
        self.lists: list[list[Action]] = [[] for _ in workers]
        self.done = {kind: [0 for _ in workers] for kind in Kind}
        self.ready: dict[Kind, set[tuple[int, int]]] = {kind: set() for kind in Kind}
        self.ready[Kind.FORWARD] = {(0, b) for b in range(self.first, self.last + 1)}
        self.busy = [False for _ in workers]
        self.arrived: dict[tuple[int, int], int] = {}
        # (when, worker, action, whether it is the action's end at the worker; else its result arrives there).
        self.events: list[tuple[float, int, Action, bool]] = []

    def run(self) -> list[list[Action]]:
        """The lists of all workers."""
        for worker in range(len(self.stage_of)):
            self._begin(worker, 0.0)
        while self.events:
            now = self.events[0][0]
            touched: set[int] = set()
            # All that ends at one moment ends before anyone chooses: the order of equal times plays no part.
            while self.events and self.events[0][0] == now:
                _, worker, action, ends = heapq.heappop(self.events)
                touched |= self._end(worker, action, now) if ends else self._arrive(worker, action)
            for worker in sorted(touched):
                if not self.busy[worker]:
                    self._begin(worker, now)
        for stage, done, mine in zip(self.stage_of, self.done[Kind.BACKWARD], self.mine, strict=True):
            assert done == len(mine), f"stuck at stage {stage + 1}"
        return self.lists

    def _worker(self, stage: int, b: int) -> int:
        turn = (b - 1) % self.replicas[stage] if self.takers is None else self.takers[stage][b - self.first]
        return sum(self.replicas[:stage]) + turn

    def _choose(self, worker: int) -> Action | None:
        stage, mine = self.stage_of[worker], self.mine[worker]
        f, b, w = (self.done[kind][worker] for kind in Kind)
        puts_off = self.times[stage].weights_s is not None
        can_f = (
            f < len(mine)
            and f - b < self.limits[stage]
            and (not puts_off or f - w < self.holds[stage])
            and (stage, mine[f]) in self.ready[Kind.FORWARD]
            and self._weights_there(worker)
        )
        can_b = b < f and (stage, mine[b]) in self.ready[Kind.BACKWARD]
        after_forward = self._last_kind(worker) is Kind.FORWARD
        if can_b and (after_forward or not can_f):
            return Action(Kind.BACKWARD, mine[b])
        if can_f:
            return Action(Kind.FORWARD, mine[f])
        return Action(Kind.WEIGHTS, mine[w]) if puts_off and w < b else None

    def _last_kind(self, worker: int) -> Kind | None:
        """The kind of a worker's last forward or backward."""
        return next((a.kind for a in reversed(self.lists[worker]) if a.kind is not Kind.WEIGHTS), None)

    def _weights_there(self, worker: int) -> bool:
        """Whether all replicas have ended the last round that this worker's next forward needs."""
        done = self.done[Kind.BACKWARD][worker]
        if not self.rounds or not done:
            return True
        stage = self.stage_of[worker]
        turn = (self.mine[worker][done - 1] - self.first) // self.replicas[stage]
        # As Schedule.rounds_behind has it.
        turn -= 1 if self.replicas[stage] > 1 and self.limits[stage] > 1 else 0
        return turn < 0 or self.arrived.get((stage, turn), 0) == len(self._round(stage, turn))

    def _round(self, stage: int, turn: int) -> range:
        """The minibatches of a round."""
        low = self.first + turn * self.replicas[stage]
        return range(low, min(low + self.replicas[stage], self.last + 1))

    def _begin(self, worker: int, now: float) -> None:
        action = self._choose(worker)
        if action is None:
            return
        self.lists[worker].append(action)
        self.busy[worker] = True
        self.done[action.kind][worker] += 1
        seconds = self.times[self.stage_of[worker]].of(action.kind)
        heapq.heappush(self.events, (now + seconds, worker, action, True))

    def _arrive(self, worker: int, action: Action) -> set[int]:
        """Record that the input of an action is there; returns the worker that may go on now."""
        self.ready[action.kind].add((self.stage_of[worker], action.minibatch))
        return {worker}

    def _end(self, worker: int, action: Action, now: float) -> set[int]:
        """Hand an action's result on; returns the workers that may go on now."""
        stage, b = self.stage_of[worker], action.minibatch
        touched = self._freed(worker, stage, action)
        if action.kind is Kind.WEIGHTS:
            return touched
        if action.kind is Kind.BACKWARD:
            target, kind = stage - 1, Kind.BACKWARD
        elif stage + 1 < len(self.replicas):
            target, kind = stage + 1, Kind.FORWARD
        else:
            target, kind = stage, Kind.BACKWARD
        if target >= 0:
            arrival = (self._worker(target, b), Action(kind, b))
            delay_s = 0.0 if target == stage else self.times[min(stage, target)].link_s
            if delay_s > 0:
                heapq.heappush(self.events, (now + delay_s, *arrival, False))
            else:
                touched |= self._arrive(*arrival)
        return touched

    def _freed(self, worker: int, stage: int, action: Action) -> set[int]:
        """The worker itself; the replicas of a round once the last of them has ended it. At a barrier none is free
        before that."""
        if action.kind is not Kind.BACKWARD or not self.rounds:
            self.busy[worker] = False
            return {worker}
        turn = (action.minibatch - self.first) // self.replicas[stage]
        self.arrived[stage, turn] = self.arrived.get((stage, turn), 0) + 1
        if not self.barrier:
            self.busy[worker] = False
        members = self._round(stage, turn)
        if self.arrived[stage, turn] < len(members):
            return {worker}
        workers = {self._worker(stage, b) for b in members}
        if self.barrier:
            for free in workers:
                self.busy[free] = False
        return workers
