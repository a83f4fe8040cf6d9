"""The engine's own classes in one process, over a network that loses, doubles, delays and reorders messages."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from agileml.application import Array
from agileml.core.compute.contract import initial_values
from agileml.core.compute.unit_computer import Reads, UnitComputer
from agileml.core.controller.controller import Controller, ControllerSettings
from agileml.core.cuts.checkpoint import Checkpoint
from agileml.core.cuts.rule import CutRule
from agileml.core.node.node import Node, Timers
from agileml.core.protocol.commands import (
    Abandon,
    Begin,
    Begun,
    Compute,
    Computed,
    Finished,
    Form,
    Halt,
    HaltKind,
    Happened,
    Introduce,
    Leave,
    Loaded,
    LoadSlices,
    PartSaved,
    Persist,
    Reduce,
    Released,
    SavePart,
    Seal,
    Send,
)
from agileml.core.protocol.inputs import (
    ControllerInput,
    Measured,
    NodeDown,
    NodeUp,
    Notice,
    NoticeCancelled,
    Persisted,
    Received,
    Sealed,
    SealFailed,
    Superseded,
    Tick,
)
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Copy,
    Cut,
    Message,
    Params,
    Part,
    Push,
    Saved,
    SaveFailed,
)
from agileml.core.protocol.plan import PlannedJoin
from agileml.core.protocol.record import Record
from agileml.core.protocol.view import INITIAL, CutId
from agileml.core.sequential import run_sequential
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.link_rate import LinkRule
from agileml.core.stage.placement import StageRule
from agileml.events.run import ControllerEvent, MembershipChanged, PlanFinished, PlanFired
from agileml.events.terms import Loss, Tier
from straggler.coverage import members
from tests.model.groups import Groups
from tests.model.invariants import check_commit, check_rollbacks, check_view, note_backups
from tests.model.schedule import Fault, Schedule
from tests.model.toy import toy_job

TICK_S = 0.2
RESTLESS = TrialRule(
    clocks=1, settle=0, try_gain=-99.0, keep_gain=0.0, worth=-1e12
)  # tries whatever there is
NEVER_S = 1e9
LAST_S = 400.0  # simulated: a run that is not done by then hangs


@cache
def reference(algorithm: str, slices: int, parts: int, clocks: int, *, is_dense: bool) -> dict[str, Array]:
    """The sequential result: neither partitions nor machines change a bit of it."""
    toy, job = toy_job("dense" if is_dense else "bsp", algorithm, slices, parts, 1, clocks)
    return run_sequential(toy, optimizer=job.optimizer, clocks=clocks, parts=parts)


@dataclass
class Process:
    """Something that runs on a machine: it can be dead, or frozen until some time."""

    name: str
    is_dead: bool = False
    frozen_until_s: float = 0.0
    late: list[Callable[[], None]] = field(default_factory=list)  # what arrived while it was frozen
    cut_until_s: float = 0.0  # no message gets through, either way
    slow_until_s: float = 0.0  # computes ten times slower


@dataclass
class SimulatedNode(Process):
    node: Node = field(default=None)  # type: ignore[assignment]
    work: UnitComputer = field(default=None)  # type: ignore[assignment]
    tier: Tier = Tier.TRANSIENT
    admitted: bool = True
    reads: dict[tuple[int, ...], Reads] = field(default_factory=dict)
    deadline_s: float | None = None
    link_free_s: float = 0.0  # when what it sends of cuts and moves is through


@dataclass
class SimulatedController(Process):
    controller: Controller = field(default=None)  # type: ignore[assignment]


class SimulatedStores:
    """Initial values and checkpoints, for a node."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def initial(self, partition: int) -> tuple[Array, ...]:
        return self._simulation.job.layout.blocks(self._simulation.initial, partition)

    def release(self) -> None:
        pass

    def saved(self, name: CutId, partition: int) -> Cut:
        return self._simulation.saved[name, partition]


def _key(command: Begin | Compute) -> tuple[int, ...]:
    return command.timeline, command.clock, *command.bundles


def received(message: Message) -> Message:
    """A message as it comes out of a network: what a shard may add into is nobody else's."""
    if not isinstance(message, Push):
        return message
    return replace(message, contribution=deepcopy(message.contribution))


class ModelError(AssertionError):
    """An invariant does not hold, or the run hangs."""


class Simulation:
    """One schedule. `run` drives it to its end and checks everything."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        s = schedule
        self.toy, self.job = toy_job(s.mode, s.algorithm, s.slices, s.parts, s.partitions, s.clocks)
        self.initial = initial_values(self.toy, self.job.layout.tables)
        self.rng = random.Random(f"{s.seed}/{s.mode}/run")
        self.stage_rng = random.Random(f"{s.seed}/{s.mode}/measured")
        self.now_s = 0.0
        self.store: dict[int, str] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.controllers: list[SimulatedController] = []
        self.finished: Finished | None = None
        self.is_lost = False  # the run's end because no reliable machine is left
        self.saved: dict[tuple[CutId, int], Cut] = {}  # the checkpoint store
        self.sealed: list[Checkpoint] = []
        self.checkpoint_every_s = self.rng.choice([None, 0.6, 2.0])
        self.silent_limit_s = random.Random(f"{s.seed}/{s.mode}/silent").choice([300.0, 300.0, 2.0])
        self.groups = Groups(self)
        self.events: list[ControllerEvent] = []
        self.fired: Counter[str] = Counter()
        self.messages = 0
        self.acceptors: dict[tuple[int, int], str] = {}
        self.committed = INITIAL
        self.kept: set[tuple[CutId, int, str]] = set()  # committed parts, by partition and backup
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._cuts_until_s = 0.0  # until then some machine is cut off
        self._last_s: dict[tuple[str, str], float] = {}  # when the last message of one to another arrives
        self._aimed = [fault for fault in s.faults if fault.aim]
        self._aim_counts: Counter[int] = Counter()

    # -- time -----------------------------------------------------------------------------------------------

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, self._sequence, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, action)

    def on(self, process: Process, action: Callable[[], None]) -> None:
        """Do something inside a process: nothing if it is dead, later if it is frozen."""
        if process.is_dead:
            return
        if self.now_s < process.frozen_until_s:
            process.late.append(action)
        else:
            action()

    def run(self) -> Simulation:
        s = self.schedule
        expected = s.reliable + s.transient + sum(e.count for e in s.plan if isinstance(e, PlannedJoin))
        self.expected = expected
        self.start_controller()
        for _ in range(s.reliable):
            self.start_node(Tier.RELIABLE)
        for _ in range(s.transient):
            self.start_node(Tier.TRANSIENT)
        for event in s.plan:
            if isinstance(event, PlannedJoin):
                for _ in range(event.count):
                    self.start_node(event.tier, admitted=False)
        for fault in s.faults:
            if not fault.aim:
                self.at(fault.at_s, lambda fault=fault: self.strike(fault))
        while not self.is_over:
            if not self._heap or self.now_s > LAST_S:
                raise ModelError(f"hangs at {self.now_s:.1f} s: {self.describe()}")
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        if not self.is_lost:
            self.check_end()
        return self

    @property
    def is_over(self) -> bool:
        return self.finished is not None or self.is_lost

    def describe(self) -> str:
        lines = []
        for c in self.controllers:
            ctl = c.controller
            lines.append(
                f"{c.name} dead={c.is_dead} frozen={c.frozen_until_s:.1f} completed={ctl.completed} limit={ctl.limit}"
                f" record={ctl.record.to_text()} {ctl.describe()}"
            )
        for n in self.nodes.values():
            lines.append(
                f"{n.name} {n.tier} dead={n.is_dead} promised={n.node.promised} tag={n.node.tag} "
                f"clock={n.node.worker.clock} versions={n.node.server.versions(n.node.promised)} "
                f"computing={n.node.worker._computing} reading={n.node.worker._reading}"
            )
        return "\n".join(lines)

    # -- processes ------------------------------------------------------------------------------------------

    def start_node(self, tier: Tier, *, admitted: bool = True) -> None:
        name = f"n{len(self.nodes)}"
        node = Node(
            name,
            self.job,
            Timers(status_s=0.2, retry_s=NEVER_S if self.schedule.orderly else 1.0),
            SimulatedStores(self),
        )
        work = UnitComputer(self.toy, self.job.layout, self.job.parts, deterministic=self.job.deterministic)
        simulated = SimulatedNode(name, node=node, work=work, tier=tier, admitted=admitted)
        self.nodes[name] = simulated
        for controller in self.controllers:
            self.tell(controller, NodeUp(name, tier, "", admitted))
        self.after(self.rng.uniform(0, TICK_S), lambda: self.tick_node(simulated))

    def tick_node(self, simulated: SimulatedNode) -> None:
        if not simulated.is_dead and not self.is_over:
            self.on(simulated, lambda: self.do_node(simulated, simulated.node.tick(self.now_s)))
            if self.schedule.restless:
                self.measure(simulated)
            self.after(TICK_S, lambda: self.tick_node(simulated))

    def measure(self, simulated: SimulatedNode) -> None:
        """A machine's report, with any figures: what is made of them must do no harm."""
        draw, at_s = self.stage_rng, self.now_s
        counted = [int(at_s * draw.uniform(0, 1e6)) for _ in range(3)]
        event = Measured(simulated.name, at_s, *counted, at_s * draw.random(), at_s * draw.random())
        for controller in self.controllers:
            if draw.random() < 0.9:
                self.tell(controller, event)

    def start_controller(self) -> None:
        record = self.newest_record()
        s = self.schedule
        settings = ControllerSettings(
            rule=StageRule(s.thresholds, s.forced, s.active_fraction),
            cuts=CutRule(s.cut_every_s, s.cut_clocks),
            timeout_s=1.0,
            retry_s=NEVER_S if s.orderly else 0.5,
            join_wait_s=0.5,
            restart_wait_s=1.0,
            silent_limit_s=self.silent_limit_s,
            expected=0 if self.controllers else self.expected,  # some may have died since the first one
            seed=s.seed,
            checkpoint_every_s=self.checkpoint_every_s,
            links=LinkRule(least_bytes=64, settle_s=0.2),
            auto_stage=RESTLESS if s.restless and s.forced is None else None,
        )
        newest = max(self.sealed, key=lambda checkpoint: checkpoint.name, default=None)
        controller = Controller(f"c{len(self.controllers)}", self.job, settings, s.plan, record, newest)
        simulated = SimulatedController(controller.name, controller=controller)
        self.controllers.append(simulated)
        for node in self.nodes.values():
            self.tell(simulated, NodeUp(node.name, node.tier, "", node.admitted))
            if node.is_dead:  # whoever starts a controller knows, sooner or later
                self.after(self.rng.uniform(0.0, 5.0), lambda n=node: self.report_down(n.name))
            else:
                if node.deadline_s is not None:
                    self.tell(simulated, Notice(node.name, node.deadline_s))
        self.tick_controller(simulated)

    def tick_controller(self, simulated: SimulatedController) -> None:
        if not simulated.is_dead and not self.is_over:
            self.tell(simulated, Tick())
            self.after(TICK_S, lambda: self.tick_controller(simulated))

    def tell(self, simulated: SimulatedController, event: ControllerInput) -> None:
        self.on(
            simulated, lambda: self.do_controller(simulated, simulated.controller.handle(event, self.now_s))
        )

    def freeze(self, process: Process, seconds: float) -> None:
        process.frozen_until_s = max(process.frozen_until_s, self.now_s + seconds)
        self.at(process.frozen_until_s, lambda: self.wake(process))

    def wake(self, process: Process) -> None:
        if self.now_s >= process.frozen_until_s:
            late, process.late = process.late, []
            for action in late:
                self.on(process, action)

    # -- commands -------------------------------------------------------------------------------------------

    def do_node(self, simulated: SimulatedNode, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case Send():
                    self.send(simulated.name, command.to, command.message)
                case Begin():
                    self.begin(simulated, command)
                case Compute():
                    self.compute(simulated, command)
                case LoadSlices():
                    simulated.work.load(members(command.slices))
                    self.happen(simulated, self.rng.uniform(0.1, 0.6), Loaded(command.slices))
                case SavePart():
                    self.after(self.rng.uniform(0.05, 0.5), lambda c=command: self.save(simulated, c))
                case Form():
                    self.groups.form(simulated, command)
                case Introduce():
                    self.groups.introduce(simulated, command)
                case Reduce():
                    self.groups.reduce(simulated, command)
                case Abandon():
                    self.groups.abandon(simulated)
                case Leave():
                    simulated.is_dead = True
                case _:
                    raise AssertionError(command)

    def save(self, simulated: SimulatedNode, command: SavePart) -> None:
        """Write a part of a checkpoint: one in twenty finds the disk full."""
        if simulated.is_dead:
            return
        outcome: Saved | SaveFailed
        if self.rng.random() < 0.05:
            outcome = SaveFailed(command.name, command.partition, "no space left")
        else:
            self.saved[command.name, command.partition] = command.cut
            outcome = Saved(command.name, command.partition, 1, "0", command.cut.counted)
        self.happen(simulated, 0.0, PartSaved(outcome))

    def seal(self, simulated: SimulatedController, command: Seal) -> None:
        """Write a checkpoint's manifest."""
        if simulated.is_dead:
            return
        if self.rng.random() < 0.05:
            self.tell(simulated, SealFailed(command.name, "no space left"))
            return
        assert all((command.name, p) in self.saved for p in range(self.job.layout.partitions))
        self.sealed.append(Checkpoint(command.name, tuple(part.counted for part in command.parts)))
        self.fired["checkpoint"] += 1
        self.tell(simulated, Sealed(command.name))

    def happen(self, simulated: SimulatedNode, seconds: float, event: Any) -> None:
        def deliver() -> None:
            self.do_node(simulated, simulated.node.happened(event, self.now_s))

        self.after(seconds, lambda: self.on(simulated, deliver))

    def begin(self, simulated: SimulatedNode, command: Begin) -> None:
        simulated.reads[_key(command)] = reads = self.reads(simulated, command)
        self.happen(simulated, 0.001, Begun(command, reads.by_partition))

    def reads(self, simulated: SimulatedNode, command: Begin | Compute) -> Reads:
        simulated.work.load({u // self.job.parts for bundle in command.bundles for u in members(bundle)})
        return simulated.work.reads(command.clock, command.bundles)

    def compute(self, simulated: SimulatedNode, command: Compute) -> None:
        reads = simulated.reads.pop(_key(command), None) or self.reads(simulated, command)
        inputs = simulated.work.assemble(reads, command.parts)
        seconds = 0.0
        for bundle in command.bundles:
            contributions = list(enumerate(simulated.work.compute(inputs, bundle)))
            self.rng.shuffle(contributions)
            seconds += self.rng.uniform(0.02, 0.15) * (10 if self.now_s < simulated.slow_until_s else 1)
            some = self.rng.randint(0, len(contributions))
            for part in (contributions[:some], contributions[some:]):
                if part:
                    done = Computed(command.timeline, command.clock, bundle, tuple(part))
                    seconds += self.rng.uniform(0.0, 0.03)
                    self.happen(simulated, seconds, done)

    def do_controller(self, simulated: SimulatedController, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case Send():
                    self.send(simulated.name, command.to, command.message)
                case Persist():
                    self.after(self.rng.uniform(0.001, 0.05), lambda c=command: self.persist(simulated, c))
                    self.aim("Persist")
                case Seal():
                    self.after(self.rng.uniform(0.01, 0.2), lambda c=command: self.seal(simulated, c))
                case Happened():
                    self.events.append(command.event)
                case Released():
                    self.after(self.rng.uniform(0.1, 1.0), lambda c=command: self.kill(c.node))
                case Finished():
                    self.finished = command
                case Halt():
                    if command.kind is HaltKind.LOST and self.really_lost():
                        self.is_lost = True
                    elif command.kind is not HaltKind.REPLACED:
                        raise ModelError(f"halt: {command.reason}\n{self.describe()}")
                    simulated.is_dead = True
                case _:
                    raise AssertionError(command)

    def persist(self, simulated: SimulatedController, command: Persist) -> None:
        """The store: create if absent. The answer reaches the writer only if it still lives."""
        if simulated.is_dead:
            return
        if command.number in self.store:
            self.tell(simulated, Superseded(command.number))
            return
        record = Record.from_text(command.text)
        before = self.newest_record()
        if record.view is not None and (before is None or before.view != record.view):
            check_view(self.job, record.view)
        check_commit(self, record)
        if record.view is not None:  # whoever is no backup of a partition any more may drop its part
            self.kept = {kept for kept in self.kept if record.view.backup[kept[1]] == kept[2]}
            if before is None or before.view != record.view:
                note_backups(self, record.view)
        self.store[command.number] = command.text
        self.tell(simulated, Persisted(command.number))

    def newest_record(self) -> Record | None:
        return Record.from_text(self.store[max(self.store)]) if self.store else None

    def really_lost(self) -> bool:
        """True when no reliable machine is left: everything else is with a machine, in a checkpoint, or the start."""
        return all(self.is_lost_to_controller(node) for node in self.alive(Tier.RELIABLE))

    def is_lost_to_controller(self, node: SimulatedNode) -> bool:
        """Dead, or silent for so long (until a moment ago) that nobody waits for it any more."""
        if node.is_dead or self.silent_limit_s > LAST_S / 2:
            return node.is_dead
        return self.now_s < max(node.frozen_until_s, node.cut_until_s) + 1.0

    # -- the network ----------------------------------------------------------------------------------------

    def send(self, sender: str, to: str, message: Message) -> None:
        self.messages += 1
        if isinstance(message, Ack | Params):
            acceptor = self.acceptors.setdefault((message.epoch, message.partition), sender)
            assert acceptor == sender, (
                f"two servers for partition {message.partition} in epoch {message.epoch}"
            )
        if isinstance(message, Params) and self.job.consistency.slack is not None:
            slack = self.job.consistency.slack
            assert message.version >= message.clock - slack, message
            assert slack or message.version == message.clock, message
        network = self.schedule.network
        copies = (self.rng.random() >= network.drop) + (self.rng.random() < network.double)
        for _ in range(copies):
            delay_s = self.rng.expovariate(1 / network.delay_s)
            if network.late and self.rng.random() < network.late:
                delay_s += self.rng.uniform(0.2, 2.5)
            delay_s += self.on_the_link(sender, message)
            at_s = self.now_s + delay_s
            if self.schedule.orderly:
                at_s = self._last_s[sender, to] = max(at_s, self._last_s.get((sender, to), 0.0))
            self.at(at_s, lambda: self.deliver(sender, to, message))
        if self._aimed:
            self.aim(type(message).__name__)

    def on_the_link(self, sender: str, message: Message) -> float:
        """For how long a cut's part or a moved shard is on its sender's link, behind those before it."""
        rate = self.schedule.bytes_per_s
        if rate is None or not isinstance(message, Part | Copy):
            return 0.0
        cut = message.cut if isinstance(message, Part) else message.copy.cut
        node = self.nodes[sender]
        node.link_free_s = max(self.now_s, node.link_free_s) + cut.size_bytes / rate
        return node.link_free_s - self.now_s

    def deliver(self, sender: str, to: str, message: Message) -> None:
        if self.now_s < self._cuts_until_s and self.is_cut(sender, to):
            return
        if to == CONTROLLER:
            for controller in self.controllers:
                self.tell(controller, Received(sender, message))
        elif (node := self.nodes.get(to)) is not None:
            message = received(message)
            self.on(node, lambda: self.do_node(node, node.node.handle(sender, message, self.now_s)))

    def is_cut(self, sender: str, to: str) -> bool:
        """True when no message gets through between these two."""
        return any((n := self.nodes.get(end)) and self.now_s < n.cut_until_s for end in (sender, to))

    # -- faults ---------------------------------------------------------------------------------------------

    def aim(self, name: str) -> None:
        for index, fault in enumerate(self._aimed):
            if fault.aim == name and self.now_s >= fault.at_s:
                self._aim_counts[index] += 1
                if self._aim_counts[index] == fault.count:
                    self.after(0.0, lambda fault=fault: self.strike(fault))

    def alive(self, tier: Tier) -> list[SimulatedNode]:
        return [n for n in self.nodes.values() if not n.is_dead and n.tier is tier]

    def pick(self, count: int, tier: Tier = Tier.TRANSIENT) -> list[SimulatedNode]:
        machines = [n for n in self.alive(tier) if n.admitted]
        return self.rng.sample(machines, min(count, len(machines)))

    def spare_reliable(self) -> list[SimulatedNode]:
        """A reliable machine that the run can do without: another one stays."""
        staying = [n for n in self.alive(Tier.RELIABLE) if n.admitted and n.deadline_s is None]
        return self.rng.sample(staying, 1) if len(staying) > 1 else []

    def owners(self) -> list[SimulatedNode]:
        """Transient machines that serve under the durable view."""
        record = self.newest_record()
        names = record.view.owner if record and record.view else ()
        return [n for n in self.alive(Tier.TRANSIENT) if n.name in names]

    def strike(self, fault: Fault) -> None:
        if self.is_over:
            return
        if self.act(fault):
            self.fired[fault.kind] += 1

    def act(self, fault: Fault) -> bool:
        """Do it; False when there is nobody whom it could hit."""
        match fault.kind:
            case "join":
                room = self.job.slices - len(self.alive(Tier.TRANSIENT)) - len(self.alive(Tier.RELIABLE))
                for _ in range(min(fault.number, room)):
                    self.start_node(Tier.RELIABLE if self.rng.random() < 0.1 else Tier.TRANSIENT)
                return room > 0
            case "kill_controller":
                self.controllers[-1].is_dead = True
                self.after(fault.seconds, self.start_controller)
                return True
            case "freeze_controller":
                self.freeze(self.controllers[-1], fault.seconds)
                return True
            case "double_controller":
                self.start_controller()
                return True
        machines = self.victims(fault)
        for node in machines:
            match fault.kind:
                case (
                    "notice"
                    | "short_notice"
                    | "cancelled_notice"
                    | "notice_all"
                    | "notice_reliable"
                    | "notice_owner"
                ):
                    self.notice(node, fault)
                case "kill" | "kill_owner" | "kill_many" | "kill_reliable":
                    self.kill(node.name)
                case "freeze" | "freeze_reliable" | "freeze_owner":
                    self.freeze(node, fault.seconds)
                case "cut":
                    node.cut_until_s = self.now_s + fault.seconds
                    self._cuts_until_s = max(self._cuts_until_s, node.cut_until_s)
                case "slow":
                    node.slow_until_s = self.now_s + fault.seconds
                case _:
                    raise AssertionError(fault)
        return bool(machines)

    def victims(self, fault: Fault) -> list[SimulatedNode]:
        match fault.kind:
            case "notice" | "short_notice" | "cancelled_notice":
                return self.pick(fault.number)
            case "notice_all":
                return self.pick(len(self.nodes))
            case "notice_reliable":
                return self.spare_reliable()
            case "kill_reliable":
                return self.spare_reliable()
            case "kill_many":
                return self.pick(1 + self.rng.randrange(4))
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
        if fault.kind == "cancelled_notice":
            for controller in self.controllers:
                self.tell(controller, Notice(node.name, self.now_s + 60.0))
            self.after(fault.seconds, lambda: self.cancel(node))
            return
        node.deadline_s = self.now_s + fault.seconds
        self.at(node.deadline_s, lambda: self.kill(node.name))
        for _ in range(1 + (self.rng.random() < 0.3)):
            for controller in self.controllers:
                self.tell(controller, Notice(node.name, node.deadline_s))

    def cancel(self, node: SimulatedNode) -> None:
        for controller in self.controllers:
            self.tell(controller, NoticeCancelled(node.name))

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        if node.is_dead:
            return
        node.is_dead = True
        # Its connections close at once, or it is missed at first and the market says so later.
        after_s = 0.0 if self.rng.random() < 0.5 else self.rng.uniform(3.0, 20.0)
        self.after(after_s, lambda: self.report_down(name))

    def report_down(self, name: str) -> None:
        for controller in self.controllers:
            self.tell(controller, NodeDown(name, Loss.DISCONNECTED))

    # -- the end --------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Array]:
        assert self.finished is not None
        parts = []
        for partition, backup in enumerate(self.finished.backup):
            held = self.nodes[backup].node.backup
            cut = held.arrived(partition) or held.cut(partition)  # it may not have heard of the commit yet
            assert cut is not None, (partition, backup)
            assert cut.clock == self.finished.clock == self.job.clocks
            parts.append(cut.blocks)
        return self.job.layout.whole(parts)

    def check_end(self) -> None:
        s = self.schedule
        found = self.result()
        is_dense = s.mode in ("dense", "allreduce")
        wanted = reference(s.algorithm, s.slices, s.parts, s.clocks, is_dense=is_dense)
        np.testing.assert_array_equal(
            found["count"], wanted["count"], err_msg="a unit is missing or counted twice"
        )
        if s.mode in ("bsp", "dense"):
            for name in wanted:
                assert found[name].tobytes() == wanted[name].tobytes(), f"table {name} has other bits"
        if s.mode in ("bsp", "dense", "sum", "allreduce"):
            np.testing.assert_allclose(found["dense"], wanted["dense"], rtol=2e-2, atol=2e-3)
        changes = [event for event in self.events if isinstance(event, MembershipChanged)]
        if s.gentle:
            assert not any(change.rolled_back or change.redone for change in changes), changes
            assert not self.groups.given_up, self.groups.given_up
        check_rollbacks(self)
        for kind in (PlanFired, PlanFinished):
            assert sum(isinstance(event, kind) for event in self.events) == len(s.plan), kind
