"""The run as BidBrain's service sees it: turns calls about instances into events of a fleet, and sends reports back.

The service calls in a thread of its own (`bidbrain.live.job.Trainer`); the driver's loop takes the events and passes on
the run's own events. Both sides state levels, not changes: the instances that are held, the nodes that the run was
given, the nodes that it has released. So repeating a call changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agileml.cluster.fleet import Admitted, Appeared, FleetEvent, Leaving, Stopping, Vanished
from agileml.cluster.ray_cluster import TieredNode
from agileml.core.protocol.commands import Happened
from agileml.events.run import ClockDone, MachineNoticed, MembershipChanged
from agileml.events.terms import Loss, Tier
from agileml.market.clocks import RunClocks
from agileml.market.nodes import InstanceNodes, tier_of
from agileml.market.setup import on_demand_kind
from bidbrain.live.cloud import Alert, Instance, InstanceNotice
from bidbrain.live.decide import Measurements
from bidbrain.live.estimators import Estimator, Sent
from bidbrain.live.job import TrainerReport

MEASURE_S = 1.0  # least time between two computations of the estimates


@dataclass(frozen=True)
class MarketTime:
    """The market's clock. speed: market seconds per second; leave_s: time to leave an instance that we give back."""

    now_s: Callable[[], int]
    speed: float
    leave_s: float

    def deadline_s(self, at_s: int) -> float:
        """A market instant as Unix time."""
        return time.time() + max(0.0, (at_s - self.now_s()) / self.speed)


class RunTrainer:
    """All methods may be called from any thread. `clocks`: of the whole job, for the share of the work that is done.
    `speeds`: by type, of the machines that local nodes stand for; 1 where it names none."""

    def __init__(
        self,
        nodes: InstanceNodes,
        market_time: MarketTime,
        estimator: Estimator,
        *,
        clocks: int,
        work_vcpu_s: float,
        speeds: Mapping[str, float] | None = None,
        completed: int = 0,
    ) -> None:
        """completed: clocks that are done before the run begins, by an earlier process or another run."""
        self._speeds = speeds or {}
        self._nodes, self._time, self._estimator = nodes, market_time, estimator
        self._clocks, self._work_vcpu_s = clocks, work_vcpu_s
        self._changed = threading.Condition()
        self._events: deque[FleetEvent] = deque()
        self._held: dict[str, Instance] = {}
        self._given: dict[str, str] = {}  # instance id -> the Ray node that the run has of it
        self._offered: set[str] = set()  # nodes whose process was started ahead
        self._deadlines: dict[str, float] = {}  # instance id with a notice -> its soonest one, market time
        self._let_go: set[str] = set()  # nodes that the run has released
        self._instance_of: dict[str, str] = {}  # node -> instance id, for ever
        self._kinds: dict[str, str] = {}  # instance id -> type, for ever
        self._given_up: set[str] = set()  # instance ids
        self._completed = completed
        self.has_begun = False  # the run has had instances to work on
        self._has_trained = False  # a clock is done
        self._measured, self._measured_s = Measurements(), 0.0
        self._sent_bytes: int | None = None
        self._sent_s = 0.0
        self._is_stopping = False
        self._finished_s: int | None = None
        self._has_parted = False
        self._run = RunClocks(work_vcpu_s / clocks, market_time.speed, lambda name: None)

    # -- the service's thread ---------------------------------------------------------------------------------

    def report(self, now_s: int) -> TrainerReport:
        with self._changed:
            done = self._work_vcpu_s * self._completed / self._clocks
            return TrainerReport(done, self._finished_s, self._has_parted, self._measure())

    def _measure(self) -> Measurements:
        if time.monotonic() >= self._measured_s + MEASURE_S:
            self._measured_s = time.monotonic()
            self._measured = self._estimator.measured()
        return self._measured

    def hold(self, now_s: int, reliable: tuple[Instance, ...], transient: tuple[Instance, ...]) -> None:
        with self._changed:
            self._held = {instance.instance_id: instance for instance in (*reliable, *transient)}
            for instance_id, instance in self._held.items():
                kind = instance.market.instance_type
                self._kinds[instance_id] = (
                    kind if tier_of(instance) is Tier.TRANSIENT else on_demand_kind(kind)
                )

    def warn(self, now_s: int, notice: InstanceNotice) -> None:
        """Pass on the first notice of an instance, and a later one whose deadline is sooner: an eviction may come
        before the end of the hour that was announced. An instance that is warned before it has booted is never used.
        """
        if notice.alert is Alert.REBALANCE:
            return
        with self._changed:
            if self._is_sooner(notice.instance_id, notice.deadline_s):
                if notice.alert is Alert.HOUR_END:
                    self._given_up.add(notice.instance_id)
                self._say_draining(notice.instance_id, self._time.deadline_s(notice.deadline_s))

    def _is_sooner(self, instance_id: str, deadline_s: float) -> bool:
        """Remember a deadline in market time; whether it is the soonest so far. Market time, because Unix time is
        computed from a clock of whole seconds, so a repeat would seem sooner."""
        known_s = self._deadlines.get(instance_id)
        if known_s is not None and known_s <= deadline_s:
            return False
        self._deadlines[instance_id] = deadline_s
        return True

    def _say_draining(self, instance_id: str, deadline_unix_s: float) -> None:
        if (node := self._given.get(instance_id)) is not None:
            self._events.append(Leaving(node, deadline_unix_s))

    def lost(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        with self._changed:
            for instance_id in instance_ids:
                self._held.pop(instance_id, None)
                if (node := self._given.pop(instance_id, None)) is not None:
                    self._events.append(Vanished(node, Loss.EVICTED))
            self._changed.notify_all()

    def leave(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        """Wait until the run has released their nodes, for `leave_s` at most; when the run ends, until it has parted.

        Giving back all instances does not end the run: lost reliable ones may be on order.
        """
        with self._changed:
            if self._is_stopping and set(instance_ids) >= set(self._held):
                self._changed.wait_for(lambda: self._has_parted)
                return
            until_s = time.time() + self._time.leave_s
            nodes = {self._given[each] for each in instance_ids if each in self._given}
            for instance_id in instance_ids:
                self._given_up.add(instance_id)
                if self._is_sooner(instance_id, now_s + self._time.leave_s * self._time.speed):
                    self._say_draining(instance_id, until_s)
            self._changed.wait_for(
                lambda: self._has_parted or nodes <= self._let_go, timeout=max(0.0, until_s - time.time())
            )
            for instance_id in instance_ids:
                self._held.pop(instance_id, None)
                if (node := self._given.pop(instance_id, None)) is not None:
                    self._events.append(Vanished(node, Loss.GIVEN_BACK))

    def drain(self, now_s: int, deadline_s: int) -> None:
        """Have the run end with its next cut, which is its last checkpoint too."""
        with self._changed:
            self._stop(self._time.deadline_s(deadline_s))

    def _stop(self, deadline_s: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._events.append(Stopping(deadline_s))

    # -- the driver's loop --------------------------------------------------------------------------------------

    def events(self) -> list[FleetEvent]:
        """Events of the fleet since the last call."""
        with self._changed:
            found = list(self._events)
            self._events.clear()
            found += [Appeared(node, admitted=False) for node in self._nodes.warm if self._is_new(node)]
            for instance_id, node in self._nodes.present(self._held, self._time.now_s()).items():
                if instance_id in self._deadlines or node.node_id in self._let_go:
                    continue
                if instance_id not in self._given:
                    if self._is_early(instance_id):
                        continue
                    self._given[instance_id] = node.node_id
                    self._instance_of[node.node_id] = instance_id
                    speed = self._speeds.get(self._kinds[instance_id], 1.0)
                    if self._is_new(node):
                        found.append(Appeared(replace(node, speed=speed), admitted=True))
                    else:
                        found.append(Admitted(node.node_id, speed))
            missing = self._nodes.missing(set(self._given.values()))
            found += [Vanished(node_id, Loss.NODE_GONE) for node_id in sorted(missing - self._let_go)]
            self._let_go |= missing
            # Ray that is started again on an instance is another node.
            self._given = {instance: node for instance, node in self._given.items() if node not in missing}
            return found

    def _is_early(self, instance_id: str) -> bool:
        """Whether a transient instance waits for the run's first clock, which the reliable ones compute alone. On a
        market that is played faster than it was, loading takes minutes in which it would boot; on a real one seconds.
        """
        is_transient = tier_of(self._held[instance_id]) is Tier.TRANSIENT
        return is_transient and self._time.speed > 1 and not self._has_trained

    def _is_new(self, node: TieredNode) -> bool:
        if node.node_id in self._offered:
            return False
        self._offered.add(node.node_id)
        return True

    def released(self, node_id: str) -> None:
        """Record that the run has released this node."""
        with self._changed:
            self._let_go.add(node_id)
            self._changed.notify_all()

    def happened(self, happened: Happened, node_of: Callable[[str], str]) -> None:
        """Learn from an event of the controller."""
        with self._changed:
            self._run.kind_of = lambda name: self._kinds.get(self._instance_of.get(node_of(name), ""))
            match happened.event:
                case MachineNoticed(machine):
                    if self._instance_of.get(node_of(machine)) in self._given_up:
                        self._run.planned.add(machine)
                case MembershipChanged():
                    self.has_begun = True
                case ClockDone(number):
                    self._has_trained = True
                    self._completed = max(self._completed, number)
            clock = self._run.happened(happened)
            if clock is not None and clock.stretches:
                self._estimator.observe(clock)

    def sent(self, total_bytes: int) -> None:
        """Learn from the bytes that all machines have sent each other so far."""
        with self._changed:
            now_s, machines = time.monotonic(), self._run.machines
            if self._sent_bytes is not None and now_s > self._sent_s and total_bytes >= self._sent_bytes:
                seconds = (now_s - self._sent_s) * self._time.speed
                self._estimator.sent(Sent(seconds, machines, total_bytes - self._sent_bytes))
            self._sent_bytes, self._sent_s = total_bytes, now_s

    def finished(self) -> None:
        """Record that the job is done as of now: its result is in hand."""
        with self._changed:
            self._finished_s = self._time.now_s()
            self._completed = self._clocks

    def part(self) -> None:
        """Record that no process of the run is left on any instance."""
        with self._changed:
            self._has_parted = True
            self._changed.notify_all()
