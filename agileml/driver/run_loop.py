"""The driver's loop: fleet changes go to the controller, the controller's events to the log and the screen."""

from __future__ import annotations

import time

from agileml.cluster.fleet import Appeared, Fleet, Watcher
from agileml.config.job import JobConfig
from agileml.core.compute.spans import Spans
from agileml.core.node.time_spent import DOING
from agileml.core.protocol.commands import Finished, HaltKind, Happened
from agileml.core.protocol.plan import Strike
from agileml.driver.actor_group import ActorGroup
from agileml.driver.best_model import BestModel
from agileml.driver.failures import halt_error
from agileml.driver.last_spans import complete
from agileml.driver.sent_bytes import SentBytes
from agileml.driver.startup import TOLD_TO_STOP, Startup
from agileml.driver.stop_signal import StopSignal
from agileml.driver.work_table import WorkTable
from agileml.errors import RunError
from agileml.events.run import (
    BytesSent,
    CheckpointFailed,
    ClockDone,
    GaveUpWaiting,
    MachineNoticed,
    MachineQuarantined,
    MachinesJoined,
    MembershipChanged,
    ProcessDied,
    RunStopped,
    StopAsked,
    WaitingForSilent,
    Warned,
    WorkersSpent,
)
from agileml.events.sums import Standing
from agileml.events.terms import Fault
from agileml.process.head import HeadState
from agileml.process.steady_clock import SteadyClock
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.progress import Progress, Snapshot
from agileml.runs.trace import Trace

POLL_S = 0.05
BYTES_S = 1.0
SPENT_S = 10.0
LAST_SPANS_S = 5.0  # for the end of a profile


class RunLoop:
    """Drives one run until its result is durable."""

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        group: ActorGroup,
        folder: RunFolder,
        progress: Progress,
        stop_signal: StopSignal,
        startup: Startup,
        best: BestModel | None = None,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._watcher = fleet if isinstance(fleet, Watcher) else None
        self._group = group
        self._folder = folder
        self._progress = progress
        # As late as the controller's process has read it: this process may be a notebook's, begun days before the
        # host's clock was set.
        self._clock = SteadyClock()
        self._wall_start_s = self._clock.wall_s() - folder.events.now_s
        self._deadlines: dict[str, float] = {}
        self._loss: float | None = None
        self._appeared = 0
        self._cut_until: dict[str, float] = {}
        self._bytes_due_s = 0.0
        self._spent_due_s = time.monotonic() + SPENT_S
        # By machine; of those that went since the last line too.
        self._spent_s: dict[str, tuple[float, ...]] = {}
        self._sent = SentBytes()
        self._standstill = ""  # what the run is waiting for, if anything
        self._stop_signal = stop_signal
        self._startup = startup
        self._best = best
        self._trace = Trace(self._wall_start_s)
        self._work = WorkTable()
        self._failures = 0

    def run(self) -> Finished:
        """Train until the result is durable; after a signal to stop that is the next cut. Raises RunError."""
        try:
            self._stop_signal.arm()
            finished = self._run()
        finally:
            self._write_trace()
        if finished.clock < self._config.clocks:
            self._folder.events.write(RunStopped(finished.clock))
        return finished

    def _write_trace(self) -> None:
        """Write trace.json, also for a run that failed."""
        if self._config.profile:
            for warning in self._trace.write(self._folder.path, read_events(self._folder.events.path)):
                self._folder.events.write(Warned(warning))
                self._progress.say(warning)

    def _complete_trace(self) -> None:
        """Take the spans that machines have recorded since their last reports."""
        if self._config.profile:
            ends = self._group.last_spans(LAST_SPANS_S)
            lacking = complete(self._trace, ends, self._arriving_spans, LAST_SPANS_S)
            if lacking is not None:
                self._folder.events.write(Warned(lacking))
                self._progress.say(lacking)

    def _arriving_spans(self) -> tuple[tuple[str, Spans], ...]:
        state = self._group.state()
        for happened in state.events:
            self._log(happened)
        return state.spans

    def _run(self) -> Finished:
        while True:
            changes = self._fleet.poll()
            for event in changes:
                self._appeared += isinstance(event, Appeared)
                self._group.happened(event)
            self._group.replace_dead()
            self._heal()
            for node_id in self._group.introduce():
                if self._watcher is not None:
                    self._watcher.started(node_id)
            self._count_failures()
            state = self._group.state()
            for happened in state.events:
                self._log(happened)
            self._judge(state)
            for machine, worked in state.worked:
                self._work.add(machine, worked.rows)
            for machine, spans in state.spans:
                self._trace.add(machine, spans)
            self._spent_s |= state.spent_s
            self._sent.add(state.bytes_sent)
            for machine in state.released:
                self._deadlines.pop(machine, None)
                self._fleet.release(self._group.node_of(machine))
            for strike in state.strikes:
                self._strike(strike)
            self._take_away()
            self._show(state)
            self._heed_stop(state)
            if state.halted is not None and state.halted.kind is not HaltKind.REPLACED:
                raise halt_error(state.halted, self._group.failures)
            if state.finished is not None:
                self._complete_trace()
                self._log_bytes()
                self._log_spent(state)
                return state.finished
            if not state.stage:
                self._startup.look(self._group.up, self._missing())
            if not changes:  # else there may be more
                time.sleep(POLL_S)

    def _missing(self) -> str:
        """The part of a sentence that says what the start waits for; empty once every process is up."""
        if missing := self._fleet.missing():
            return missing
        starting = self._group.starting
        return f"wants the processes of {', '.join(starting)} to start" if starting else ""

    def _count_failures(self) -> None:
        """Log processes that died on living Ray nodes. Raises RunError when they are too many."""
        failures = self._group.failures
        while failures.news:
            said = f"{failures.news.pop(0)}; it is started again"
            self._folder.events.write(Warned(said))
            self._progress.say(said)
        for death in failures.counted[self._failures :]:
            self._failures += 1
            died = ProcessDied(death.machine, death.cause, self._failures, failures.most)
            self._folder.events.write(died)
        if failures.is_too_many:
            raise RunError(failures.verdict())

    def _heed_stop(self, state: HeadState) -> None:
        stop = self._stop_signal.taken(self._clock.wall_s())
        if stop is None:
            return
        if not state.stage:
            raise RunError(TOLD_TO_STOP)
        if self._stop_signal.is_signalled:
            self._progress.say(
                "told to stop: the run ends with its next cut; told once more, it ends at once"
            )
        self._group.tell(stop)

    def _judge(self, state: HeadState) -> None:
        """Keep the cut that the controller holds, if it is the best so far."""
        if self._best is None:
            return
        for happened in state.events:
            self._best.on_event(happened.event)
        judged = self._best.look(state.held, state.reported, self._group.begin_read)
        if judged is not None:
            self._group.tell(judged)

    def _strike(self, strike: Strike) -> None:
        """Apply a planned fault."""
        if strike.kind is Fault.KILL_CONTROLLER:
            self._group.kill_controller()
        for machine in strike.nodes:
            if strike.kind in (Fault.KILL, Fault.KILL_RELIABLE, Fault.FREEZE):
                self._fleet.strike(strike.kind, self._group.node_of(machine), strike.seconds)
            else:
                self._group.suffer(machine, strike)
            if strike.kind is Fault.CUT:
                self._cut_until[machine] = time.monotonic() + strike.seconds

    def _heal(self) -> None:
        for machine in [m for m, until_s in self._cut_until.items() if until_s <= time.monotonic()]:
            del self._cut_until[machine]
            self._group.heal(machine)

    def _log(self, happened: Happened) -> None:
        """Act on an event of the controller, and write it to the log."""
        if self._watcher is not None:
            self._watcher.happened(happened, self._group.node_of)
        match happened.event:
            case ClockDone() as done:
                self._loss = done.loss
            case MachineNoticed(machine, warning_s):
                self._deadlines[machine] = happened.at_s + warning_s
                self._group.noticed(machine, self._deadlines[machine])
            case MachineQuarantined() as sick:
                self._progress.say(
                    f"machine {sick.machine}: {sick.problem}; its work goes to other machines "
                    f"({sick.count} of max_failures = {sick.of})"
                )
            case MachinesJoined(joined):
                for machine in joined:
                    self._group.admitted(machine)
            case WaitingForSilent(machines, _, limit_s):
                self._standstill = f"waits up to {limit_s:g} s for {', '.join(machines)} to answer"
            case CheckpointFailed(clock, reason):
                self._progress.say(f"the checkpoint of clock {clock} failed: {reason}")
            case StopAsked():
                self._standstill = "stops with the next cut"
            case MembershipChanged() | GaveUpWaiting():
                self._standstill = ""
        self._folder.events.write(happened.event, t_s=happened.at_s - self._wall_start_s)

    def _take_away(self) -> None:
        """Take away machines whose deadline has passed, whether they were released or not."""
        now_s = self._clock.wall_s()
        for machine in [machine for machine, due_s in self._deadlines.items() if due_s <= now_s]:
            del self._deadlines[machine]
            self._fleet.take_away(self._group.node_of(machine))

    def _show(self, state: HeadState) -> None:
        expected = self._fleet.expected
        note = self._standstill if state.stage else f"{min(self._appeared, expected)} of {expected} machines"
        spent_usd, decision = (None, "") if self._watcher is None else self._watcher.standing()
        snapshot = Snapshot(
            state.clock,
            self._config.clocks,
            self._loss,
            state.stage,
            state.reliable,
            state.transient,
            note or decision,
            spent_usd,
        )
        self._progress.show(snapshot)
        if time.monotonic() >= self._bytes_due_s:
            self._bytes_due_s = time.monotonic() + BYTES_S
            self._folder.events.write(Standing(**vars(snapshot)))
            self._log_bytes()
        if time.monotonic() >= self._spent_due_s:
            self._spent_due_s = time.monotonic() + SPENT_S
            self._log_spent(state)

    def _log_bytes(self) -> None:
        by_kind = self._sent.by_kind()
        self._folder.events.write(BytesSent(by_kind))
        if self._watcher is not None:
            self._watcher.sent(sum(by_kind.values()))

    def _log_spent(self, state: HeadState) -> None:
        spent = {
            machine: {doing.value: round(s, 6) for doing, s in zip(DOING, seconds, strict=True)}
            for machine, seconds in self._spent_s.items()
        }
        self._spent_s = dict(state.spent_s)  # without the machines that are gone, which are told now
        self._folder.events.write(WorkersSpent(spent))
        for done in self._work.take():
            self._folder.events.write(done)
