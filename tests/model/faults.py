"""Faults strike: machines and controllers are killed, frozen, cut off, slowed down, or told to go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agileml.core.protocol.inputs import NodeDown, Notice
from agileml.core.protocol.messages import CONTROLLER
from agileml.events.terms import Loss, Tier
from tests.model.fault_kinds import FOR_GOOD_S, LEAVING, Fault
from tests.model.node_shell import SimulatedNode

if TYPE_CHECKING:
    from tests.model.simulator import Simulation


class FaultInjector:
    """Does the faults of a schedule and counts those that fired."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.aimed = [fault for fault in sim.schedule.faults if fault.aim]
        self._aim_counts: Counter[int] = Counter()

    def aim(self, name: str) -> None:
        for index, fault in enumerate(self.aimed):
            if fault.aim == name and self.sim.now_s >= fault.at_s:
                self._aim_counts[index] += 1
                if self._aim_counts[index] == fault.count:
                    self.sim.after(0.0, lambda fault=fault: self.strike(fault))

    def pick(self, count: int, tier: Tier = Tier.TRANSIENT) -> list[SimulatedNode]:
        machines = [n for n in self.sim.alive(tier) if n.admitted]
        return self.sim.rng.sample(machines, min(count, len(machines)))

    def spare_reliable(self) -> list[SimulatedNode]:
        """A reliable machine that the run can do without: another one stays."""
        staying = [n for n in self.sim.alive(Tier.RELIABLE) if n.admitted and n.deadline_s is None]
        return self.sim.rng.sample(staying, 1) if len(staying) > 1 else []

    def reliable_members(self) -> list[SimulatedNode]:
        """All reliable machines, once there is a view: the first one waits for such as stay."""
        record = self.sim.newest_record()
        is_begun = record is not None and record.view is not None
        return self.pick(len(self.sim.nodes), Tier.RELIABLE) if is_begun else []

    def owners(self) -> list[SimulatedNode]:
        """Transient machines that serve under the durable view."""
        record = self.sim.newest_record()
        names = record.view.owner if record and record.view else ()
        return [n for n in self.sim.alive(Tier.TRANSIENT) if n.name in names]

    def strike(self, fault: Fault) -> None:
        if self.sim.is_over:
            return
        if self.act(fault):
            self.sim.fired[fault.kind] += 1

    def act(self, fault: Fault) -> bool:
        """Do it; False when there is nobody whom it could hit."""
        match fault.kind:
            case "join":
                room = self.room()
                for _ in range(min(fault.number, room)):
                    self.sim.node_shell.start(
                        Tier.RELIABLE if self.sim.rng.random() < 0.1 else Tier.TRANSIENT
                    )
                return room > 0
            case "mute_join":
                return self.join_mute()
            case "part":
                return self.part(fault)
            case "kill_controller":
                self.sim.controllers[-1].is_dead = True
                self.sim.after(fault.seconds, self.sim.start_controller)
                return True
            case "freeze_controller":
                self.sim.freeze(self.sim.controllers[-1], fault.seconds)
                return True
            case "double_controller":
                self.sim.start_controller()
                return True
        machines = self.victims(fault)
        if fault.kind == LEAVING:
            for _ in range(fault.number):
                self.sim.after(self.sim.rng.uniform(0.0, fault.seconds / 2), self.join_reliable)
        for node in machines:
            match fault.kind:
                case (
                    "notice"
                    | "short_notice"
                    | "sooner_notice"
                    | "notice_all"
                    | "notice_reliable"
                    | "notice_owner"
                    | "notice_every_reliable"
                ):
                    self.notice(node, fault)
                case "kill" | "kill_owner" | "kill_many" | "kill_reliable":
                    self.kill(node.name)
                case "freeze" | "freeze_reliable" | "freeze_owner":
                    self.sim.freeze(node, fault.seconds)
                case "cut":
                    node.cut_until_s = self.sim.now_s + fault.seconds
                    self.sim.network.cuts_until_s = max(self.sim.network.cuts_until_s, node.cut_until_s)
                case "deaf":
                    self.sim.broken_links.cut(CONTROLLER, node.name, fault.seconds)
                case "dumb":
                    self.sim.broken_links.cut(node.name, CONTROLLER, fault.seconds)
                case "sick":
                    node.is_sick = True
                case "slow":
                    node.slow_until_s = self.sim.now_s + fault.seconds
                case _:
                    raise AssertionError(fault)
        return bool(machines)

    def room(self) -> int:
        """How many machines may come: each needs a slice."""
        alive = self.sim.alive(Tier.TRANSIENT) + self.sim.alive(Tier.RELIABLE)
        return self.sim.job.slices - len(alive)

    def join_reliable(self) -> None:
        if not self.sim.is_over and self.room() > 0:
            self.sim.node_shell.start(Tier.RELIABLE)

    def part(self, fault: Fault) -> bool:
        """Two machines do not reach each other any more, or only one of them does not reach the other."""
        there = [n for n in self.sim.nodes.values() if n.admitted and not n.is_dead and not n.is_mute]
        if len(there) < 2:
            return False
        first, second = self.sim.rng.sample(there, 2)
        self.sim.broken_links.part(first.name, second.name, fault.seconds, one_way=fault.number == 1)
        return True

    def join_mute(self) -> bool:
        """A machine comes that loads its items for ever. The first view would wait for it."""
        record = self.sim.newest_record()
        if record is None or record.view is None or len(self.sim.nodes) >= self.sim.job.slices:
            return False
        self.sim.node_shell.start(Tier.TRANSIENT)
        node = list(self.sim.nodes.values())[-1]
        node.is_mute, node.frozen_until_s = True, FOR_GOOD_S
        self.sim.broken_links.see(node, FOR_GOOD_S)
        return True

    def victims(self, fault: Fault) -> list[SimulatedNode]:
        match fault.kind:
            case "notice" | "short_notice" | "sooner_notice":
                return self.pick(fault.number)
            case "notice_all":
                return self.pick(len(self.sim.nodes))
            case "notice_reliable":
                return self.spare_reliable()
            case "notice_every_reliable":
                return self.reliable_members()
            case "kill_reliable":
                return self.spare_reliable()
            case "kill_many":
                return self.pick(1 + self.sim.rng.randrange(4))
            case "kill_owner":
                return self.owners()[:1]
            case "notice_owner" | "freeze_owner":
                return self.owners()[: fault.number]
            case "freeze_reliable":
                return self.pick(1, Tier.RELIABLE)
            case _:
                return self.pick(1)

    def notice(self, node: SimulatedNode, fault: Fault) -> None:
        if node.deadline_s is not None:
            return
        if fault.kind == "sooner_notice":  # the end of its hour is announced, then it is evicted before that
            self.tell(node, 60.0)
            self.sim.after(fault.seconds, lambda: self.take(node, fault.seconds))
            return
        self.take(node, fault.seconds, times=1 + (self.sim.rng.random() < 0.3))

    def take(self, node: SimulatedNode, left_s: float, times: int = 1) -> None:
        """A machine gets a notice and dies at its deadline."""
        self.sim.after(left_s, lambda: self.kill(node.name))
        for _ in range(times):
            self.tell(node, left_s)

    def tell(self, node: SimulatedNode, left_s: float) -> None:
        """Every controller hears of the notice."""
        node.deadline_s = self.sim.now_s + left_s
        for controller in self.sim.controllers:
            self.sim.tell(controller, Notice(node.name, node.deadline_s))

    def kill(self, name: str) -> None:
        node = self.sim.nodes[name]
        if node.is_dead:
            return
        node.is_dead = True
        # Its connections close at once, or it is missed at first and the market says so later.
        after_s = 0.0 if self.sim.rng.random() < 0.5 else self.sim.rng.uniform(3.0, 20.0)
        self.sim.after(after_s, lambda: self.report_down(name))

    def report_down(self, name: str) -> None:
        self.sim.nodes[name].is_gone = True
        for controller in self.sim.controllers:
            self.sim.tell(controller, NodeDown(name, Loss.DISCONNECTED))
