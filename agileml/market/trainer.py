"""The engine of a market's service: what BidBrain says about machines, as events of a fleet, and the other way round.

The service calls in its own thread (`bidbrain.live.job.Engine`), the driver's loop takes events and tells what the
run says of itself. Both see levels, not edges: the machines that are held, the nodes that the run was given and those
that it has let go of. Repeating a call changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agileml.cluster.existing import TieredNode
from agileml.cluster.fleet import Admitted, Appeared, Draining, FleetEvent, Stopping, Vanished
from agileml.events.terms import Tier
from agileml.market.clocks import RunClocks
from agileml.market.nodes import InstanceNodes, tier_of
from bidbrain.live.cloud import Alert, Machine, Notice
from bidbrain.live.decide import Measured
from bidbrain.live.estimators import Estimator
from bidbrain.live.job import TrainerReport

MEASURE_S = 1.0  # estimates are computed at most so often


@dataclass(frozen=True)
class MarketTime:
    """How market time and the wall clock go together, and how long a machine that we give up may take to leave."""

    now_s: Callable[[], int]
    speed: float
    leave_s: float

    def deadline_s(self, at_s: int) -> float:
        """A market instant as Unix time."""
        return time.time() + max(0.0, (at_s - self.now_s()) / self.speed)


class RunTrainer:
    """All methods may be called from any thread. `clocks`: of the whole job, for the share of the work that is done."""

    def __init__(
        self,
        nodes: InstanceNodes,
        market_time: MarketTime,
        estimator: Estimator,
        *,
        clocks: int,
        work_vcpu_s: float,
    ) -> None:
        self._nodes, self._time, self._estimator = nodes, market_time, estimator
        self._clocks, self._work_vcpu_s = clocks, work_vcpu_s
        self._changed = threading.Condition()
        self._events: deque[FleetEvent] = deque()
        self._held: dict[str, Machine] = {}
        self._given: dict[str, str] = {}  # machine id -> the node that the run has of it
        self._offered: set[str] = set()  # nodes whose process was started ahead
        self._going: set[str] = set()  # machine ids with a notice
        self._let_go: set[str] = set()  # nodes that hold nothing of the run any more
        self._machine_of: dict[str, str] = {}  # node -> machine id, for ever
        self._kinds: dict[str, str] = {}  # machine id -> type, for ever
        self._given_up: set[str] = set()  # machine ids
        self._completed = 0
        self.has_begun = False  # the run has had machines to work on
        self._measured, self._measured_s = Measured(), 0.0
        self._is_stopping = False
        self._finished_s: int | None = None
        self._has_parted = False
        self._run = RunClocks(work_vcpu_s / clocks, market_time.speed, lambda name: None)

    # -- the service's thread ---------------------------------------------------------------------------------

    def report(self, now_s: int) -> TrainerReport:
        with self._changed:
            done = self._work_vcpu_s * self._completed / self._clocks
            return TrainerReport(done, self._finished_s, self._has_parted, self._measure())

    def _measure(self) -> Measured:
        if time.monotonic() >= self._measured_s + MEASURE_S:
            self._measured_s = time.monotonic()
            self._measured = self._estimator.measured()
        return self._measured

    def hold(self, now_s: int, reliable: tuple[Machine, ...], transient: tuple[Machine, ...]) -> None:
        with self._changed:
            self._held = {machine.machine_id: machine for machine in (*reliable, *transient)}
            for machine_id, machine in self._held.items():
                kind = machine.market.instance_type
                self._kinds[machine_id] = kind if tier_of(machine) is Tier.TRANSIENT else f"{kind} on demand"

    def warn(self, now_s: int, notice: Notice) -> None:
        """A machine that has not booted yet will not be used at all."""
        with self._changed:
            if notice.alert is not Alert.TERMINATE or notice.machine_id in self._going:
                return
            self._going.add(notice.machine_id)
            if notice.notice_id.startswith("hour-end-"):
                self._given_up.add(notice.machine_id)
            self._say_draining(notice.machine_id, self._time.deadline_s(notice.deadline_s))

    def _say_draining(self, machine_id: str, deadline_s: float) -> None:
        if (node := self._given.get(machine_id)) is not None:
            self._events.append(Draining(node, deadline_s))

    def lost(self, now_s: int, machine_ids: tuple[str, ...]) -> None:
        with self._changed:
            for machine_id in machine_ids:
                self._held.pop(machine_id, None)
                if (node := self._given.pop(machine_id, None)) is not None:
                    self._events.append(Vanished(node, "the market took it"))
            self._changed.notify_all()

    def leave(self, now_s: int, machine_ids: tuple[str, ...]) -> None:
        """Waits until the run holds nothing on them any more, for so long at most."""
        with self._changed:
            if set(machine_ids) >= set(self._held):  # the job ends: with its result, or with its next cut
                self._stop(time.time() + self._time.leave_s)
                self._changed.wait_for(lambda: self._has_parted)
                return
            until_s = time.time() + self._time.leave_s
            nodes = {self._given[each] for each in machine_ids if each in self._given}
            for machine_id in machine_ids:
                self._given_up.add(machine_id)
                if machine_id not in self._going:
                    self._going.add(machine_id)
                    self._say_draining(machine_id, until_s)
            self._changed.wait_for(
                lambda: self._has_parted or nodes <= self._let_go, timeout=max(0.0, until_s - time.time())
            )
            for machine_id in machine_ids:
                self._held.pop(machine_id, None)
                if (node := self._given.pop(machine_id, None)) is not None:
                    self._events.append(Vanished(node, "given back"))

    def drain(self, now_s: int, deadline_s: int) -> None:
        """The run ends with its next cut, which is its last checkpoint too."""
        with self._changed:
            self._stop(self._time.deadline_s(deadline_s))

    def _stop(self, deadline_s: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._events.append(Stopping(deadline_s))

    # -- the driver's loop --------------------------------------------------------------------------------------

    def events(self) -> list[FleetEvent]:
        """What happened to the fleet since the last time."""
        with self._changed:
            found = list(self._events)
            self._events.clear()
            found += [Appeared(node, admitted=False) for node in self._nodes.warm if self._is_new(node)]
            for machine_id, node in self._nodes.present(self._held, self._time.now_s()).items():
                if machine_id in self._going or node.node_id in self._let_go:
                    continue
                if machine_id not in self._given:
                    self._given[machine_id] = node.node_id
                    self._machine_of[node.node_id] = machine_id
                    if self._is_new(node):
                        found.append(Appeared(node, admitted=True))
                    else:
                        found.append(Admitted(node.node_id))
            missing = self._nodes.missing(set(self._given.values()))
            found += [Vanished(node_id, "Ray lost the node") for node_id in sorted(missing - self._let_go)]
            self._let_go |= missing
            # Where Ray is started again on a machine, it comes back as another node.
            self._given = {machine: node for machine, node in self._given.items() if node not in missing}
            return found

    def _is_new(self, node: TieredNode) -> bool:
        if node.node_id in self._offered:
            return False
        self._offered.add(node.node_id)
        return True

    def released(self, node_id: str) -> None:
        """The run holds nothing on this node any more."""
        with self._changed:
            self._let_go.add(node_id)
            self._changed.notify_all()

    def noted(self, kind: str, at_s: float, fields: Mapping[str, Any], node_of: Callable[[str], str]) -> None:
        """A note of the controller."""
        with self._changed:
            self._run.kind_of = lambda name: self._kinds.get(self._machine_of.get(node_of(name), ""))
            if kind == "notice":
                names = {name: self._machine_of.get(node_of(name)) for name in fields["machines"]}
                self._run.planned |= {name for name, own in names.items() if own in self._given_up}
            elif kind == "view":
                self.has_begun = True
            elif kind == "clock":
                self._completed = max(self._completed, fields["clock"])
            clock = self._run.noted(kind, at_s, fields)
            if clock is not None and clock.stretches:
                self._estimator.observe(clock)

    def finished(self) -> None:
        """The result is in hand: the job is done as of now."""
        with self._changed:
            self._finished_s = self._time.now_s()
            self._completed = self._clocks

    def part(self) -> None:
        """No process of the run is left on any machine."""
        with self._changed:
            self._has_parted = True
            self._changed.notify_all()
