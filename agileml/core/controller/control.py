"""The state that the parts of the controller share: the durable record, machines, progress, outgoing commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from agileml.core.change.membership import Membership
from agileml.core.change.run import ChangeRun
from agileml.core.controller.progress_log import ProgressLog
from agileml.core.controller.step_log import StepLog
from agileml.core.cuts.rule import CutRule
from agileml.core.protocol.commands import (
    ControllerCommand,
    Finished,
    Halt,
    HaltKind,
    Happened,
    Persist,
    Send,
)
from agileml.core.protocol.inputs import StepsWritten
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Announce, Limit, Message
from agileml.core.protocol.plan import PlannedEvent, PlanRunner
from agileml.core.protocol.record import Record
from agileml.core.protocol.superstep_messages import StepsTaken
from agileml.core.protocol.view import View
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.link_rate import LinkRule
from agileml.core.stage.placement import Machines, StageRule
from agileml.core.stage.recut import RecutRule
from agileml.events.run import ControllerEvent
from agileml.events.terms import Tier


@dataclass(frozen=True)
class ControllerSettings:
    """How a controller decides.

    `expected`: machines that must have appeared before the first view. `restart_wait_s`: seconds that a new controller
    waits for members to report. `silent_limit_s`: seconds to wait for a silent machine that holds the only copy of a
    partition. `worth_finishing_s`: a leaver that computes at least this long in each clock first finishes its part of
    the open clock, if its notice leaves time. `auto_stage` None: keep the thresholds of `rule`. `recut`: when stages of
    a pipeline are cut anew.
    `max_failures`: machines on which work may fail. `ready_limit_s`: seconds after which the controller gives up a
    machine that has not loaded its items; a planned join waits as long for missing machines.
    """

    rule: StageRule = field(default_factory=StageRule)
    cuts: CutRule = field(default_factory=CutRule)
    timeout_s: float = 1.0
    retry_s: float = 0.5
    join_wait_s: float = 1.0
    restart_wait_s: float = 10.0
    silent_limit_s: float = 300.0
    worth_finishing_s: float = 0.2
    expected: int = 1
    seed: int = 0
    checkpoint_every_s: float | None = None
    auto_stage: TrialRule | None = None
    recut: RecutRule = field(default_factory=RecutRule)
    max_failures: int = 3
    ready_limit_s: float = 900.0
    links: LinkRule = field(default_factory=LinkRule)


class Control:
    """The state that the parts of one controller share. Only `record` is durable; machines report the rest again.

    Only this class writes its private fields.
    """

    def __init__(
        self,
        name: str,
        job: Job,
        settings: ControllerSettings,
        plan: Sequence[PlannedEvent],
        record: Record,
        log: ProgressLog,
    ) -> None:
        self.name = name
        self.job = job
        self.settings = settings
        self.members = Membership(settings.timeout_s)
        self.plan = PlanRunner(plan, settings.seed, record.plan_fired, settings.ready_limit_s)
        self.log = log
        self.steps = StepLog()
        self._now_s = 0.0
        self._out: list[ControllerCommand] = []
        self._record = record
        self._writing: tuple[Record, Callable[[], None]] | None = None  # and what to do once it is durable
        self._change: ChangeRun | None = None
        self._is_restarted = record.view is not None
        self._is_halted = False
        self._cut_limit: Callable[[], int] = lambda: job.clocks
        self._versions: dict[int, int] = {}  # by partition, the newest that its owner reported

    # -- queries --------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The time of the current event."""
        return self._now_s

    @property
    def record(self) -> Record:
        """The durable record."""
        return self._record

    @property
    def is_writing(self) -> bool:
        """True while a record is being written."""
        return self._writing is not None

    @property
    def change(self) -> ChangeRun | None:
        """The membership change under way."""
        return self._change

    @property
    def is_restarted(self) -> bool:
        """True in a controller that found a view, until its first change is durable."""
        return self._is_restarted

    @property
    def is_halted(self) -> bool:
        """True once this controller has stopped."""
        return self._is_halted

    @property
    def view(self) -> View | None:
        """The durable view."""
        return self.record.view

    @property
    def durable(self) -> View:
        """The same, once there is one."""
        assert self.view is not None
        return self.view

    @property
    def rule(self) -> StageRule:
        """The configured rule of stages, with the thresholds that measurements have moved since."""
        thresholds = self.record.thresholds
        return replace(self.settings.rule, thresholds=thresholds) if thresholds else self.settings.rule

    @property
    def completed(self) -> int:
        """Clocks that every partition has applied, as far as is known."""
        if self.view is None:
            return 0
        heard_of = max(self.view.base, self.record.committed.clock)  # all that a new controller knows
        return min(self._versions.get(p, heard_of) for p in range(self.job.layout.partitions))

    @property
    def reached(self) -> int:
        """The newest version that an owner reported in this epoch; 0 before the first report."""
        return max(self._versions.values(), default=0)

    def version(self, partition: int) -> int | None:
        """The version that a partition's owner last reported in this epoch."""
        return self._versions.get(partition)

    @property
    def limit(self) -> int:
        """Clocks >= the limit may not start yet."""
        return min(self.plan.limit(self.job.clocks), self._cut_limit())

    @property
    def is_quiet(self) -> bool:
        """True when no change is under way and every member works under the durable view."""
        view = self.view
        return (
            view is not None
            and self._change is None
            and self._writing is None
            and all(self.members.epoch(node) == view.epoch for node in view.members)
        )

    @property
    def has_all_reports(self) -> bool:
        """True when no report of a committed clock is missing, and in a new controller until the first report."""
        return self.log.completed is None or self.log.completed >= self.record.committed.clock

    def is_current(self, epoch: int) -> bool:
        """True for the epoch of the durable view while no change is under way."""
        return self.view is not None and self._change is None and epoch == self.view.epoch

    def tier(self, node: str) -> Tier:
        """The tier of a known machine."""
        return self.members.nodes[node].tier

    def weighted(self, machines: Machines) -> Machines:
        """Return the machines with the weights by which work is dealt.

        A weight is a measured speed if clocks are planned, replicas share a stage or stages follow speeds, and the
        machines differ; otherwise it is the machine's capacity. A stage of one machine computes with one thread, so
        its cores do not count. A new controller has measured nothing, and what its view deals stands for the speeds.
        """
        rules = self.job.pipeline
        is_straight = rules is not None and rules.replicas == 1
        by_speed = self.job.balancer is not None or (
            rules is not None and (rules.follows_speeds or not is_straight)
        )
        return self.members.weighted(
            machines,
            by_speed=by_speed,
            by_capacity=not is_straight,
            alike=self.job.alike,
            speeds=self._dealt() if self.is_restarted else None,
        )

    def _dealt(self) -> dict[str, float]:
        """The work of a clock that the durable view deals to each machine."""
        shares = [pair for stage in self.durable.pipeline for pair in stage.replicas] or self.durable.share
        work = {node: units.bit_count() * (self.unit_cost(node) or 0.0) for node, units in shares}
        return {node: each for node, each in work.items() if each > 0}

    def unit_cost(self, node: str) -> float | None:
        """The work of one of a machine's units: in a pipeline the seconds of its stage's layers, otherwise 1. None
        for a machine that is in no stage."""
        rules = self.job.pipeline
        if rules is None:
            return 1.0
        stages = self.view.pipeline if self.view is not None else ()
        return next((sum(rules.weights[s.first : s.stop]) for s in stages if node in s.machines), None)

    # -- updates --------------------------------------------------------------------------------------------

    def limit_by(self, limit: Callable[[], int]) -> None:
        """Forbid clocks >= `limit()` to start, too."""
        self._cut_limit = limit

    def begin_event(self, now_s: float) -> None:
        self._now_s = now_s

    def ask(self, command: ControllerCommand) -> None:
        """Queue a command for the shell."""
        self._out.append(command)

    def take_commands(self) -> list[ControllerCommand]:
        """The commands since the last call."""
        out, self._out = self._out, []
        return out

    def send(self, to: str, message: Message) -> None:
        """Send a message; it may be lost."""
        self.ask(Send(to, message))

    def announce_to(self, node: str) -> None:
        """Send a machine the durable view."""
        self.send(node, Announce(self.durable, self.limit))

    def send_limit(self) -> None:
        """Tell all members which clocks may start."""
        if (view := self.view) is not None:
            for node in view.members:
                self.send(node, Limit(view.epoch, self.limit))

    def note(self, event: ControllerEvent, at_s: float | None = None) -> None:
        """Report an event to the event log and the screen, dated `at_s` (None: now)."""
        self.ask(Happened(event, self.now_s if at_s is None else at_s))

    def halt(self, kind: HaltKind, reason: str, trace: str = "") -> None:
        """Stop for good."""
        self._is_halted = True
        committed = self.record.committed.clock
        is_kept = kind is HaltKind.USER_CODE and self.view is not None and committed > 0
        kept = Finished(committed, self.view.backup) if is_kept and self.view is not None else None
        self.ask(Halt(kind, reason, trace, kept))

    def steps_taken(self, owner: str, message: StepsTaken) -> None:
        """Log the steps that an owner under the durable view reports, and answer while it keeps any."""
        if (event := self.steps.add(message, self.durable.timeline)) is not None:
            self.note(event)
        if message.kept < message.first + len(message.taken):
            self.send(owner, self.steps.acknowledgement(message))

    def steps_written(self, event: StepsWritten) -> None:
        """Record which steps are in the log, unless a rollback has undone them."""
        if self.view is not None and event.timeline == self.view.timeline:
            self.steps.written(event.partition, event.steps)

    def report_versions(self, versions: Iterable[tuple[int, int]]) -> None:
        """Record the (partition, version) pairs that an owner under the durable view reports."""
        for partition, version in versions:
            self._versions[partition] = max(version, self._versions.get(partition, 0))

    def begin_change(self, change: ChangeRun) -> None:
        """Record the attempt at a membership change that begins, in place of an earlier one."""
        self._change = change

    def end_change(self) -> None:
        """End the change, whose view is durable, and forget the versions of the previous epoch."""
        self._change = None
        self._is_restarted = False
        self._versions = {}

    def persist(self, record: Record, then: Callable[[], None] = lambda: None) -> None:
        """Write the next record, and call `then` once it is durable. One write is under way at a time."""
        assert self._writing is None
        members = record.view.member_set if record.view is not None else frozenset()
        fired = self.plan.fired_by(members, self.record.plan_fired)
        record = replace(record, number=self.record.number + 1, plan_fired=fired)
        self._writing = record, then
        self.ask(Persist(record.number, record.to_text()))

    def persisted(self, number: int) -> None:
        """Adopt the record `number`, which is durable now, and call what waited for it."""
        if self._writing is not None and number == self._writing[0].number:
            (self._record, then), self._writing = self._writing, None
            then()
