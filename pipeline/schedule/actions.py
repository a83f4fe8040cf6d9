"""Static schedules: which forwards and backwards each worker runs, in which order (thesis 5.3.2).

Four policies: 1F1B (1F1B-RR where stages are replicated), GPipe, model parallel. Minibatches count from 1;
at a stage with r replicas minibatch b belongs to replica (b-1) mod r, forward and backward alike. A worker
runs its list from left to right and waits for what an action needs; nothing else coordinates the workers.

Schedules print as text, one line per worker, and parse back:

    schedule 1f1b replicas=1-1-1-1 minibatches=5 in_flight=4-3-2-1 group=1 drains=5
    stage 1 replica 1: F1 F2 F3 F4 B1 F5 B2 B3 B4 B5
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property


class ScheduleError(ValueError):
    """A schedule that cannot be made or parsed; the message is one sentence."""


class Kind(StrEnum):
    """The direction of an action."""

    FORWARD = "F"
    BACKWARD = "B"


class Policy(Enum):
    """The way in which the lists were built."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    MODEL_PARALLEL = "model-parallel"


@dataclass(frozen=True, order=True)
class Action:
    """The forward or the backward of one minibatch at a worker's stage."""

    kind: Kind
    minibatch: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.minibatch}"


@dataclass(frozen=True)
class Schedule:
    """Lists of actions for every worker, stage by stage and replica by replica.

    replicas: per stage. in_flight: per stage, the most minibatches whose forward a replica has run and whose
    backward it has not. group: minibatches per update of the weights (1 but for GPipe). drains: the last
    minibatch of each epoch, ascending; the pipeline is empty behind each.
    """

    policy: Policy
    replicas: tuple[int, ...]
    in_flight: tuple[int, ...]
    group: int
    drains: tuple[int, ...]
    workers: tuple[tuple[Action, ...], ...]

    @property
    def minibatches(self) -> int:
        """How many minibatches there are."""
        return self.drains[-1]

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.replicas)

    @cached_property
    def first_workers(self) -> tuple[int, ...]:
        """The first worker of each stage."""
        return tuple(sum(self.replicas[:stage]) for stage in range(self.stages))

    @cached_property
    def stage_of_worker(self) -> tuple[int, ...]:
        """The stage (0-based) of each worker."""
        return tuple(stage for stage, count in enumerate(self.replicas) for _ in range(count))

    def worker(self, stage: int, minibatch: int) -> int:
        """The worker that has a minibatch at a stage (0-based)."""
        return self.first_workers[stage] + (minibatch - 1) % self.replicas[stage]

    def stage_of(self, worker: int) -> int:
        """The stage (0-based) of a worker."""
        return self.stage_of_worker[worker]

    def epoch_of(self, minibatch: int) -> int:
        """The epoch (0-based) of a minibatch."""
        return bisect.bisect_left(self.drains, minibatch)

    def epoch_begin(self, minibatch: int) -> int:
        """The last minibatch before the epoch of this one (0 in the first)."""
        epoch = self.epoch_of(minibatch)
        return self.drains[epoch - 1] if epoch else 0

    def __str__(self) -> str:
        lines = [
            f"schedule {self.policy.value} replicas={_joined(self.replicas)} minibatches={self.minibatches} "
            f"in_flight={_joined(self.in_flight)} group={self.group} drains={_joined(self.drains)}"
        ]
        worker = 0
        for stage, count in enumerate(self.replicas, start=1):
            for replica in range(1, count + 1):
                actions = " ".join(map(str, self.workers[worker]))
                lines.append(f"stage {stage} replica {replica}: {actions}".rstrip())
                worker += 1
        return "\n".join(lines) + "\n"


def noam(replicas: Sequence[int]) -> int:
    """NUM_OPT_ACTIVE_MINIBATCHES per input replica: ceil(workers / replicas of the input stage)."""
    return -(-sum(replicas) // replicas[0])


def full_rate_in_flight(replicas: Sequence[int]) -> int:
    """Minibatches in flight per input replica that keep inner replicated stages busy.

    NOAM is enough for straight pipelines and replicated input stages. A stage with r replicas behind the
    input holds each minibatch r times as long, and its replicas are served in turn: up to r - 1 more
    minibatches must be on their way so that none of them waits.
    """
    inner = max(replicas[1:], default=1)
    return noam(replicas) + inner - 1


def stage_limits(replicas: Sequence[int], in_flight: int | None = None) -> tuple[int, ...]:
    """Minibatches in flight per replica of each stage: as `noam` counted from that stage on, plus what the
    input stage admits beyond NOAM. 4 stages: 4, 3, 2, 1."""
    first = noam(replicas) if in_flight is None else in_flight
    extra = (first - noam(replicas)) * replicas[0]
    limits = []
    for stage, count in enumerate(replicas):
        here = -(-(sum(replicas[stage:]) + extra) // count)
        limits.append(max(1, min(here, -(-first * replicas[0] // count) if stage else first)))
    return tuple(limits)


def one_f_one_b(
    replicas: Sequence[int],
    minibatches: int,
    *,
    in_flight: int | None = None,
    drains: Sequence[int] = (),
    forward_s: Sequence[float] | None = None,
    backward_s: Sequence[float] | None = None,
    link_s: Sequence[float] | None = None,
    barrier: bool = False,
) -> Schedule:
    """1F1B, or 1F1B-RR where a stage has replicas.

    in_flight: minibatches that each input replica admits (default NOAM; `full_rate_in_flight` keeps inner
    replicated stages busy). drains: minibatches after which the pipeline empties, besides the last.
    forward_s, backward_s: seconds per stage of one minibatch on one replica, from which the order of start-up
    follows; by default stages are balanced and a backward takes two forwards. link_s: seconds from each stage
    to the next, and back, [stages - 1]; by default none. barrier: make lists that also
    run to the end where replicas wait for each other inside a backward, to add up their gradients (as DDP
    does); some lists that are sound without would stop there. Raises ScheduleError.
    """
    ends = _check(replicas, minibatches, drains)
    if in_flight is not None and in_flight < 1:
        raise ScheduleError(f"at least one minibatch must be in flight, found {in_flight}")
    limits = stage_limits(replicas, in_flight)
    forward = [float(r) for r in replicas] if forward_s is None else list(forward_s)
    backward = [2.0 * r for r in replicas] if backward_s is None else list(backward_s)
    for seconds in (forward, backward):
        if len(seconds) != len(replicas):
            raise ScheduleError(f"found times for {len(seconds)} stages, there are {len(replicas)}")
    links = [0.0] * (len(replicas) - 1) if link_s is None else list(link_s)
    if len(links) != len(replicas) - 1:
        raise ScheduleError(
            f"found times for {len(links)} links, there are {len(replicas) - 1} between stages"
        )
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    first = 1
    for last in ends:
        walk = _Walk(tuple(replicas), limits, first, last, forward, backward, links, barrier)
        for worker, actions in enumerate(walk.run()):
            workers[worker] += actions
        first = last + 1
    return Schedule(
        Policy.ONE_F_ONE_B, tuple(replicas), limits, 1, ends, tuple(tuple(actions) for actions in workers)
    )


def gpipe(replicas: Sequence[int], minibatches: int, group: int, *, drains: Sequence[int] = ()) -> Schedule:
    """GPipe (figure 5.3): a group's forwards, then its backwards in the same order, one update, the next group.

    An epoch's last group may be smaller. Raises ScheduleError.
    """
    ends = _check(replicas, minibatches, drains)
    if group < 1:
        raise ScheduleError(f"a group must have at least one minibatch, found {group}")
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    begin = 0
    for last in ends:
        for low in range(begin + 1, last + 1, group):
            members = range(low, min(low + group, last + 1))
            for kind in Kind:
                for b in members:
                    for stage, count in enumerate(replicas):
                        workers[sum(replicas[:stage]) + (b - 1) % count].append(Action(kind, b))
        begin = last
    limits = tuple(-(-min(group, minibatches) // count) for count in replicas)
    return Schedule(Policy.GPIPE, tuple(replicas), limits, group, ends, tuple(map(tuple, workers)))


def model_parallel(replicas: Sequence[int], minibatches: int, *, drains: Sequence[int] = ()) -> Schedule:
    """Model parallel training (figure 5.2): one minibatch at a time per input replica. Raises ScheduleError."""
    ends = _check(replicas, minibatches, drains)
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    for b in range(1, minibatches + 1):
        for stage, count in enumerate(replicas):
            workers[sum(replicas[:stage]) + (b - 1) % count] += [
                Action(Kind.FORWARD, b),
                Action(Kind.BACKWARD, b),
            ]
    limits = (1,) * len(replicas)
    return Schedule(Policy.MODEL_PARALLEL, tuple(replicas), limits, 1, ends, tuple(map(tuple, workers)))


def parse_schedule(text: str) -> Schedule:
    """The schedule that `str` printed. Raises ScheduleError, whose sentence names the line."""
    lines = text.strip().splitlines()
    try:
        word, policy, *pairs = lines[0].split()
        values = dict(pair.split("=") for pair in pairs)
        replicas = _split(values["replicas"])
        assert word == "schedule"
        head = (Policy(policy), replicas, _split(values["in_flight"]), int(values["group"]))
        drains = _split(values["drains"])
    except (ValueError, KeyError, IndexError, AssertionError):
        raise ScheduleError(
            "line 1 of the schedule must read like `schedule 1f1b replicas=1-1 minibatches=4 in_flight=2-1 "
            "group=1 drains=4`"
        ) from None
    wanted = [f"stage {s} replica {r}" for s, n in enumerate(replicas, start=1) for r in range(1, n + 1)]
    if len(lines) - 1 != len(wanted):
        raise ScheduleError(f"found {len(lines) - 1} workers, expected {len(wanted)}")
    workers = []
    for number, (line, name) in enumerate(zip(lines[1:], wanted, strict=True), start=2):
        found, sep, actions = line.partition(":")
        if not sep or found.strip() != name:
            raise ScheduleError(f"line {number} of the schedule must begin with `{name}:`, found {line!r}")
        try:
            workers.append(tuple(Action(Kind(word[0]), int(word[1:])) for word in actions.split()))
        except ValueError:
            raise ScheduleError(
                f"line {number} of the schedule has an action that is not like F3 or B3"
            ) from None
    return Schedule(*head, drains, tuple(workers))


def _joined(numbers: Sequence[int]) -> str:
    return "-".join(map(str, numbers))


def _split(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))


def _check(replicas: Sequence[int], minibatches: int, drains: Sequence[int]) -> tuple[int, ...]:
    """The ends of the epochs."""
    if not replicas or min(replicas) < 1:
        raise ScheduleError(f"each stage needs at least one replica, found {list(replicas)}")
    if minibatches < 1:
        raise ScheduleError(f"there must be at least one minibatch, found {minibatches}")
    ends = (*drains, minibatches) if not drains or drains[-1] != minibatches else tuple(drains)
    if list(ends) != sorted(set(ends)) or ends[0] < 1:
        raise ScheduleError(f"drains must ascend between 1 and {minibatches}, found {list(drains)}")
    return ends


class _Walk:
    """The order in which workers that never wait without need run minibatches first..last.

    Each worker alternates forward and backward; where its turn's action cannot run yet it runs the other
    kind, within its limit. Walking through time with the stages' seconds makes that one fixed list.
    """

    def __init__(
        self,
        replicas: tuple[int, ...],
        limits: tuple[int, ...],
        first: int,
        last: int,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        link_s: Sequence[float],
        barrier: bool,
    ) -> None:
        self.replicas, self.limits, self.first, self.last = replicas, limits, first, last
        self.seconds = {Kind.FORWARD: forward_s, Kind.BACKWARD: backward_s}
        self.link_s, self.barrier = link_s, barrier
        self.stage_of = [stage for stage, count in enumerate(replicas) for _ in range(count)]
        workers = range(len(self.stage_of))
        self.mine: list[list[int]] = [[] for _ in workers]
        for b in range(first, last + 1):
            for stage in range(len(replicas)):
                self.mine[self._worker(stage, b)].append(b)
        self.lists: list[list[Action]] = [[] for _ in workers]
        self.done = {kind: [0 for _ in workers] for kind in Kind}
        self.ready = {Kind.FORWARD: {(0, b) for b in range(first, last + 1)}, Kind.BACKWARD: set()}
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
        assert all(n == len(m) for n, m in zip(self.done[Kind.BACKWARD], self.mine, strict=True)), "stuck"
        return self.lists

    def _worker(self, stage: int, b: int) -> int:
        return sum(self.replicas[:stage]) + (b - 1) % self.replicas[stage]

    def _choose(self, worker: int) -> Action | None:
        stage, mine = self.stage_of[worker], self.mine[worker]
        f, b = self.done[Kind.FORWARD][worker], self.done[Kind.BACKWARD][worker]
        can_f = f < len(mine) and f - b < self.limits[stage] and (stage, mine[f]) in self.ready[Kind.FORWARD]
        can_b = b < f and (stage, mine[b]) in self.ready[Kind.BACKWARD]
        after_forward = bool(self.lists[worker]) and self.lists[worker][-1].kind is Kind.FORWARD
        if can_b and (after_forward or not can_f):
            return Action(Kind.BACKWARD, mine[b])
        return Action(Kind.FORWARD, mine[f]) if can_f else None

    def _begin(self, worker: int, now: float) -> None:
        action = self._choose(worker)
        if action is None:
            return
        self.lists[worker].append(action)
        self.busy[worker] = True
        self.done[action.kind][worker] += 1
        seconds = self.seconds[action.kind][self.stage_of[worker]]
        heapq.heappush(self.events, (now + seconds, worker, action, True))

    def _arrive(self, worker: int, action: Action) -> set[int]:
        """Record that the input of an action is there; returns the worker that may go on now."""
        self.ready[action.kind].add((self.stage_of[worker], action.minibatch))
        return {worker}

    def _end(self, worker: int, action: Action, now: float) -> set[int]:
        """Hand an action's result on; returns the workers that may go on now."""
        stage, b = self.stage_of[worker], action.minibatch
        touched = self._freed(worker, stage, action)
        for free in touched:
            self.busy[free] = False
        if action.kind is Kind.BACKWARD:
            target, kind = stage - 1, Kind.BACKWARD
        elif stage + 1 < len(self.replicas):
            target, kind = stage + 1, Kind.FORWARD
        else:
            target, kind = stage, Kind.BACKWARD
        if target >= 0:
            arrival = (self._worker(target, b), Action(kind, b))
            delay_s = 0.0 if target == stage else self.link_s[min(stage, target)]
            if delay_s > 0:
                heapq.heappush(self.events, (now + delay_s, *arrival, False))
            else:
                touched |= self._arrive(*arrival)
        return touched

    def _freed(self, worker: int, stage: int, action: Action) -> set[int]:
        """The worker itself; at a barrier all replicas of the round once the last has arrived."""
        if not self.barrier or action.kind is Kind.FORWARD:
            return {worker}
        r = self.replicas[stage]
        turn = (action.minibatch - self.first) // r
        self.arrived[stage, turn] = self.arrived.get((stage, turn), 0) + 1
        low = self.first + turn * r
        members = range(low, min(low + r, self.last + 1))
        if self.arrived[stage, turn] < len(members):
            return set()
        return {self._worker(stage, b) for b in members}
