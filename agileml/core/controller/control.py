"""What the parts of the controller share: its record, the machines, what is known of progress, and what goes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agileml.core.change.membership import Membership
from agileml.core.change.run import ChangeRun
from agileml.core.controller.progress_log import ProgressLog
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
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Announce, Message
from agileml.core.protocol.plan import PlannedEvent, PlanRunner
from agileml.core.protocol.record import Record
from agileml.core.protocol.view import View
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.link_rate import LinkRule
from agileml.core.stage.placement import StageRule
from agileml.events.run import ControllerEvent
from agileml.events.terms import Tier


@dataclass(frozen=True)
class ControllerSettings:
    """`expected`: machines that must be there before the first view.

    `restart_wait_s`: how long a controller that took over waits for members that it has not heard.
    `silent_limit_s`: how long a silent machine is waited for that alone has what the run needs.
    `worth_finishing_s`: a leaver that computes so long in a clock ends its part of the open one, if its notice allows.
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
    auto_stage: TrialRule | None = None  # None: the rule's thresholds stay as they are
    links: LinkRule = field(default_factory=LinkRule)


class Control:
    """The state of one controller. `record` is durable; everything else can be asked again.

    `out` collects what the event at hand leads to. `running` is the change under way, `writing` the record that is on
    its way to the store.
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
        self.record = record
        self.members = Membership(settings.timeout_s)
        self.plan = PlanRunner(plan, settings.seed, record.plan_fired)
        self.log = log
        self.now_s = 0.0
        self.out: list[ControllerCommand] = []
        self.writing: Record | None = None
        self.running: ChangeRun | None = None
        self.is_restarted = record.view is not None
        self.is_halted = False
        self.versions: dict[int, int] = {}  # by partition, as its owner said last

    @property
    def view(self) -> View | None:
        """The durable view."""
        return self.record.view

    @property
    def rule(self) -> StageRule:
        """When to be in which stage: as set, or as what was measured has moved it since."""
        thresholds = self.record.thresholds
        return replace(self.settings.rule, thresholds=thresholds) if thresholds else self.settings.rule

    @property
    def completed(self) -> int:
        """Clocks that every partition has applied, as far as is known."""
        if self.view is None:
            return 0
        return min(self.versions.get(p, self.view.base) for p in range(self.job.layout.partitions))

    @property
    def limit(self) -> int:
        """Clocks >= the limit may not start yet."""
        return self.plan.limit(self.job.clocks)

    @property
    def is_quiet(self) -> bool:
        """True when no change is under way and every member works under the durable view."""
        view = self.view
        return (
            view is not None
            and self.running is None
            and self.writing is None
            and all(self.members.epoch(node) == view.epoch for node in view.members)
        )

    @property
    def has_heard_all(self) -> bool:
        """True when the losses of all committed clocks are known; a new controller cannot miss earlier ones."""
        return self.log.heard is None or self.log.heard >= self.record.committed.clock

    def is_current(self, epoch: int) -> bool:
        """True for the epoch of the durable view while no change is under way."""
        return self.view is not None and self.running is None and epoch == self.view.epoch

    def tier(self, node: str) -> Tier:
        """The tier of a known machine."""
        return self.members.nodes[node].tier

    def send(self, to: str, message: Message) -> None:
        """Send a message; it may be lost."""
        self.out.append(Send(to, message))

    def announce_to(self, node: str) -> None:
        """Tell a machine the durable view."""
        assert self.view is not None
        self.send(node, Announce(self.view, self.limit))

    def note(self, event: ControllerEvent, at_s: float | None = None) -> None:
        """Tell the event log and the screen of something that happened at `at_s`, or happens now."""
        self.out.append(Happened(event, self.now_s if at_s is None else at_s))

    def halt(self, kind: HaltKind, reason: str, trace: str = "") -> None:
        """Stop for good."""
        self.is_halted = True
        committed = self.record.committed.clock
        is_kept = kind is HaltKind.USER_CODE and self.view is not None and committed > 0
        kept = Finished(committed, self.view.backup) if is_kept and self.view is not None else None
        self.out.append(Halt(kind, reason, trace, kept))

    def persist(self, record: Record) -> None:
        """Write the next record. One write is under way at a time."""
        assert self.writing is None
        self.writing = replace(record, number=self.record.number + 1, plan_fired=self.plan.fired)
        self.out.append(Persist(self.writing.number, self.writing.to_text()))
