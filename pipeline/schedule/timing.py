"""The time of a schedule on given devices and links, action by action.

The partitioner predicts the long-run rate from the slowest stage or link. This simulation runs the static
lists themselves: start-up, drain, waiting, transfers that share links, and memory as it fills.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipeline.partition.memory import MemoryRules
from pipeline.partition.plan import Plan
from pipeline.schedule.actions import Action, Kind, Policy, Schedule
from pipeline.schedule.policies import whole_turn
from pipeline.schedule.rules import needs, newest, update_members
from pipeline.topology.levels import Topology, parse_topology


class Contention(Enum):
    """The part of the network that transfers share. The partitioner's cost model assumes PAIR."""

    NONE = "none"
    PAIR = "pair"
    PORT = "port"


class Exchange(Enum):
    """The moment at which replicas add up their gradients.

    In both cases an action waits until the version of the weights that it uses is there (`rules.newest`).
    BACKGROUND: while they go on with what needs no newer weights, with two buffers for gradients: the backward of a
    round waits for the exchange of the round before the last.
    BARRIER: inside the backward of each round; all replicas wait for the slowest.
    """

    BACKGROUND = "background"
    BARRIER = "barrier"


@dataclass(frozen=True)
class StageCost:
    """Seconds of one minibatch on one replica; weights_s is the part of backward_s that zero-bubble puts off;
    output_bytes go to the next stage and come back as gradients; activation_bytes are kept per minibatch in flight,
    transient_bytes only while a backward runs (activations that are computed again). devices: one per replica,
    needed where there is a network."""

    forward_s: float
    backward_s: float
    output_bytes: float = 0.0
    parameter_bytes: float = 0.0
    activation_bytes: float = 0.0
    devices: tuple[int, ...] = ()
    transient_bytes: float = 0.0
    weights_s: float = 0.0

    def seconds(self, kind: Kind, kinds: Sequence[Kind]) -> float:
        """Of one action at a stage that does `kinds` for each minibatch."""
        if kind is Kind.FORWARD:
            return self.forward_s
        put_off_s = self.weights_s if Kind.WEIGHTS in kinds else 0.0
        return put_off_s if kind is Kind.WEIGHTS else self.backward_s - put_off_s


@dataclass(frozen=True)
class Network:
    """Links of a topology. A transfer takes latency_s + bytes / bytes_per_s of the level it crosses.

    contention NONE: transfers never wait. PAIR: those between the same two components of that level wait for
    each other. PORT: each component has one port per level for all its transfers. full_duplex: the two
    directions of a link do not share it. overlap: a worker computes while it sends; else it waits.
    """

    topology: Topology
    latency_s: float = 0.0
    contention: Contention = Contention.PAIR
    full_duplex: bool = False
    overlap: bool = True
    exchange: Exchange = Exchange.BACKGROUND

    def seconds(self, a: int, b: int, size_bytes: float) -> float:
        """Of one transfer from device a to device b without waiting."""
        level = self.topology.link_level(a, b)
        if level == 0:
            return 0.0
        return self.latency_s + size_bytes / self.topology.levels[level - 1][1]

    def channels(self, a: int, b: int) -> tuple[tuple[object, ...], ...]:
        """The links that a transfer from a to b occupies."""
        level = self.topology.link_level(a, b)
        if level == 0 or self.contention is Contention.NONE:
            return ()
        size = self.topology.component_devices(level - 1)
        source, target = a // size, b // size
        if self.contention is Contention.PAIR:
            pair = (source, target) if self.full_duplex else (min(source, target), max(source, target))
            return ((level, *pair),)
        if self.full_duplex:
            return ((level, source, "out"), (level, target, "in"))
        return ((level, source), (level, target))

    def exchange_seconds(self, devices: Sequence[int], parameter_bytes: float) -> float:
        """Adding up one round's gradients over a stage's replicas: 2 (m-1) w / B at each level (thesis 5.3.1)."""
        total = 0.0
        units = sorted(set(devices))
        for count, bytes_per_s in self.topology.levels:
            groups: dict[int, int] = {}
            for unit in units:
                groups[unit // count] = groups.get(unit // count, 0) + 1
            most = max(groups.values())
            if most > 1:
                total += self.latency_s + 2 * (most - 1) * parameter_bytes / bytes_per_s
            units = sorted(groups)
        return total


@dataclass(frozen=True)
class Span:
    """One action at one worker: when it started and ended, seconds."""

    worker: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Transfer:
    """One message between workers: started, arrived."""

    source: int
    target: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The result of a simulation. spans: in order of their start. exchanges: (stage, start, end)."""

    schedule: Schedule
    stages: tuple[StageCost, ...]
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    exchanges: tuple[tuple[int, float, float], ...]

    @property
    def makespan_s(self) -> float:
        """The time at which the last action ends."""
        return max(span.end_s for span in self.spans)

    def finished_s(self) -> list[float]:
        """For each minibatch when its backward at the input stage ends."""
        done = [0.0] * self.schedule.minibatches
        for span in self.spans:
            if span.action.kind is Kind.BACKWARD and self.schedule.stage_of(span.worker) == 0:
                done[span.action.minibatch - 1] = span.end_s
        return done

    def long_run_seconds(self) -> float | None:
        """Of a minibatch over the middle of the first epoch, between start-up and drain, over a whole turn of all
        stages. None: the run is too short for that, or empties again and again by its policy."""
        done = self.finished_s()
        last = self.schedule.drains[0] - self.schedule.in_flight[0] * self.schedule.replicas[0]
        turn = whole_turn(self.schedule.replicas, self.schedule.group)
        first = last // 2
        count = (last - first) // turn * turn
        if first < 1 or count < 1 or self.schedule.policy is not Policy.ONE_F_ONE_B:
            return None
        return (done[last - 1] - done[last - 1 - count]) / count

    def seconds_per_minibatch(self) -> float:
        """The long-run pace; that of the whole run where it does not show that."""
        pace_s = self.long_run_seconds()
        return self.makespan_s / self.schedule.minibatches if pace_s is None else pace_s

    def bubble(self) -> float:
        """Share of the workers' time, from start to end, in which they do not compute."""
        busy = sum(span.end_s - span.start_s for span in self.spans)
        whole = self.makespan_s * len(self.schedule.workers)
        return 1 - busy / whole if whole > 0 else 0.0

    def memory(self, worker: int, optimizer_factor: float = 1.0) -> list[tuple[float, float]]:
        """(seconds, bytes) whenever a worker's memory changes: weights, gradients and optimizer state, and a set of
        activations for each minibatch in flight, with a version of the weights where there is no flush."""
        cost, by_group = self.stages[self.schedule.stage_of(worker)], self.schedule.updates_by_group
        copies = MemoryRules(group=self.schedule.group).held(0)[1] if by_group else 0
        fixed = (1 + copies + optimizer_factor) * cost.parameter_bytes
        each = cost.activation_bytes + (0.0 if by_group else cost.parameter_bytes)
        steps = [(0.0, fixed)]
        changes = []
        last = self.schedule.kinds(self.schedule.stage_of(worker))[-1]
        for span in self.spans:
            if span.worker != worker:
                continue
            if span.action.kind is Kind.FORWARD:
                changes.append((span.start_s, each))
                continue
            passing = cost.transient_bytes if span.action.kind is Kind.BACKWARD else 0.0
            freed = passing + (each if span.action.kind is last else 0.0)
            changes += [(span.start_s, passing), (span.end_s, -freed)]
        changes.sort()
        for when, change in changes:
            steps.append((when, steps[-1][1] + change))
        return steps


def stage_costs(plan: Plan) -> tuple[StageCost, ...]:
    """The costs of a plan's stages, for the simulation."""
    return tuple(
        StageCost(
            stage.forward_s,
            stage.backward_s,
            stage.output_bytes,
            stage.parameter_bytes,
            stage.kept_bytes,
            stage.devices,
            stage.activation_bytes if stage.recompute else 0.0,
        )
        for stage in plan.stages
    )


def simulate_plan(plan: Plan, schedule: Schedule, network: Network | None = None) -> Timeline:
    """A plan with its schedule on its own topology."""
    return simulate(schedule, stage_costs(plan), network or Network(parse_topology(plan.topology)))


def simulate(schedule: Schedule, stages: Sequence[StageCost], network: Network | None = None) -> Timeline:
    """Run a schedule's lists. Without a network nothing but computing takes time. Raises ValueError if the
    lists get stuck."""
    assert len(stages) == schedule.stages
    return _Simulation(schedule, tuple(stages), network).run()


@dataclass
class _Simulation:
    schedule: Schedule
    stages: tuple[StageCost, ...]
    network: Network | None
    at: list[int] = field(default_factory=list)
    running: list[bool] = field(default_factory=list)
    arrived: set[tuple[int, Action]] = field(default_factory=set)
    channel_free_s: dict[tuple[object, ...], float] = field(default_factory=dict)
    exchange_end_s: dict[tuple[int, int], float] = field(default_factory=dict)
    exchange_free_s: dict[int, float] = field(default_factory=dict)
    counted: dict[tuple[int, int], int] = field(default_factory=dict)
    events: list[tuple[float, int, int, str, Action]] = field(default_factory=list)
    sequence: int = 0
    spans: list[Span] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    exchanges: list[tuple[int, float, float]] = field(default_factory=list)

    def run(self) -> Timeline:
        """Until every list is at its end."""
        workers = len(self.schedule.workers)
        self.stage_of = [self.schedule.stage_of(w) for w in range(workers)]
        self.at, self.running = [0] * workers, [False] * workers
        self.versions = [newest(self.schedule, worker)[0] for worker in range(workers)]
        for worker in range(workers):
            self._start(worker, 0.0)
        while self.events:
            now, _, worker, what, action = heapq.heappop(self.events)
            if what == "end":
                self._end(worker, action, now)
            elif what == "free":
                self.running[worker] = False
            elif what == "arrive":
                self.arrived.add((worker, action))
            for other in self._waking(worker, what):
                self._start(other, now)
        if any(at < len(actions) for at, actions in zip(self.at, self.schedule.workers, strict=True)):
            raise ValueError("the schedule gets stuck: workers wait for each other")
        self.spans.sort(key=lambda span: (span.start_s, span.worker))
        return Timeline(
            self.schedule, self.stages, tuple(self.spans), tuple(self.transfers), tuple(self.exchanges)
        )

    def _waking(self, worker: int, what: str) -> range:
        """The workers that may go on; the end of an exchange concerns a whole stage."""
        if what != "exchanged":
            return range(worker, worker + 1)
        stage = self.stage_of[worker]
        first = self.schedule.first_workers[stage]
        return range(first, first + self.schedule.replicas[stage])

    def _push(self, when: float, worker: int, what: str, action: Action) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, worker, what, action))

    def _start(self, worker: int, now: float) -> None:
        """Start a worker's next action if it is free and the inputs of the action are there."""
        actions = self.schedule.workers[worker]
        if self.running[worker] or self.at[worker] >= len(actions):
            return
        action = actions[self.at[worker]]
        need = needs(self.schedule, worker, action)
        elsewhere = need is not None and action.kind is not Kind.WEIGHTS
        if elsewhere and (worker, action) not in self.arrived:
            return
        if not self._weights_ready(worker, action, now):
            return
        stage = self.stage_of[worker]
        seconds = self.stages[stage].seconds(action.kind, self.schedule.kinds(stage))
        self.running[worker] = True
        self.at[worker] += 1
        self.spans.append(Span(worker, action, now, now + seconds))
        self._push(now + seconds, worker, "end", action)

    def _turn(self, stage: int, minibatch: int) -> tuple[int, list[int]]:
        """The number of the exchange that a minibatch's gradient goes into, and its minibatches."""
        members = update_members(self.schedule, stage, minibatch)
        return members[0], members

    def _weights_ready(self, worker: int, action: Action, now: float) -> bool:
        """Whether the weights that a forward uses are there, and a buffer for the gradients of a backward is free."""
        stage = self.stage_of[worker]
        if self.schedule.replicas[stage] == 1 or action.kind is Kind.WEIGHTS:
            return True
        if action.kind is Kind.FORWARD:
            version = self.versions[worker][self.at[worker]]
            return version == 0 or self._exchanged(stage, version, now)
        if self.schedule.updates_by_group:
            return True
        first, _ = self._turn(stage, action.minibatch)
        before, _ = self._turn(stage, first - 1) if first > 1 else (1, [])
        return before == 1 or self._exchanged(stage, before - 1, now)

    def _exchanged(self, stage: int, minibatch: int, now: float) -> bool:
        """Whether the exchange of the update that a minibatch's gradient goes into is over."""
        first, _ = self._turn(stage, minibatch)
        return self.exchange_end_s.get((stage, first), math.inf) <= now

    def _end(self, worker: int, action: Action, now: float) -> None:
        schedule, stage = self.schedule, self.stage_of[worker]
        if action.kind is Kind.FORWARD and stage + 1 == schedule.stages:
            self.arrived.add((worker, Action(Kind.BACKWARD, action.minibatch)))
        target = stage + 1 if action.kind is Kind.FORWARD else stage - 1
        sent_s = now
        if action.kind is not Kind.WEIGHTS and 0 <= target < schedule.stages:
            sent_s = self._send(worker, schedule.worker(target, action.minibatch), action, now)
        waits = False
        if action.kind is schedule.kinds(stage)[-1] and schedule.replicas[stage] > 1:
            waits = self._count(worker, action, now)
        if not waits:
            self._push(
                now if self.network is None or self.network.overlap else sent_s, worker, "free", action
            )

    def _count(self, worker: int, action: Action, now: float) -> bool:
        """Count a backward into its exchange and start that when complete; True if the worker must wait."""
        stage = self.stage_of[worker]
        first, members = self._turn(stage, action.minibatch)
        key = (stage, first)
        self.counted[key] = self.counted.get(key, 0) + 1
        network = self.network
        barrier = (
            network is not None
            and network.exchange is Exchange.BARRIER
            and not self.schedule.updates_by_group
        )
        if self.counted[key] == len(members):
            cost = self.stages[stage]
            start = max(now, self.exchange_free_s.get(stage, 0.0))
            end = start
            if network is not None:
                end += network.exchange_seconds(cost.devices, cost.parameter_bytes)
            self.exchange_end_s[key] = self.exchange_free_s[stage] = end
            self.exchanges.append((stage, start, end))
            if barrier:
                for b in members:
                    self._push(end, self.schedule.worker(stage, b), "free", action)
            self._push(end, worker, "exchanged", action)
        return barrier

    def _send(self, source: int, target: int, action: Action, now: float) -> float:
        """Send an action's result on; returns when it has arrived."""
        if self.network is None:
            self._push(now, target, "arrive", action)
            return now
        low = min(self.stage_of[source], self.stage_of[target])
        size = self.stages[low].output_bytes
        a, b = self._device(source), self._device(target)
        channels = self.network.channels(a, b)
        start = max([now, *(self.channel_free_s.get(channel, 0.0) for channel in channels)])
        end = start + self.network.seconds(a, b, size)
        for channel in channels:
            self.channel_free_s[channel] = end
        self.transfers.append(Transfer(source, target, action, start, end))
        self._push(end, target, "arrive", action)
        return end

    def _device(self, worker: int) -> int:
        stage = self.stage_of[worker]
        return self.stages[stage].devices[worker - self.schedule.first_workers[stage]]
