"""The engine's own classes in one process, over a network that loses, doubles, delays and reorders messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from agileml.application import Array
from agileml.core.async_stages.replay import stages_in
from agileml.core.compute.contract import initial_values
from agileml.core.cuts.checkpoint import Checkpoint
from agileml.core.protocol.commands import Finished
from agileml.core.protocol.inputs import ControllerInput
from agileml.core.protocol.messages import Cut
from agileml.core.protocol.plan import PlannedJoin
from agileml.core.protocol.record import Record
from agileml.core.protocol.view import INITIAL, CutId
from agileml.core.sequential import run_sequential
from agileml.core.stepwise import Steps, Stepwise, steps_of
from agileml.events.run import (
    ControllerEvent,
    MembershipChanged,
    PlanFinished,
    PlanFired,
    StagesArranged,
    StepsLogged,
)
from agileml.events.terms import Tier
from tests.model.async_reference import async_reference
from tests.model.broken_links import BACK_S, BrokenLinks
from tests.model.controller_shell import ControllerShell, ModelError, SimulatedController
from tests.model.fault_kinds import FOR_GOOD_S
from tests.model.faults import FaultInjector
from tests.model.groups import Groups
from tests.model.invariants import check_rollbacks
from tests.model.judge import Judge, check_none_passed_over
from tests.model.network import SimulatedNetwork
from tests.model.node_shell import NodeShell, SimulatedNode
from tests.model.plans import eager_help, random_plans, random_rules
from tests.model.schedule import Schedule
from tests.model.staged_toy import StagedToy
from tests.model.timeline import Timeline
from tests.model.toy import ASYNC, DENSE, ELASTIC, SAME_BITS, toy_job

HUNG_S = 400.0  # simulated: a run that completes no clock for so long hangs
LOOK_S = 1.0  # between looks at how far a run is: one at each of its steps took a twentieth of the time


@cache
def reference(
    algorithm: str,
    slices: int,
    parts: int,
    clocks: int,
    clip_norm: float | None,
    kind: str,
    *,
    is_scaled: bool = False,
) -> dict[str, Array]:
    """The sequential result: neither partitions nor machines change a bit of it. kind: bsp, dense or flush."""
    toy, job = toy_job(kind, algorithm, slices, parts, 1, clocks, clip_norm=clip_norm, is_scaled=is_scaled)
    return run_sequential(toy, optimizer=job.optimizer, clocks=clocks, parts=parts)


class Simulation(Timeline):
    """One schedule. `run` drives it to its end and checks everything."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        s = schedule
        self.fired: Counter[str] = Counter()
        plans = random_plans(s, self.fired)
        self.toy, self.job = toy_job(
            s.toy_mode,
            s.algorithm,
            s.slices,
            s.parts,
            s.partitions,
            s.clocks,
            plans,
            s.clip_norm,
            is_resident=s.is_resident,
            is_sharded=s.is_sharded,
            is_scaled=s.is_scaled,
        )
        if self.job.pipeline is not None:
            self.job = replace(self.job, pipeline=random_rules(s))
        if s.is_helped:
            self.job = replace(self.job, helping=eager_help(s))
        self.job = replace(self.job, holds_every=s.holds_every)
        self.initial = initial_values(self.toy, self.job.layout.tables)
        self.rng = random.Random(f"{s.seed}/{s.mode}/run")
        self.stage_rng = random.Random(f"{s.seed}/{s.mode}/measured")
        self.store: dict[int, str] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.controllers: list[SimulatedController] = []
        self.finished: Finished | None = None
        self.is_lost = False  # the run's end because no reliable machine is left
        self.saved: dict[tuple[CutId, int], Cut] = {}  # the checkpoint store
        self.sealed: list[Checkpoint] = []
        self.checkpoint_every_s = self.rng.choice([None, 0.6, 2.0])
        self.silent_limit_s = random.Random(f"{s.seed}/{s.mode}/silent").choice([300.0, 300.0, 2.0])
        self.network = SimulatedNetwork(self)
        self.broken_links = BrokenLinks(self)
        self.node_shell = NodeShell(self)
        self.controller_shell = ControllerShell(self)
        self.faults = FaultInjector(self)
        self.groups = Groups(self)
        self.judge = Judge(self)
        self.events: list[ControllerEvent] = []
        self.told_stages: dict[str, list[StagesArranged]] = {}  # by controller
        # Of the clocks before the checkpoint that it goes on from, where the bits follow from the log.
        self.stages_before: list[StagesArranged] = []
        self.steps_before: list[StepsLogged] = []
        self.failed_units: set[tuple[int, int]] = set()  # (clock, unit) that failed on a sick machine
        self.messages = 0
        self.committed = INITIAL
        self.kept: set[tuple[CutId, int, str]] = set()  # committed parts, by partition and backup

    def run(self) -> Simulation:
        s = self.schedule
        expected = s.reliable + s.transient + sum(e.count for e in s.plan if isinstance(e, PlannedJoin))
        self.expected = expected
        self.start_controller()
        if self.job.holds_every is not None:
            self.judge.look()
        for _ in range(s.reliable):
            self.node_shell.start(Tier.RELIABLE)
        for _ in range(s.transient):
            self.node_shell.start(Tier.TRANSIENT)
        for event in s.plan:
            if isinstance(event, PlannedJoin):
                for _ in range(event.count):
                    self.node_shell.start(event.tier, admitted=False)
        for fault in s.faults:
            if not fault.aim:
                self.at(fault.at_s, lambda fault=fault: self.faults.strike(fault))
        reached, since_s = (1, 0), 0.0  # controllers so far, each of which may wait anew; clocks
        look_s = 0.0
        while not self.is_over:
            if self.now_s >= look_s:
                look_s = self.now_s + LOOK_S
                now = len(self.controllers), self.controllers[-1].controller.completed
                if now[0] > reached[0] or now[1] > reached[1]:
                    reached, since_s = (now[0], max(now[1], reached[1])), self.now_s
            if self.now_s > since_s + HUNG_S or not self.go_on():
                raise ModelError(f"hangs at {self.now_s:.1f} s: {self.describe()}")
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
                f" record={ctl.record.to_text()} change={ctl._control.change} cut={ctl._cuts._cut.next}"
                f" is_writing={ctl._control.is_writing}"
            )
        for n in self.nodes.values():
            lines.append(
                f"{n.name} {n.tier} dead={n.is_dead} promised={n.node.promised} tag={n.node.tag} "
                f"clock={n.node.worker.clock} versions={n.node.server.versions(n.node.promised)} "
                f"doing={n.node.worker.doing}"
            )
        return "\n".join(lines)

    def start_controller(self) -> None:
        """Another controller begins, with the newest record."""
        self.controller_shell.start()

    def tell(self, simulated: SimulatedController, event: ControllerInput) -> None:
        self.on(
            simulated,
            lambda: self.controller_shell.do(simulated, simulated.controller.handle(event, self.now_s)),
        )

    def newest_record(self) -> Record | None:
        return Record.from_text(self.store[max(self.store)]) if self.store else None

    def capacity(self, machine: str) -> float:
        """Of a third of the schedules, machines are of unlike sizes."""
        s = self.schedule
        if random.Random(f"{s.seed}/{s.mode}/sizes").random() < 2 / 3:
            return 1.0
        return random.Random(f"{s.seed}/{s.mode}/{machine}/size").choice([1.0, 2.0, 4.0, 4.5])

    def help_seen(self) -> Counter[str]:
        """Units that machines computed for others, and messages of help by kind."""
        return Counter(self.network.help_messages)

    def really_lost(self) -> bool:
        """True when no reliable machine is left: everything else is with a machine, in a checkpoint, or the start."""
        return all(self.is_lost_to_controller(node) for node in self.alive(Tier.RELIABLE))

    def is_lost_to_controller(self, node: SimulatedNode) -> bool:
        """Dead, or silent for so long (until a moment ago) that nobody waits for it any more."""
        deaf_until_s = self.broken_links.deaf_until_s(node.name)
        known = self.controllers[-1].controller._control.members.nodes.get(node.name)
        if node.is_dead or deaf_until_s >= FOR_GOOD_S or (known is not None and known.is_apart):
            return True
        if self.silent_limit_s > HUNG_S / 2:
            return False
        return self.now_s < max(node.frozen_until_s, node.cut_until_s, deaf_until_s + BACK_S) + 1.0

    def alive(self, tier: Tier) -> list[SimulatedNode]:
        return [n for n in self.nodes.values() if not n.is_dead and n.tier is tier]

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

    def steps(self, clocks: int) -> Steps:
        """The steps of the first clocks by the log."""
        logged = [*self.steps_before, *(event for event in self.events if isinstance(event, StepsLogged))]
        return steps_of(logged, (clocks * self.job.units,) * self.job.layout.partitions)

    def check_replay(self, found: dict[str, Array]) -> None:
        """The log has every step once, and one process that takes them ends with the same bits."""
        steps = self.steps(self.job.clocks)
        for taken in steps:
            assert sorted(step.position for step in taken) == list(range(self.job.clocks * self.job.units))
        replayed = Stepwise(self.toy, self.job.optimizer, self.job.parts, steps).train().tables
        for name in found:
            assert found[name].tobytes() == replayed[name].tobytes(), (
                f"table {name} has other bits by the log"
            )

    def all_told_stages(self) -> list[StagesArranged]:
        return [*self.stages_before, *(event for events in self.told_stages.values() for event in events)]

    def check_stages(self, found: dict[str, Array]) -> None:
        """The log says which stages computed what, and the result is what the thesis' formulas make of that.

        Also what the last controller has told is enough: of an earlier one nobody may have asked.
        """
        assert isinstance(self.toy, StagedToy)
        told = self.all_told_stages()
        newest = max(self.told_stages.values(), key=lambda events: events[-1].epoch)
        last = [*self.stages_before, *newest]
        assert stages_in(told, self.job.clocks) == stages_in(last, self.job.clocks), (told, last)
        wanted = async_reference(self.toy, self.job, stages_in(told, self.job.clocks))
        for name in found:
            assert found[name].tobytes() == wanted[name].tobytes(), "other bits than by the log's stages"

    def wanted(self, clocks: int) -> dict[str, Array]:
        """The tables of the sequential run after so many clocks."""
        s, mode = self.schedule, self.schedule.toy_mode
        kind = "flush" if mode == "flush" else "dense" if mode in DENSE else "bsp"
        return reference(s.algorithm, s.slices, s.parts, clocks, s.clip_norm, kind, is_scaled=s.is_scaled)

    def check_tables(self, found: Mapping[str, Array], clocks: int) -> None:
        """The tables after so many clocks have the sequential bits, in the modes that promise it."""
        if self.schedule.toy_mode in SAME_BITS:
            for name, wanted in self.wanted(clocks).items():
                assert found[name].tobytes() == wanted.tobytes(), f"table {name} has other bits"

    def check_end(self) -> None:
        found = self.result()
        if self.schedule.toy_mode in ASYNC:
            self.check_stages(found)
        else:
            self.check_result(found)
        self.check_events()

    def check_result(self, found: dict[str, Array]) -> None:
        """The bits, or at least the counts, of the sequential run."""
        s = self.schedule
        mode = s.toy_mode
        wanted = self.wanted(s.clocks)
        if mode != "flush":
            np.testing.assert_array_equal(
                found["count"], wanted["count"], err_msg="a unit is missing or counted twice"
            )
        self.check_tables(found, s.clocks)
        if mode in (*SAME_BITS, "sum", "allreduce") and mode != "flush":
            np.testing.assert_allclose(found["dense"], wanted["dense"], rtol=2e-2, atol=2e-3)
        if mode in ELASTIC:
            self.check_replay(found)

    def check_events(self) -> None:
        s = self.schedule
        changes = [event for event in self.events if isinstance(event, MembershipChanged)]
        if s.gentle:
            assert not any(change.rolled_back or change.redone for change in changes), changes
            # A clock that waits for its cut may begin on one machine only before a change closes the group.
            assert not self.groups.given_up or self.job.holds_every, self.groups.given_up
            given_up = sum(node.stage.given_up for node in self.nodes.values() if node.stage is not None)
            assert not given_up, f"{given_up} stages gave up what they had computed of a clock"
        check_rollbacks(self)
        check_none_passed_over(self)
        for kind in (PlanFired, PlanFinished):
            assert sum(isinstance(event, kind) for event in self.events) == len(s.plan), kind
