"""One machine of the engine: its server, worker and backup behind one epoch fence.

`handle` takes a message, `happened` an event of the shell, `tick` the time; all return commands. The node drops every
message older than the epoch it has promised, and handles messages to itself at once, by reference.
"""

from __future__ import annotations

from collections import deque

from agileml.application import Replica
from agileml.core.node.backup import Backup, PartSaves
from agileml.core.node.help.helping import Helping
from agileml.core.node.moves import ShardMoves
from agileml.core.node.overlap.choice import Chosen, OverlapChoice
from agileml.core.node.overlap.piggyback import can_piggyback, piggybacked
from agileml.core.node.retry import RetryBackoff, Timers, subject_of
from agileml.core.node.server import MOST_REPORTS
from agileml.core.node.sources.stores import Stores
from agileml.core.node.time_spent import Doing, TimeSpent
from agileml.core.protocol.commands import (
    Begun,
    Broken,
    Computed,
    CoresSplit,
    Crossed,
    Gathered,
    Leave,
    Loaded,
    LoadSlices,
    MarkPassed,
    Met,
    NodeCommand,
    NodeEvent,
    PartSaved,
    Reduced,
    Send,
)
from agileml.core.protocol.exchange import NodeIo
from agileml.core.protocol.help_messages import HelpMessage, HelpOver, HelpParams, HelpPull
from agileml.core.protocol.job import Job, Overlap
from agileml.core.protocol.messages import (
    CONTROLLER,
    Ack,
    Announce,
    Behind,
    Copy,
    Crossing,
    CrossingAck,
    Fetch,
    Get,
    Limit,
    Load,
    Meet,
    Message,
    NameCut,
    OverlapChosen,
    Params,
    Part,
    PartAck,
    PartRefused,
    Pause,
    Prepare,
    Promise,
    Pull,
    Push,
    Release,
    ReportsReceived,
    Save,
    SplitChosen,
    Squares,
    Status,
    Unreachable,
)
from agileml.core.protocol.pool_messages import BundleDrawn, DrawBundle
from agileml.core.protocol.superstep_messages import NextSuperstep, StepsReceived, SuperstepFixed
from agileml.core.protocol.view import CutId, View

MOST_NAMED = 64  # unreachable machines in a message, members first: all machines report the dead ones


class Node:
    """The state of one machine."""

    def __init__(
        self, name: str, job: Job, timers: Timers, stores: Stores, replica: Replica | None = None
    ) -> None:
        self.name = name
        self.job = job
        self.timers = timers
        self.promised = 0
        self.tag = 0  # the durable view's epoch, as the last PREPARE said
        self.view: View | None = None
        self.loaded = 0
        self._out: list[NodeCommand] = []
        self._local: deque[Message] = deque()
        parts = job.exchange.parts(NodeIo(name, job, self._send, self._ask), stores, replica)
        self.server, self.worker, self.combiner = parts.server, parts.worker, parts.combiner
        self.spent = TimeSpent()
        direct = NodeIo(name, job, self._send, self._out.append)  # past those who help
        self.helping: Helping | None = None
        if job.helping is not None:
            self.helping = Helping(direct, self.worker, self.server, self.spent.helped, lambda: self.loaded)
        self.backup = Backup(self._send, tables=job.layout.tables)
        self.moves = ShardMoves(self.server, self.backup, self._send)
        self.part_saves = PartSaves(direct, self.backup)
        self._status_due_s = 0.0
        self._retry_due_s = 0.0
        self._backoff = RetryBackoff(timers.retry_s)
        self._reported_limit = -1
        self._cut_begun: CutId | None = None  # that was reported
        # The versions when it last said that it has paused.
        self._stopped: tuple[tuple[int, int], ...] | None = None
        self._piggybacks = can_piggyback(job)
        self._overlap = OverlapChoice() if job.overlap is Overlap.AUTO else None
        self._lost: set[str] = set()

    # -- entry points ---------------------------------------------------------------------------------------

    def handle(self, sender: str, message: Message, now_s: float) -> list[NodeCommand]:
        self._at(now_s)
        self._backoff.receiving(sender, now_s)
        self._dispatch(sender, message, now_s)
        return self._flush(now_s)

    def receiving(self, peer: str, now_s: float) -> None:
        """Note that a piece of a message arrived: this peer's other answers may be on their way."""
        self._backoff.receiving(peer, now_s)

    def lost(self, peer: str) -> None:
        """Note that a machine does not answer this one: the controller may hear from both."""
        if peer != CONTROLLER:
            self._lost.add(peer)

    def found(self, peer: str) -> None:
        """Note that a machine answers again, or is gone for good."""
        self._lost.discard(peer)

    def happened(self, event: NodeEvent, now_s: float) -> list[NodeCommand]:
        """Handle the shell's answer to a command."""
        self._at(now_s)
        match event:
            case Begun():
                (self.helping if event.begin.is_help and self.helping else self.worker).begun(event)
            case Computed():
                self.spent.computed(event, self.worker.first_partition)
                (self.helping or self.worker).computed(event)
            case MarkPassed() if self.helping is not None:
                self.helping.passed(event)
            case Loaded():
                self.loaded = event.slices
                if self.helping is not None:
                    self.helping.loaded(event.too_large)
                self._status_due_s = now_s
            case CoresSplit():
                chosen = event.clock, event.workers, event.threads, event.reason
                self._send(CONTROLLER, SplitChosen(self.promised, *chosen))
            case PartSaved():
                self.part_saves.saved(event.outcome)
            case Crossed():
                self.combiner.crossed(event)
            case Met():
                self.combiner.met(event)
            case Reduced():
                self.combiner.reduced(event, now_s)
            case Gathered():
                self.combiner.gathered(event, now_s)
            case Broken():
                self.combiner.broken(event)
        return self._flush(now_s)

    def tick(self, now_s: float) -> list[NodeCommand]:
        """Send the heartbeat and repeat unanswered messages when they are due."""
        self._at(now_s)
        if self.helping is not None and not self.is_frozen:
            self.helping.tick()
        if now_s >= self._retry_due_s:
            self._retry_due_s = now_s + self.timers.retry_s / 2
            self._repeat(now_s)
        self.server.acknowledge(now_s)
        self.server.send_copied()
        return self._flush(now_s)

    def _repeat(self, now_s: float) -> None:
        """Send again the messages whose answers are overdue."""
        fresh, self._out[:] = list(self._out), []
        self.server.resend()
        self.backup.resend()
        if not self.is_frozen:
            self.worker.resend()
            self.combiner.resend()
            if self.helping is not None:
                self.helping.resend()
        self.moves.resend()
        self._backoff.begin(now_s)
        repeated = [c for c in self._out if not isinstance(c, Send) or self._is_due(c)]
        self._backoff.end()
        self._out[:] = fresh + repeated

    def _is_due(self, command: Send) -> bool:
        name = subject_of(command.message)
        # Peer activity delays retries only for large messages, which are ordered between machines.
        peer = None if command.to == CONTROLLER or name is command.message else command.to
        return self._backoff.is_due((command.to, name), peer)

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """True between a promise and the view it was for."""
        return self.view is None or self.promised != self.view.epoch

    def _at(self, now_s: float) -> None:
        if self.helping is not None:
            self.helping.now_s = now_s
        if self.worker.batches is not None:
            self.worker.batches.now_s = now_s

    def _ask(self, command: NodeCommand) -> None:
        """Take a command of the worker for the shell."""
        (self.helping.ask if self.helping is not None else self._out.append)(command)

    def _send(self, to: str, message: Message) -> None:
        if to == self.name:
            self._local.append(message)
        else:
            self._out.append(Send(to, message))

    def _flush(self, now_s: float) -> list[NodeCommand]:
        while self._local:
            self._dispatch(self.name, self._local.popleft(), now_s)
        limit = self.server.limit
        if self._reported_limit < limit and self.server.at_limit(self.promised):
            # All clocks that may start are done: the controller waits for this before it moves the limit.
            self._reported_limit = limit
            self._status_due_s = now_s
        if self.server.cut_begun != self._cut_begun:  # the controller counts how long the cut takes
            self._cut_begun, self._status_due_s = self.server.cut_begun, now_s
        stopped = self.server.versions(self.promised) if self.combiner.is_paused else None
        if stopped != self._stopped:  # the controller waits for it
            self._stopped, self._status_due_s = stopped, now_s
        doing = self._doing()
        if doing is not self.spent.doing or (
            doing is Doing.COMPUTE and self.worker.clock != self.spent.clock
        ):
            self.spent.turn(doing, self.worker.clock, now_s)
        if self.view is not None:
            self._choose_overlap(self.view.epoch, now_s)
        if now_s >= self._status_due_s:
            self._status_due_s = now_s + self.timers.status_s
            reports = () if self.is_frozen else self.combiner.reports()
            self._out += [Send(CONTROLLER, message) for message in (self.status(), *reports)]
            if self._lost:
                members = self.view.member_set if self.view is not None else frozenset()
                named = sorted(self._lost, key=lambda name: (name not in members, name))
                self._out.append(Send(CONTROLLER, Unreachable(tuple(named[:MOST_NAMED]))))
        out = piggybacked(self._out) if self._piggybacks else list(self._out)
        self._out.clear()
        return out

    def _choose_overlap(self, epoch: int, now_s: float) -> None:
        """Choose whether to overlap, or in which batches, where this machine does, at each clock that it comes to."""
        chosen: Chosen | None = None
        if (choice := self._overlap) is not None and choice.clock != self.worker.clock:
            chosen = choice.reached(self.worker.clock, now_s, self.spent.waited_s(now_s))
            self.worker.overlaps = choice.overlaps
        elif (batches := self.worker.batches) is not None:
            chosen = batches.reached(self.worker.clock)
        if chosen is not None:
            self._send(CONTROLLER, OverlapChosen(epoch, chosen.clock, chosen.overlaps, chosen.reason))

    def _doing(self) -> Doing:
        """The current activity of this machine's worker."""
        if (doing := self.worker.doing) is Doing.COMPUTE or self.view is None:
            return doing
        if self.helping is not None and self.helping.is_computing:
            return Doing.COMPUTE
        return Doing.FROZEN if self.is_frozen else doing

    def status(self) -> Status:
        """The heartbeat."""
        epoch, at = self.view.epoch if self.view else 0, self.promised
        reports = self.server.versions(at), self.loaded, self.server.progress(at)
        return Status(epoch, *reports, self.combiner.is_paused)

    def _dispatch(self, sender: str, message: Message, now_s: float) -> None:
        """Hand a message on, if it is of the right epoch. Long because it has a case for each kind."""
        match message:
            # Between peers: only in the promised epoch.
            case Pull() if message.epoch == self.promised:
                self.server.pull(sender, message)
            case Push() if message.epoch == self.promised:
                self.combiner.push(sender, message, now_s)
            case Squares() if message.epoch == self.promised:
                self.server.take_squares(sender, message, now_s)
            case HelpMessage() | HelpPull() | HelpParams() | HelpOver() if self.helping is not None:
                if message.epoch == self.promised:
                    self.helping.received(sender, message, is_frozen=self.is_frozen)
            case Crossing() | CrossingAck() if message.epoch == self.promised:
                self.combiner.crossing(sender, message)
            case NextSuperstep() | SuperstepFixed() | StepsReceived() if message.epoch == self.promised:
                self.combiner.superstep(sender, message, now_s)
            case DrawBundle() | BundleDrawn() if message.epoch == self.promised:
                self.combiner.drawn(sender, message)
            case Meet() if message.epoch == self.promised:
                self.combiner.meet(message)
            case Part() if message.epoch == self.promised:
                self.backup.part(sender, message)
            case PartAck() if message.epoch == self.promised:
                self.server.part_acked(message)
            case PartRefused() if message.epoch == self.promised:
                self.server.part_refused(message)
            case Get() if message.epoch == self.promised:
                self.moves.give(sender, message, self.tag)
            case Copy() if message.epoch == self.promised:
                self.moves.came(message)
            # To the worker: only in the epoch it works in.
            case Params() if not self.is_frozen and message.epoch == self.promised:
                self.worker.params(message)
            case Behind() if not self.is_frozen and message.epoch == self.promised:
                self.worker.behind(message)
            case Ack() if not self.is_frozen and message.epoch == self.promised:
                if self.helping is None or not self.helping.ack(message):
                    self.worker.ack(message)
            # From the controller.
            case Prepare() if message.epoch >= self.promised:
                self._prepare(message)
            case Fetch() if message.epoch == self.promised:
                self.moves.fetch(message, self.tag)
            case Announce() if message.view.epoch >= self.promised:
                self._announce(message, now_s)
            case Limit() if message.epoch == self.promised and not self.is_frozen:
                self.server.raise_limit(message.limit, now_s)
            case Pause() if message.epoch == self.promised and not self.is_frozen:
                self.combiner.pause()
            case NameCut() if message.epoch == self.promised:
                self.backup.commit(message.committed)
                self.server.name_cut(message)
            case Save():
                self.part_saves.save(message, self.view)
            case Load() if message.slices & ~self.loaded:
                self._out.append(LoadSlices(message.slices | self.loaded))
            case ReportsReceived():
                self._drop_reports(message.clock, now_s)
            case Release() if message.epoch >= self.promised:
                self._out.append(Leave())
            case _:
                pass  # of another epoch: fenced off, or nothing to do

    def _drop_reports(self, clock: int, now_s: float) -> None:
        """Drop the reports of clocks that the controller has. If there are as many again, they follow at once:
        heartbeats may be seconds apart."""
        before = self.server.progress(self.promised)[:1]
        self.server.drop_reports(clock)
        left = self.server.progress(self.promised)
        if len(left) == MOST_REPORTS and left[:1] != before:
            self._status_due_s = now_s

    def _prepare(self, message: Prepare) -> None:
        if message.epoch > self.promised:
            self.promised, self.tag = message.epoch, message.tag
            self.moves.clear()
            self.combiner.prepare()
            self.server.prepare(message)
            self.backup.prepare(message.committed, message.tag)
        held = self.server.frozen(self.tag), self.server.own_cuts(self.tag), self.backup.held()
        self._send(CONTROLLER, Promise(self.promised, *held, self.server.plans(self.tag)))

    def _announce(self, message: Announce, now_s: float) -> None:
        view = message.view
        if self.view is not None and self.view.epoch == view.epoch:
            self.server.raise_limit(message.limit, now_s)
            return
        self.promised = self.tag = view.epoch
        self.view = view
        self.spent.begin_view(view.epoch, view.base, now_s)
        if self._overlap is not None:
            self._overlap.begin_view(frozenset(view.members))
        self._backoff.keep({*view.members, CONTROLLER})
        self.moves.clear()
        self._reported_limit = -1
        self.server.limit = message.limit
        self.combiner.prepare()
        self.backup.commit(view.committed)
        self.server.adopt(view, now_s)
        self.backup.adopt(view, self.name)
        if self.helping is not None:
            self.helping.adopt(view)
        self.worker.adopt(view)
        self.combiner.adopt(view)
        self._status_due_s = now_s
