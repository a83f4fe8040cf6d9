"""Callbacks: methods of the user's that the run calls as it goes on, in the process that started it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agileml.application import InputError, without_secrets
from agileml.config.text import show
from agileml.events.observed import Evaluated
from agileml.events.run import MembershipChanged
from agileml.events.schema import RunEvent
from agileml.runs.history import ClockRow, RowMaker


class Callback:
    """Override what you need. A sentence that a method returns ends the run with its next cut, for that reason.

    True does so too. If a callback raises, or returns what is no sentence, the run goes on without it; the log and the
    screen say why.
    """

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """The run begins; everything of it goes to `folder`."""

    def on_clock(self, row: ClockRow) -> str | None:
        """A clock is done. After a rollback the same clocks come again."""

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> str | None:
        """The parameters after `clock` clocks were evaluated."""

    def on_change(self, change: MembershipChanged) -> str | None:
        """Machines joined or left, or their roles changed."""

    def on_end(self, result: Any) -> None:
        """The run is over; `result` is what `agileml.run` returns. Not called for a run that failed."""

    def on_fail(self, reason: str) -> None:
        """The run has failed, or could not begin; `reason` is a sentence. With --supervise it may begin again."""


class EarlyStopping(Callback):
    """Ends the run when a metric has not improved for `patience` evaluations in a row that measured it.

    mode: "min" or "max", which is better. least_change: what counts as an improvement. Raises InputError.
    """

    def __init__(
        self, metric: str = "test_loss", patience: int = 3, mode: str = "min", least_change: float = 0.0
    ) -> None:
        if mode not in ("min", "max"):
            raise InputError(f"EarlyStopping: found mode={mode!r}, expected min or max")
        self.metric, self.patience, self.least_change = metric, patience, least_change
        self._sign = 1.0 if mode == "min" else -1.0
        self._best = math.inf
        self._best_clock = 0
        self._without: list[int] = []  # clocks of the evaluations since, ascending

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> str | None:
        if self.metric not in metrics:  # it says nothing about improvement
            return None
        value = self._sign * metrics[self.metric]
        if value < self._best - self.least_change:
            self._best, self._best_clock, self._without = value, clock, []
            return None
        if clock > self._best_clock:  # not after a rollback to before the best
            # An evaluation that comes again after a rollback counts once.
            self._without = [*(before for before in self._without if before < clock), clock]
        if len(self._without) < self.patience:
            return None
        return (
            f"{self.metric} has not improved on {self._sign * self._best:.6g} of clock {self._best_clock} for "
            f"{len(self._without)} evaluations"
        )


class CallbackError(Exception):
    """A callback raised in another process, or returned no sentence; the text is the sentence about it."""


def reason_of(callback: Callback, returned: object) -> str | None:
    """The sentence with which a callback ends the run, from what its method returned. Raises CallbackError."""
    name = type(callback).__name__
    if returned is True:
        return f"the callback {name} returned True"
    if returned is None or returned is False or isinstance(returned, str):
        return returned or None
    raise CallbackError(
        f"the callback {name} is called no more: it returned {show(returned)}, expected a sentence that ends the run, "
        "or nothing"
    )


def failure_of(callback: Callback, error: Exception) -> str:
    """A sentence about a callback that raised, such as one whose service does not answer: it ends up in logs, so
    addresses in it show no secret."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return without_secrets(
        f"the callback {type(callback).__name__} is called no more: {type(error).__name__}: {error} "
        f"({Path(place.filename).name}:{place.lineno})"
    )


class Callbacks:
    """Hands the events of a run to callbacks."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        learning_rate: Callable[[int], float],
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """learning_rate: by clock, 0-based. warn: gets a sentence for each callback that fails."""
        self._callbacks = list(callbacks)
        self._rows = RowMaker(learning_rate)
        self.warn = warn

    def start(self, folder: Path, config: Mapping[str, Any]) -> None:
        """The run begins."""
        self._each(lambda callback: callback.on_start(folder, config))

    def on_event(self, event: RunEvent) -> str | None:
        """Pass an event to the callbacks. Returns the reason to end the run, if a callback has one."""
        row = self._rows.of(event)
        if row is not None:
            return self._each(lambda callback: reason_of(callback, callback.on_clock(row)))
        if isinstance(event, Evaluated):
            return self._each(
                lambda callback: reason_of(callback, callback.on_evaluate(event.clock, event.metrics))
            )
        if isinstance(event, MembershipChanged):
            return self._each(lambda callback: reason_of(callback, callback.on_change(event)))
        return None

    def recall(self, evaluations: Callable[[], Iterable[Evaluated]]) -> None:
        """Give early stopping the values from before a restart of the run's head."""
        rules = [callback for callback in self._callbacks if isinstance(callback, EarlyStopping)]
        for done in evaluations() if rules else ():
            for rule in rules:
                rule.on_evaluate(done.clock, done.metrics)

    def end(self, result: Any) -> None:
        """The run is over."""
        self._each(lambda callback: callback.on_end(result))

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Tell the callbacks that the run has failed, if what is done here raises."""
        try:
            yield
        except BaseException as error:
            reason = str(error) or type(error).__name__
            self._each(lambda callback: callback.on_fail(reason))
            raise

    def _each(self, call: Callable[[Callback], str | None]) -> str | None:
        reason = None
        for callback in list(self._callbacks):
            try:
                reason = call(callback) or reason
            except Exception as error:
                self._callbacks.remove(callback)
                is_sentence = isinstance(error, CallbackError)
                self.warn(str(error) if is_sentence else failure_of(callback, error))
        return reason
