"""What the tests of the core share: a small job, and a script that plays the machines around one controller.

The machines of the script are told what real ones are told and answer with the same messages, at once and without
loss; what happens between them (clocks, cuts) the test says itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agileml.core.controller.controller import Controller, ControllerSettings
from agileml.core.cuts.checkpoint import Checkpoint, Unreadable
from agileml.core.protocol.commands import (
    ControllerCommand,
    Finished,
    Halt,
    Happened,
    Persist,
    Released,
    Send,
)
from agileml.core.protocol.inputs import Admit, ControllerInput, NodeUp, Persisted, Received, Superseded, Tick
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import (
    Announce,
    ClockReport,
    Fetch,
    Installed,
    Load,
    Message,
    NameCut,
    Prepare,
    Promise,
    Role,
    ShardState,
    SourceKind,
    Status,
    Stored,
)
from agileml.core.protocol.plan import PlannedEvent
from agileml.core.protocol.record import Record
from agileml.core.protocol.view import CutId, View
from agileml.core.stage.placement import StageRule
from agileml.events.run import MembershipChanged
from agileml.events.schema import E
from agileml.events.terms import Tier
from straggler.coverage import Units
from tests.model.invariants import check_view
from tests.model.toy import toy_job


def make_job(
    mode: str = "bsp",
    *,
    slices: int = 8,
    parts: int = 1,
    partitions: int = 2,
    clocks: int = 20,
    algorithm: str = "momentum",
    is_resident: bool = False,
) -> Job:
    return toy_job(mode, algorithm, slices, parts, partitions, clocks, is_resident=is_resident)[1]


@dataclass
class Machine:
    """A machine as the script plays it."""

    name: str
    tier: Tier
    is_frozen: bool = False  # hears, but says nothing
    promised: int = 0
    view: View | None = None
    loaded: Units = 0
    pending: dict[int, tuple[tuple[int, tuple[Units, ...]], ...]] = field(default_factory=dict)
    shards: dict[int, dict[int, int]] = field(default_factory=dict)  # partition -> tag -> version
    cuts: dict[int, CutId] = field(default_factory=dict)  # partition -> the committed cut that it backs up
    own_cuts: dict[int, CutId] = field(default_factory=dict)  # ... that it keeps as an owner
    told: list[Message] = field(default_factory=list)
    staged: list[Fetch] = field(default_factory=list)

    def hear(self, message: Message) -> Iterator[Message]:
        """What the machine answers."""
        self.told.append(message)
        match message:
            case Load():
                self.loaded |= message.slices
                yield self.status()
            case Prepare() if message.epoch >= self.promised:
                self.promised = message.epoch
                self.staged.clear()
                for copies in self.shards.values():
                    for tag in [tag for tag in copies if tag != message.tag]:
                        del copies[tag]
                yield self.promise(message)
            case Fetch() if message.epoch == self.promised:
                self.staged.append(message)
                yield Installed(message.epoch, message.partition, message.role)
            case Announce() if message.view.epoch >= self.promised:
                self.adopt(message.view)
                yield self.status()

    def promise(self, message: Prepare) -> Promise:
        frozen = {p: copies[message.tag] for p, copies in self.shards.items() if message.tag in copies}
        has = lambda cuts: tuple(  # noqa: E731
            (p, ShardState(name.clock, ())) for p, name in cuts.items() if name == message.committed
        )
        return Promise(
            message.epoch,
            tuple((p, ShardState(version, self.pending.get(p, ()))) for p, version in frozen.items()),
            has({p: cut for p, cut in self.own_cuts.items() if p in frozen}),
            has(self.cuts),
        )

    def adopt(self, view: View) -> None:
        if self.view is not None and self.view.epoch == view.epoch:
            return
        for fetch in self.staged:
            if fetch.role is Role.BACKUP:
                self.cuts[fetch.partition] = view.committed
            elif fetch.source.kind is not SourceKind.SHARD:
                self.shards.setdefault(fetch.partition, {})[view.epoch] = view.committed.clock
                self.own_cuts[fetch.partition] = view.committed
        for p in view.partitions_of(self.name):
            copies = self.shards.setdefault(p, {})
            copies[view.epoch] = max([view.base, *copies.values()])
        self.shards = {p: {view.epoch: self.shards[p][view.epoch]} for p in view.partitions_of(self.name)}
        self.view, self.promised, self.pending = view, view.epoch, {}
        self.staged.clear()

    def status(self, progress: tuple[ClockReport, ...] = ()) -> Status:
        epoch = self.view.epoch if self.view else 0
        versions = tuple((p, copies[epoch]) for p, copies in self.shards.items() if epoch in copies)
        return Status(epoch, versions, self.loaded, progress)


class Script:
    """One controller, the machines around it, and a store; every view and record is checked as it is written."""

    def __init__(self, job: Job, plan: Sequence[PlannedEvent] = (), **settings: Any) -> None:
        self.job = job
        self.plan = plan
        settings.setdefault("rule", StageRule(thresholds=(1.0, 15.0), active_fraction=0.5))
        self.settings = ControllerSettings(**{"timeout_s": 1.0, "join_wait_s": 1.0, **settings})
        self.now_s = 100.0
        self.store: dict[int, str] = {}
        self.is_store_open = True
        self.machines: dict[str, Machine] = {}
        self.notes: list[Happened] = []
        self.released: list[str] = []
        self.halts: list[Halt] = []
        self.finished: Finished | None = None
        self.unanswered: list[Persist] = []
        self._count = 0
        self.saved: Checkpoint | Unreadable | None = None  # what a new controller finds
        self.controller = self._new_controller()

    # -- playing --------------------------------------------------------------------------------------------

    def _new_controller(self) -> Controller:
        record = Record.from_text(self.store[max(self.store)]) if self.store else None
        self._count += 1
        return Controller(f"c{self._count}", self.job, self.settings, self.plan, record, self.saved)

    def restart(self, waiting: Collection[str] = ()) -> None:
        """Another controller takes over; the first is dead. `waiting`: machines that have not joined yet."""
        self.controller = self._new_controller()
        for machine in self.machines.values():
            if machine.name not in self.released:
                self.tell(NodeUp(machine.name, machine.tier, admitted=machine.name not in waiting))

    def tell(self, event: ControllerInput) -> list[ControllerCommand]:
        """An event, and everything that follows from it without time passing."""
        commands = self.controller.handle(event, self.now_s)
        for command in commands:
            self.do(command)
        return commands

    def do(self, command: ControllerCommand) -> None:
        """What the shell would do for a command, and what the machines answer."""
        match command:
            case Persist():
                self.unanswered.append(command)
                if self.is_store_open:
                    self.write()
            case Send():
                machine = self.machines[command.to]
                answers = list(machine.hear(command.message))
                if not machine.is_frozen:
                    for answer in answers:
                        self.tell(Received(machine.name, answer))
            case Happened():
                self.notes.append(command)
            case Released():
                self.released.append(command.node)
            case Halt():
                self.halts.append(command)
            case Finished():
                self.finished = command

    def write(self) -> None:
        """The store answers what was asked of it."""
        waiting, self.unanswered = self.unanswered, []
        for command in waiting:
            if command.number in self.store:
                self.tell(Superseded(command.number))
                continue
            self._check(command)
            self.store[command.number] = command.text
            self.tell(Persisted(command.number))

    def _check(self, command: Persist) -> None:
        record = Record.from_text(command.text)
        assert record.number == command.number
        if self.store:
            before = Record.from_text(self.store[max(self.store)])
            assert record.number == before.number + 1
            assert record.claimed >= before.claimed
            assert record.committed >= before.committed
            if record.view != before.view:
                assert record.view is not None
                check_view(self.job, record.view)
                assert record.view.epoch == record.claimed
                assert before.view is None or record.view.epoch > before.view.epoch

    def up(self, *names: str, admitted: bool = True) -> None:
        """Machines come: r... are reliable, t... are transient."""
        for name in names:
            tier = Tier.RELIABLE if name[0] == "r" else Tier.TRANSIENT
            self.machines[name] = Machine(name, tier)
            self.tell(NodeUp(name, tier, admitted))
        for name in names:
            self.tell(Received(name, self.machines[name].status()))

    def wait(self, seconds: float, step_s: float = 0.2) -> None:
        """Time passes: machines send their status, the controller gets its ticks."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s = min(end_s, self.now_s + step_s)
            self.heartbeats()
            self.tell(Tick())

    def heartbeats(self) -> None:
        for machine in list(self.machines.values()):
            if not machine.is_frozen:
                self.tell(Received(machine.name, machine.status()))

    def admit(self, *names: str) -> None:
        for name in names:
            self.tell(Admit(name))

    def reach(self, clock: int, clock_s: float = 0.01) -> None:
        """Every partition applies the clocks < `clock`, and partition 0 reports them."""
        view = self.view
        for p, name in enumerate(view.owner):
            owner = self.machines[name]
            before = owner.shards[p][view.epoch]
            owner.shards[p][view.epoch] = clock
            progress = tuple(ClockReport(c, 1.0, 1, self.now_s + c * clock_s) for c in range(before, clock))
            self.tell(Received(name, owner.status(progress if p == 0 else ())))

    def commit_cut(self) -> int:
        """The cut that is named is taken and stored; returns its clock."""
        view = self.view
        named = [m for m in self.machines[view.owner[0]].told if isinstance(m, NameCut)][-1]
        assert named.next is not None, named
        self.reach(named.next)
        name = CutId(named.next, view.epoch)
        for p in range(self.job.layout.partitions):
            self.machines[view.owner[p]].own_cuts[p] = name
            self.machines[view.backup[p]].cuts[p] = name
            self.tell(Received(view.backup[p], Stored(view.epoch, p, named.next)))
        return named.next

    def freeze(self, *names: str) -> None:
        for name in names:
            self.machines[name].is_frozen = True

    def wake(self, *names: str) -> None:
        for name in names:
            self.machines[name].is_frozen = False
            self.tell(Received(name, self.machines[name].status()))

    # -- what is asserted on --------------------------------------------------------------------------------

    @property
    def record(self) -> Record:
        return self.controller.record

    @property
    def view(self) -> View:
        assert self.controller.view is not None
        return self.controller.view

    @property
    def workers(self) -> set[str]:
        return set(self.view.workers())

    @property
    def views(self) -> list[MembershipChanged]:
        return self.events_of(MembershipChanged)

    @property
    def reason(self) -> str:
        """Why the newest view is as it is."""
        return f"{self.views[-1].trigger}: {self.views[-1].reason}"

    def told(self, name: str, kind: type[Message]) -> list[Any]:
        return [message for message in self.machines[name].told if isinstance(message, kind)]

    def events_of(self, kind: type[E]) -> list[E]:
        """What the log was told, of one class."""
        return [each.event for each in self.notes if isinstance(each.event, kind)]

    def check_end(self) -> None:
        """What must hold at the end of every script."""
        assert all(isinstance(text, str) for text in self.store.values())
        numbers = sorted(self.store)
        assert numbers == list(range(1, len(numbers) + 1))
        if self.controller.view is None or self.halts:
            return
        check_view(self.job, self.view)
        written = {record.view.epoch: record.view for record in self._records() if record.view is not None}
        for machine in self.machines.values():
            if machine.view is not None:  # nobody was told a view that is not durable
                assert written.get(machine.view.epoch) == machine.view

    def _records(self) -> list[Record]:
        return [Record.from_text(text) for text in self.store.values()]


@pytest.fixture
def scripts() -> Iterator[Any]:
    """Make scripts; each is checked at the end."""
    made: list[Script] = []

    def make(job: Job | None = None, plan: Sequence[PlannedEvent] = (), **settings: Any) -> Script:
        made.append(Script(job or make_job(), plan, **settings))
        return made[-1]

    yield make
    for script in made:
        script.check_end()
