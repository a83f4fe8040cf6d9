"""What a controller's process does for it: the records' store, checkpoints' manifests, commands, time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agileml.core.controller.controller import Controller, ControllerSettings
from agileml.core.cuts.checkpoint import Checkpoint
from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import Finished, Halt, HaltKind, Happened, Persist, Released, Seal, Send
from agileml.core.protocol.inputs import (
    NodeUp,
    Notice,
    Persisted,
    Sealed,
    SealFailed,
    StepsWritten,
    Superseded,
    Tick,
)
from agileml.core.protocol.record import Record
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.link_rate import LinkRule
from agileml.core.stage.placement import StageRule
from agileml.core.stage.recut import RecutRule
from agileml.events.run import MachineLost, StagesArranged, StepsLogged
from agileml.events.terms import Loss
from tests.model.invariants import check_backed_up, check_commit, check_view, note_backups
from tests.model.node_shell import NEVER_S, TICK_S
from tests.model.timeline import Process

if TYPE_CHECKING:
    from tests.model.simulator import Simulation

POLL_S = 0.05  # after which the driver has asked for events and written them

# Tries whatever stage there is.
RESTLESS = TrialRule(clocks=1, settle=0, try_gain=-99.0, keep_gain=0.0, worth=-1e12)
# Cuts stages anew for next to nothing.
EAGER = RecutRule(gain=0.01, looks=1, worth=0.0, clocks=1, apart_s=0.3)


class ModelError(AssertionError):
    """An invariant does not hold, or the run hangs."""


@dataclass
class SimulatedController(Process):
    controller: Controller = field(default=None)  # type: ignore[assignment]


class ControllerShell:
    """Starts the controllers of a simulation and does what they ask for."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def start(self) -> None:
        record = self.sim.newest_record()
        s, is_staged = self.sim.schedule, self.sim.job.pipeline is not None
        settings = ControllerSettings(
            rule=StageRule(s.thresholds, 3, 1.0)
            if is_staged
            else StageRule(s.thresholds, s.forced, s.active_fraction),
            cuts=CutRule(s.cut_every_s, s.cut_clocks),
            timeout_s=1.0,
            retry_s=NEVER_S if s.orderly else 0.5,
            join_wait_s=0.5,
            restart_wait_s=1.0,
            silent_limit_s=self.sim.silent_limit_s,
            max_failures=99,
            expected=0
            if self.sim.controllers
            else self.sim.expected,  # some may have died since the first one
            seed=s.seed,
            checkpoint_every_s=self.sim.checkpoint_every_s,
            links=LinkRule(least_bytes=64, settle_s=0.2),
            auto_stage=RESTLESS if s.restless and s.forced is None and not is_staged else None,
            recut=EAGER if s.restless else RecutRule(),
        )
        newest = max(self.sim.sealed, key=lambda checkpoint: checkpoint.name, default=None)
        name = f"c{len(self.sim.controllers)}"
        controller = Controller(name, self.sim.job, settings, s.plan, record, newest)
        simulated = SimulatedController(name, controller=controller)
        self.sim.controllers.append(simulated)
        for node in self.sim.nodes.values():
            self.sim.tell(simulated, NodeUp(node.name, node.tier, node.admitted, node.capacity))
            if node.is_dead:  # whoever starts a controller knows, sooner or later
                self.sim.after(
                    self.sim.rng.uniform(0.0, 5.0), lambda n=node: self.sim.faults.report_down(n.name)
                )
            else:
                if node.deadline_s is not None:
                    self.sim.tell(simulated, Notice(node.name, node.deadline_s))
        self.sim.broken_links.introduce(simulated)
        self.tick(simulated)

    def tick(self, simulated: SimulatedController) -> None:
        if not simulated.is_dead and not self.sim.is_over:
            self.sim.tell(simulated, Tick())
            self.sim.after(TICK_S, lambda: self.tick(simulated))

    def do(self, simulated: SimulatedController, commands: list[Any]) -> None:
        for command in commands:
            match command:
                case Send():
                    self.sim.network.send(simulated.name, command.to, command.message)
                case Persist():
                    self.sim.after(
                        self.sim.rng.uniform(0.001, 0.05), lambda c=command: self.persist(simulated, c)
                    )
                    self.sim.faults.aim("Persist")
                case Seal():
                    self.sim.after(self.sim.rng.uniform(0.01, 0.2), lambda c=command: self.seal(simulated, c))
                case Happened(event) if isinstance(event, StepsLogged):
                    self.sim.after(POLL_S, partial(self.write, simulated, event))
                case Happened(event) if isinstance(event, MachineLost) and event.loss is Loss.CUT_OFF:
                    # A restless machine's figures arrive while it is frozen or cut off, so it counts as alive then.
                    is_parted = self.sim.broken_links.is_parted(event.machine)
                    assert is_parted or self.sim.schedule.restless, event
                    self.sim.fired["given up for a link"] += 1
                    self.sim.events.append(event)
                case Happened():
                    self.sim.events.append(command.event)
                    if isinstance(command.event, StagesArranged):
                        self.sim.told_stages.setdefault(simulated.name, []).append(command.event)
                case Released():
                    self.sim.after(
                        self.sim.rng.uniform(0.1, 1.0), lambda c=command: self.sim.faults.kill(c.node)
                    )
                case Finished():
                    self.sim.finished = command
                case Halt():
                    if command.kind is HaltKind.LOST and self.sim.really_lost():
                        self.sim.is_lost = True
                    elif command.kind is not HaltKind.REPLACED:
                        raise ModelError(f"halt: {command.reason}\n{self.sim.describe()}")
                    simulated.is_dead = True
                case _:
                    raise AssertionError(command)

    def write(self, simulated: SimulatedController, event: StepsLogged) -> None:
        """The driver, which asks now and then, writes the log: it never hears what a dead controller knew."""
        if simulated.is_dead:
            return
        self.sim.events.append(event)
        steps = event.first + len(event.positions)
        self.sim.tell(simulated, StepsWritten(event.partition, event.timeline, steps))

    def persist(self, simulated: SimulatedController, command: Persist) -> None:
        """The store: create if absent. The answer reaches the writer only if it still lives."""
        if simulated.is_dead:
            return
        if command.number in self.sim.store:
            self.sim.tell(simulated, Superseded(command.number))
            return
        record = Record.from_text(command.text)
        before = self.sim.newest_record()
        if record.view is not None and (before is None or before.view != record.view):
            check_view(self.sim.job, record.view)
        check_commit(self.sim, record)
        if record.view is not None:  # whoever is no backup of a partition any more may drop its part
            self.sim.kept = {kept for kept in self.sim.kept if record.view.backup[kept[1]] == kept[2]}
            if before is None or before.view != record.view:
                note_backups(self.sim, record.view)
                check_backed_up(self.sim, record.view)
        self.sim.store[command.number] = command.text
        self.sim.tell(simulated, Persisted(command.number))

    def seal(self, simulated: SimulatedController, command: Seal) -> None:
        """Write a checkpoint's manifest."""
        if simulated.is_dead:
            return
        if self.sim.rng.random() < 0.05:
            self.sim.tell(simulated, SealFailed(command.name, "no space left"))
            return
        assert all((command.name, p) in self.sim.saved for p in range(self.sim.job.layout.partitions))
        self.sim.sealed.append(Checkpoint(command.name, tuple(part.counted for part in command.parts)))
        self.sim.fired["checkpoint"] += 1
        self.sim.tell(simulated, Sealed(command.name))
