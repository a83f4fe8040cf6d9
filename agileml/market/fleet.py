"""A fleet whose machines BidBrain buys, in a thread of the driver; its journal lies in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agileml.cluster.fleet import FleetEvent, Stopping
from agileml.core.protocol.commands import Happened
from agileml.errors import RESTARTED_CODES, RunError
from agileml.events.market import MarketLeftOpen
from agileml.events.terms import Fault
from agileml.market.bill import Bill, bill_of
from agileml.market.log import last_measured
from agileml.market.service import MarketBackend, NotGivenBackError, OpenMarket
from agileml.market.setup import MarketSetup
from agileml.market.trainer import MarketTime, RunTrainer
from agileml.runs.folder import MARKET, RunFolder
from agileml.runs.progress import Screen
from agileml.runs.supervision import read_supervision
from bidbrain.live.estimators import Estimator
from bidbrain.live.journal import Closing, Journal, JournalError
from bidbrain.live.state import JobState


@dataclass(frozen=True)
class Settlement:
    """How the job ended, and its bill."""

    closing: Closing
    bill: Bill


class MarketFleet:
    """Machines come and go as BidBrain decides. `attach` it to the run's folder before the first `poll`."""

    def __init__(
        self, setup: MarketSetup, backend: MarketBackend, *, clocks: int, reliable: int, completed: int = 0
    ) -> None:
        """completed: clocks that are done before: by an earlier process of the run, or that it resumes from."""
        self._setup, self._backend, self._clocks, self._completed = setup, backend, clocks, completed
        self.expected = max(backend.warm, reliable)
        self._stack = ExitStack()
        self._started: set[str] = set()
        self._folder: RunFolder | None = None
        self._journal: Journal | None = None
        self._market: OpenMarket | None = None
        setting = setup.plan.setting
        self._estimator = Estimator(setup.vcpus, setting.job.vcpus, setting.job.phi)
        self.trainer = RunTrainer(
            backend.nodes,
            MarketTime(self._now_s, setup.speed, backend.leave_s),
            self._estimator,
            clocks=clocks,
            work_vcpu_s=setting.job.work_vcpu_s,
            speeds=setup.pacing.speeds,
            completed=completed,
        )
        self._finished = False
        self._is_supervised = False
        self.settlement: Settlement | None = None
        self.left = ""  # why instances may be left, or why there is no bill; empty: neither

    def _now_s(self) -> int:
        return self._setup.start_s if self._market is None else self._market.clock.now_s()

    # -- a fleet ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._stack.enter_context(self._backend)
        return self

    def attach(self, folder: RunFolder) -> None:
        """Keep journal and events in `folder`, and go on with what an earlier process of the run has measured.

        Raises RunError if another service has the journal.
        """
        try:
            self._journal = self._stack.enter_context(Journal(folder.path / MARKET))
        except JournalError as error:
            raise RunError(str(error)) from None
        self._folder = folder
        if self._was_open:
            self._estimator.before = last_measured(folder.events.path)
        self._is_supervised = read_supervision(folder.path) is not None

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """See `fleet.Fleet.runtime_env`."""
        return self._backend.runtime_env(variables)

    def poll(self) -> list[FleetEvent]:
        """Events since the last call. The market opens once every node started ahead has its process."""
        self._backend.check()
        if self._market is not None:
            self._market.raise_problem()
        elif len(self._started) >= self._backend.warm:
            self._market = self._open()
        events = self.trainer.events()
        if self._market is not None and not self.trainer.has_begun:
            state = self._market.state
            if state.closed is not None or any(isinstance(event, Stopping) for event in events):
                raise RunError(self._without_result(state))
        return events

    @property
    def _was_open(self) -> bool:
        """Whether an earlier process of the run has opened the market."""
        return self._journal is not None and bool(self._journal.records)

    def _open(self) -> OpenMarket:
        assert self._journal is not None
        assert self._folder is not None
        market = OpenMarket(self._setup, self._backend, self.trainer, self._journal, self._folder)
        market.start()
        return market

    def _without_result(self, state: JobState) -> str:
        """The sentence of a job that the market ends before a clock is done."""
        ends = state.closing or state.draining
        why = "" if ends is None else f" ({ends.reason})"
        if not self._completed:
            return f"market: the job ends before its first clock{why}, there is no result"
        return (
            f"market: the job ends before another clock{why}; it has no result, but its checkpoint of clock "
            f"{self._completed} stays, and --resume goes on from it"
        )

    def check_head(self) -> None:
        """See `fleet.Fleet.check_head`."""
        self._backend.check()

    def watch_head(self) -> None:
        """See `fleet.Fleet.watch_head`."""
        self._backend.check()

    def missing(self) -> str:
        """See `fleet.Fleet.missing`."""
        if self._market is None and (left := self._backend.warm - len(self._started)) > 0:
            return f"wants {left} more nodes of this computer before the market opens"
        if self.trainer.has_begun or self._market is None:
            return ""
        if troubles := self._market.state.troubles:
            return f"wants a reliable machine of the market: {'; '.join(troubles)}"
        decision = self._market.log.decision
        return f"wants a reliable machine of the market; its last decision: {decision or 'none yet'}"

    def release(self, node_id: str) -> None:
        """Let the market have a node back that the run has released."""
        self.trainer.released(node_id)

    def take_away(self, node_id: str) -> None:
        """Nothing to do: the market takes its nodes itself."""

    def strike(self, kind: Fault, node_id: str, seconds: float) -> None:
        """Raise RunError: beside a market a plan may not kill, freeze or cut off machines."""
        raise RunError(f"plan: found {kind}, expected no faults beside a market")

    # -- a watcher ----------------------------------------------------------------------------------------------

    def started(self, node_id: str) -> None:
        """Record that the run's process on this node has started."""
        self._started.add(node_id)

    def happened(self, happened: Happened, node_of: Callable[[str], str]) -> None:
        """Pass an event of the controller on to BidBrain's service."""
        self.trainer.happened(happened, node_of)

    def sent(self, total_bytes: int) -> None:
        """Pass on what the machines have sent each other."""
        self.trainer.sent(total_bytes)

    def standing(self) -> tuple[float, str]:
        """Dollars spent so far and the last decision's reason, for the screen."""
        return (0.0, "") if self._market is None else (self._market.log.spent_usd, self._market.log.decision)

    # -- for the session ----------------------------------------------------------------------------------------

    @property
    def code(self) -> int:
        """The job's exit code: 0 finished or stopped, 3 budget reached, 4 market closed, 1 machines left or no bill."""
        if self.left:
            return 1
        return 0 if self.settlement is None else self.settlement.closing.code

    def summary(self) -> dict[str, Any] | None:
        """The market's part of summary.json; None where there is no last bill."""
        if self.settlement is None:
            return None
        closing, job = self.settlement.closing, self._setup.setting.job
        return {
            "policy": self._setup.plan.scheme,
            "finished": closing.finished,
            "ending": closing.reason,
            "job_vcpus": job.vcpus,
            "job_hours": job.hours,
            **self.settlement.bill.summary(),
        }

    # -- the end ------------------------------------------------------------------------------------------------

    def ended(self, clock: int) -> None:
        """Record that the session holds the result of so many clocks."""
        self._finished = clock >= self._clocks
        if self._finished:
            self.trainer.finished()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give every instance back, however the run ended, unless it begins again; then end the cluster."""
        try:
            self.trainer.part()
            if self._begins_again(error):
                if self._market is not None:
                    self._market.suspend()
                return
            if self._market is None and self._was_open:
                self._market = self._open()  # an earlier process of the run may have left instances
            if self._market is not None:
                reason = "the run was told to stop" if error is None else f"the run ended: {_sentence(error)}"
                closing = self._market.close(None if self._finished else reason)
                ledger = self._market.state.ledger()
                self.settlement = Settlement(closing, bill_of(self._setup, ledger, self._market.folder))
        except NotGivenBackError as left:
            self._say_left(str(left))  # the result is kept all the same
        except OSError as problem:  # of the bill: all instances are given back
            self._say_left(f"market: its bill could not be written: {problem}")
        finally:
            self._stack.close()

    def _begins_again(self, error: BaseException | None) -> bool:
        """Whether the run's supervisor starts it again after this error, which a checkpoint cures."""
        return self._is_supervised and isinstance(error, RunError) and error.exit_code in RESTARTED_CODES

    def _say_left(self, sentence: str) -> None:
        assert self._folder is not None
        self.left = sentence
        self._folder.events.write(MarketLeftOpen(sentence))
        print(f"proteus: {sentence}", file=Screen())


def _sentence(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
