"""Runs BidBrain's service in a thread, from the opening of the market to the last bill."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from agileml.errors import RunError
from agileml.events.market import MarketOpened
from agileml.events.run import Warned
from agileml.market.log import MarketLog
from agileml.market.nodes import InstanceNodes
from agileml.market.outage import Outage
from agileml.market.setup import MarketSetup
from agileml.market.trainer import RunTrainer
from agileml.runs.folder import MARKET, RunFolder
from bidbrain.live.cloud import Cloud, CloudError, CredentialsError
from bidbrain.live.job import Timekeeper
from bidbrain.live.journal import Closing, Journal
from bidbrain.live.keeping import RiskKeeper
from bidbrain.live.service import Service
from bidbrain.live.state import JobState
from bidbrain.money import usd
from bidbrain.policy.answer import PolicyError

CLOSE_S = 120.0  # for giving everything back at the end
AGAIN_S = 30.0  # until the service is continued after the market failed
MOST_FAILURES, WITHIN_S = 10, 3600.0


class NotGivenBackError(RuntimeError):
    """Instances may be left that cost money, or there is no bill; the message is one sentence that names them."""


class MarketBackend(Protocol):
    """A market, and the Ray cluster that its instances join; this process is connected to it. A context manager."""

    @property
    def warm(self) -> int:
        """Nodes whose processes start before the market opens; 0 where a node comes with its instance."""

    @property
    def leave_s(self) -> float:
        """Seconds that an instance which we give back may take to leave."""

    @property
    def nodes(self) -> InstanceNodes: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """See `fleet.Fleet.runtime_env`."""

    def check(self) -> None:
        """Raise HeadLostError if Ray's head is gone; calls to it would wait for a minute."""

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        """The market and its clock, which stops waiting once `stopping` is set.

        folder: of the market in that of the run; a market that was opened there before goes on. Raises RunError.
        """

    def risk_keeper(self) -> RiskKeeper | None:
        """Where risk outlives the job; None on a market whose time is not real."""


class OpenMarket:
    """Runs the service, and continues it from its journal after the market failed. Training goes on meanwhile."""

    def __init__(
        self,
        setup: MarketSetup,
        backend: MarketBackend,
        trainer: RunTrainer,
        journal: Journal,
        folder: RunFolder,
    ) -> None:
        self.folder = folder.path / MARKET
        self.log = MarketLog(folder.events)
        self._events = folder.events
        self._stopping = threading.Event()
        self._backend = backend
        self._cloud, self.clock = backend.open(self._stopping, self.folder)
        self.log.recall(journal.records)
        self._journal = self.log.of(journal)
        self._plan, self._trainer = setup.plan, trainer
        self._failed_s: deque[float] = deque()
        self._outage, self._failure = Outage(), ""
        self._problem: tuple[str, str] | None = None
        self._reason: str | None = None
        self._is_suspended = False
        self._service = self._new_service()
        if not journal.records:
            self._say_opened(setup)
        self._thread = threading.Thread(target=self._serve, name="market", daemon=True)

    def _say_opened(self, setup: MarketSetup) -> None:
        hourly_usd = usd(float(setup.setting.baseline_micro_usd())) / setup.setting.job.hours
        self._events.write(
            MarketOpened(setup.start_s, setup.speed, setup.plan.scheme, setup.vcpus, hourly_usd)
        )
        for warning in setup.warnings:
            self._events.write(Warned(f"market: {warning}"))

    def _new_service(self) -> Service:
        ticking = _Ticking(self.clock, self._tell)
        keeper = self._backend.risk_keeper()
        service = Service(self._plan, self._cloud, self._trainer, ticking, self._journal, keeper)
        self.log.state = service.state
        if self._reason is not None:
            service.stop(self._reason)
        return service

    @property
    def state(self) -> JobState:
        """The state of the job, folded from its journal."""
        return self._service.state

    def start(self) -> None:
        """Begin to buy."""
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_suspended:
            try:
                self._service.run()
                return
            except _SuspendedError:
                return
            except CloudError as error:
                if not self._may_wait_for(error) and self._has_failed_too_often():
                    self._problem = f"market: {error}", ""
                    return
                self._failure = str(error)
                self._warn(self._outage.failed(time.monotonic(), self._failure, AGAIN_S))
                pause(self._stopping, AGAIN_S)
                self._service = self._new_service()
            except PolicyError as error:
                self._problem = f"market: {error}", ""
                return
            except OSError as error:  # a purchase must be in the journal before it is made
                self._problem = f"market: {self.folder} could not be written: {error.strerror or error}", ""
                return
            except Exception as error:  # a bug of ours: the run must end with it
                self._problem = f"market: {type(error).__name__}: {error}", traceback.format_exc()
                return

    def _warn(self, sentence: str | None) -> None:
        if sentence is not None:
            self._events.write(Warned(f"market: {sentence}"))

    def _may_wait_for(self, error: CloudError) -> bool:
        """True while credentials have expired: the user can renew them, and the instances train on meanwhile; at the
        end `close` waits only so long. Without instances nothing would come of waiting."""
        return isinstance(error, CredentialsError) and any(self.state.open_instances())

    def _has_failed_too_often(self) -> bool:
        """Count a failure of the market; True if there were too many of them."""
        self._failed_s.append(time.monotonic())
        while self._failed_s[0] < time.monotonic() - WITHIN_S:
            self._failed_s.popleft()
        return len(self._failed_s) > MOST_FAILURES

    def _tell(self) -> None:
        if self._is_suspended:
            raise _SuspendedError
        self._warn(self._outage.worked(time.monotonic()))
        now_s = self.clock.now_s()
        self.log.stand(now_s, self.state, self._cloud, self._trainer.report(now_s).measured)

    def raise_problem(self) -> None:
        """Raise RunError if the service cannot go on."""
        if self._problem is not None:
            raise RunError(*self._problem)

    def suspend(self) -> None:
        """Stop, and leave everything as it is: the run begins again, and its next process goes on from the journal."""
        self._is_suspended = True
        self._stopping.set()
        self._thread.join(timeout=CLOSE_S)

    def close(self, reason: str | None) -> Closing:
        """Have the service give everything back. Raises NotGivenBackError.

        reason: why the job ends before it is done; None: it is done. A service that gave up is continued once more.
        """
        self._reason, self._failure = reason, ""
        if reason is not None:
            self._service.stop(reason)
        self._stopping.set()
        if self._problem is not None:
            self._thread.join()
            self._problem = None
            self._failed_s.clear()
            self._service = self._new_service()
            self._thread = threading.Thread(target=self._serve, name="market", daemon=True)
            self._thread.start()
        self._thread.join(timeout=CLOSE_S)
        if self.state.closed is None or self.state.closing is None:
            late = f"it took more than {CLOSE_S:g} s{': ' * bool(self._failure)}{self._failure}"
            raise NotGivenBackError(self._left(self._problem[0] if self._problem else late))
        now_s = self.clock.now_s()
        self.log.stand(now_s, self.state, self._cloud, self._trainer.report(now_s).measured, is_last=True)
        return self.state.closing

    def _left(self, why: str) -> str:
        """The sentence about the remains of a job that could not be closed: machines, orders, or its bill alone."""
        state = self.state
        machines = [
            each.instance_id for each in state.open_instances() if each.instance_id not in state.released
        ]
        if state.closing is not None and not machines and not state.pending:
            return f"market: all known machines are given back, but there is no bill of them ({why})"
        left = ", ".join(machines) or "orders under way"
        return f"machines may not have been given back ({why}); look after: {left}"


def pause(stopping: threading.Event, seconds: float) -> None:
    """Sleep until the run ends; from then on at most 0.2 s at a time, so that no loop spins."""
    if stopping.wait(seconds):
        time.sleep(min(seconds, 0.2))


class _SuspendedError(Exception):
    """The service is to stop where it is."""


class _Ticking:
    """A clock that calls `tell` whenever the service waits."""

    def __init__(self, clock: Timekeeper, tell: Callable[[], None]) -> None:
        self._clock, self._tell = clock, tell

    @property
    def trouble(self) -> str:
        """See `Timekeeper.trouble`."""
        return self._clock.trouble

    def now_s(self) -> int:
        """The market's time."""
        return self._clock.now_s()

    def wait(self, until_s: int, market: bool) -> None:
        """Tell, then wait."""
        self._tell()
        self._clock.wait(until_s, market)
