"""What a machine's process does for its node: computing, saving, loading, with times that are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agileml.application import Array
from agileml.core.compute.unit_computer import Reads, UnitComputer
from agileml.core.node.node import Node
from agileml.core.node.retry import Timers
from agileml.core.parameters.optimizer import optimizer
from agileml.core.protocol.commands import (
    Abandon,
    Abort,
    Arrange,
    Begin,
    Begun,
    Compute,
    Computed,
    Deliver,
    Form,
    Gather,
    Introduce,
    Leave,
    Loaded,
    LoadSlices,
    PartSaved,
    PassOn,
    Reduce,
    SavePart,
    Send,
)
from agileml.core.protocol.inputs import Measured, NodeUp
from agileml.core.protocol.messages import CONTROLLER, Cut, Failure, Saved, SaveFailed
from agileml.core.protocol.view import CutId
from agileml.events.terms import Task, Tier
from straggler.coverage import members
from tests.model.chunks import ChunkedThread
from tests.model.stage_shell import SimulatedStage
from tests.model.timeline import Process
from tests.model.toy import ALGORITHMS, ToyReplica

if TYPE_CHECKING:
    from tests.model.simulator import Simulation

TICK_S = 0.2
NEVER_S = 1e9


@dataclass
class SimulatedNode(Process):
    node: Node = field(default=None)  # type: ignore[assignment]
    work: UnitComputer = field(default=None)  # type: ignore[assignment]
    tier: Tier = Tier.TRANSIENT
    admitted: bool = True
    capacity: float = 1.0
    reads: dict[tuple[int, ...], Reads] = field(default_factory=dict)
    lacking: Compute | None = None  # a computation that waits for blocks
    deadline_s: float | None = None
    is_sick: bool = False  # the next units that it computes fail
    is_gone: bool = False  # and everybody was told so
    # Since when others do not answer its transport.
    unanswered_s: dict[str, float] = field(default_factory=dict)
    is_mute: bool = False  # its user code never gives the interpreter up
    failure: Failure | None = None
    thread: ChunkedThread | None = None  # where machines help each other
    stage: SimulatedStage | None = None  # in a pipeline
    replica: ToyReplica | None = None
    link_free_s: float = 0.0  # when what it sends of cuts and moves is through


class SimulatedStores:
    """Initial values and checkpoints, for a node."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation

    def initial(self, partition: int) -> tuple[Array, ...]:
        return self._sim.job.layout.blocks(self._sim.initial, partition)

    def release(self) -> None:
        pass

    def saved(self, name: CutId, partition: int) -> Cut:
        return self._sim.saved[name, partition]


def _key(command: Begin | Compute) -> tuple[int, ...]:
    return command.timeline, command.clock, *command.bundles


class NodeShell:
    """Starts the machines of a simulation and does what their nodes ask for."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def start(self, tier: Tier, *, admitted: bool = True) -> None:
        name = f"n{len(self.sim.nodes)}"
        algorithm = self.sim.schedule.algorithm
        rule = optimizer(algorithm, **ALGORITHMS[algorithm])
        replica = ToyReplica(rule) if self.sim.job.is_resident else None
        node = Node(
            name,
            self.sim.job,
            Timers(status_s=0.2, retry_s=NEVER_S if self.sim.schedule.orderly else 1.0),
            SimulatedStores(self.sim),
            replica,
        )
        work = UnitComputer(
            self.sim.toy, self.sim.job.layout, self.sim.job.parts, deterministic=self.sim.job.deterministic
        )
        capacity = self.sim.capacity(name)
        simulated = SimulatedNode(name, node=node, work=work, tier=tier, admitted=admitted, capacity=capacity)
        simulated.replica = replica
        simulated.stage = SimulatedStage(self.sim, simulated) if self.sim.job.pipeline is not None else None
        self.sim.nodes[name] = simulated
        for controller in self.sim.controllers:
            self.sim.tell(controller, NodeUp(name, tier, admitted, simulated.capacity))
        self.sim.after(self.sim.rng.uniform(0, TICK_S), lambda: self.tick(simulated))

    def tick(self, simulated: SimulatedNode) -> None:
        if not simulated.is_dead and not self.sim.is_over:
            self.sim.on(simulated, lambda: self.turn(simulated))
            if self.sim.schedule.restless:
                self.measure(simulated)
            self.sim.after(TICK_S, lambda: self.tick(simulated))

    def turn(self, simulated: SimulatedNode) -> None:
        if self.sim.job.may_overlap and self.sim.schedule.restless and self.sim.stage_rng.random() < 0.1:
            simulated.node.worker.overlaps = not simulated.node.worker.overlaps  # whatever it may choose
        self.sim.broken_links.look(simulated)
        if simulated.failure is None:
            self.do(simulated, simulated.node.tick(self.sim.now_s))
        else:
            self.sim.network.send(simulated.name, CONTROLLER, simulated.failure)

    def fails(self, simulated: SimulatedNode, command: Compute) -> bool:
        """True if these units fail here; none fails twice, because that would be the user's mistake."""
        work = {(command.clock, unit) for bundle in command.bundles for unit in members(bundle)}
        if not simulated.is_sick or simulated.failure is not None or work & self.sim.failed_units:
            return simulated.failure is not None
        self.sim.failed_units |= work
        units = sum(command.bundles)
        simulated.failure = Failure("no such luck", "", Task.COMPUTE, command.clock, units)
        return True

    def measure(self, simulated: SimulatedNode) -> None:
        """A machine's report, with any figures: what is made of them must do no harm."""
        draw, at_s = self.sim.stage_rng, self.sim.now_s
        counted = [int(at_s * draw.uniform(0, 1e6)) for _ in range(3)]
        event = Measured(
            simulated.name,
            at_s,
            *counted,
            compute_s=at_s * draw.random(),
            push_s=at_s * draw.random(),
            units=int(at_s * draw.uniform(0, 100)),
            units_s=at_s * draw.random(),
        )
        for controller in self.sim.controllers:
            if draw.random() < 0.9:
                self.sim.tell(controller, event)

    def do(self, simulated: SimulatedNode, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case Send():
                    self.sim.network.send(simulated.name, command.to, command.message)
                case Compute() | Arrange() | PassOn() if simulated.stage is not None:
                    simulated.stage.ask(command)
                case Begin():
                    self.begin(simulated, command)
                case Compute():
                    assert simulated.lacking is None, (simulated.lacking, command)
                    self.sim.fired["early"] += None in command.parts
                    self.compute(simulated, command)
                case Deliver():
                    self.bring(simulated, command)
                case Abort():
                    assert simulated.lacking is not None, command
                    simulated.lacking = None
                    self.sim.fired["abort"] += 1
                case LoadSlices():
                    simulated.work.load(members(command.slices))
                    self.happen(simulated, self.sim.rng.uniform(0.1, 0.6), Loaded(command.slices))
                case SavePart():
                    self.sim.after(self.sim.rng.uniform(0.05, 0.5), lambda c=command: self.save(simulated, c))
                case Form():
                    self.sim.groups.form(simulated, command)
                case Introduce():
                    self.sim.groups.introduce(simulated, command)
                case Reduce():
                    self.sim.groups.reduce(simulated, command)
                case Gather():
                    self.sim.groups.gather(simulated, command)
                case Abandon():
                    self.sim.groups.abandon(simulated)
                case Leave():
                    simulated.is_dead = True
                case _:
                    raise AssertionError(command)

    def save(self, simulated: SimulatedNode, command: SavePart) -> None:
        """Write a part of a checkpoint: one in twenty finds the disk full."""
        if simulated.is_dead:
            return
        outcome: Saved | SaveFailed
        if self.sim.rng.random() < 0.05:
            outcome = SaveFailed(command.name, command.partition, "no space left")
        else:
            self.sim.saved[command.name, command.partition] = command.cut
            outcome = Saved(command.name, command.partition, 1, "0", command.cut.counted)
        self.happen(simulated, 0.0, PartSaved(outcome))

    def happen(self, simulated: SimulatedNode, seconds: float, event: Any) -> None:
        def deliver() -> None:
            self.do(simulated, simulated.node.happened(event, self.sim.now_s))

        self.sim.after(seconds, lambda: self.sim.on(simulated, deliver))

    def begin(self, simulated: SimulatedNode, command: Begin) -> None:
        simulated.reads[_key(command)] = reads = self.reads(simulated, command)
        self.happen(simulated, 0.001, Begun(command, reads.by_partition))

    def reads(self, simulated: SimulatedNode, command: Begin | Compute) -> Reads:
        simulated.work.load({u // self.sim.job.parts for bundle in command.bundles for u in members(bundle)})
        return simulated.work.reads(command.clock, command.bundles)

    def bring(self, simulated: SimulatedNode, command: Deliver) -> None:
        """Blocks for the computation that waits."""
        lacking = simulated.lacking
        assert lacking is not None, command
        assert (lacking.timeline, lacking.clock) == (command.timeline, command.clock), (lacking, command)
        assert lacking.parts[command.partition] is None, command
        parts = list(lacking.parts)
        parts[command.partition] = command.blocks
        simulated.lacking = None
        self.compute(simulated, replace(lacking, parts=tuple(parts)))

    def compute(self, simulated: SimulatedNode, command: Compute) -> None:
        if None in command.parts:
            simulated.lacking = command
            return
        if self.fails(simulated, command):
            return
        reads = simulated.reads.pop(_key(command), None) or self.reads(simulated, command)
        inputs = simulated.work.assemble(reads, command.parts, apart=command.is_help)
        if simulated.replica is not None:
            inputs = replace(inputs, tables=simulated.replica.tables())
        if self.sim.job.helping is not None:
            if simulated.thread is None:
                simulated.thread = ChunkedThread(self.sim, simulated)
            simulated.thread.ask(command, inputs)
            return
        seconds = 0.0
        for bundle in command.bundles:
            contributions = list(enumerate(simulated.work.compute(inputs, bundle)))
            self.sim.rng.shuffle(contributions)
            seconds += self.sim.rng.uniform(0.02, 0.15) * (
                10 if self.sim.now_s < simulated.slow_until_s else 1
            )
            some = self.sim.rng.randint(0, len(contributions))
            for part in (contributions[:some], contributions[some:]):
                if part:
                    done = Computed(command.timeline, command.clock, bundle, tuple(part), seconds)
                    seconds += self.sim.rng.uniform(0.0, 0.03)
                    self.deliver(simulated, seconds, command, done)

    def deliver(self, simulated: SimulatedNode, seconds: float, command: Compute, done: Computed) -> None:
        """Report a result when it is there. What was aborted may have been too far on to be stopped."""

        def report() -> None:
            if not command.cursor.is_aborted or self.sim.rng.random() < 0.5:
                self.do(simulated, simulated.node.happened(done, self.sim.now_s))

        self.sim.after(seconds, lambda: self.sim.on(simulated, report))
