"""The user's code in a thread of its own, which takes turns with the thread that computes: one of the two runs.

prepared = script.prepared()        # runs until the loop asks for its first batch
loss = script.turn(Turn(...))       # one batch: from the loop's body to the end of optimizer.step()
script.stop()
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TextIO, cast
from weakref import ref

import torch
from torch import Tensor, nn

from agileml.application import InputError
from agileml.apps.loop.instances import instances_of
from agileml.apps.loop.prepared import Prepared
from agileml.apps.loop.source import UserCode, shown

_here = threading.local()
LONGEST_END_S = 10.0  # that a script may take to end where it waits: its `with` and `finally`


@dataclass(frozen=True)
class Turn:
    """One pass through the loop's body. `number`: of the pass over the data that the batch belongs to (0-based).

    clock: that the batch is a part of. steps: of the schedule before it. factor: of the learning rates. backward:
    called in the place of the backward of a loss, and returns the sum of its items' losses.
    changed: called at step(), a sentence if the gradients are not those that backward left. rewind: called before the
    batch is handed out, so that its random numbers are the batch's own. loss_scale: of the clock, where losses are
    scaled. may_overflow: a loss that is not finite is no error.
    """

    batch: Any
    clock: int
    number: int
    steps: int
    factor: float
    backward: Callable[[Tensor, Callable[[Tensor], None], int, int | None], float]
    changed: Callable[[], str | None]
    rewind: Callable[[], None]
    loss_scale: float | None = None
    may_overflow: bool = False


@dataclass(frozen=True)
class LoopReached:
    """The script waits for its first batch."""

    prepared: Prepared


@dataclass(frozen=True)
class BatchStepped:
    """A batch is done: the sum of what its backwards returned."""

    loss: float


@dataclass(frozen=True)
class ScriptEnded:
    """The script has come to its end, or was stopped."""

    was_stopped: bool = False


@dataclass(frozen=True)
class ScriptRaised:
    """The script raised this."""

    error: BaseException


Answer = LoopReached | BatchStepped | ScriptEnded | ScriptRaised


class ScriptStopped(BaseException):
    """Raised in the script when its run is over. Not an Exception, so that `except Exception` lets it pass."""


def current() -> Script | None:
    """The script that this thread runs for a machine; None in the process that starts a run."""
    return getattr(_here, "script", None)


class _Muted:
    """Standard output in the place of `out`, which drops what is written while it is quiet. A script may keep it, as a
    logger does."""

    def __init__(self, out: TextIO) -> None:
        self._out, self.is_quiet = out, True

    def write(self, text: str) -> int:
        return len(text) if self.is_quiet else self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


class Script:
    """The user's code and the thread that runs it. All methods but `ask` are for the thread that computes."""

    def __init__(
        self, source: UserCode, batch_size: int | None = None, threads: int = 1, *, is_resident: bool = False
    ) -> None:
        """batch_size: of the config, where prepare() names none. threads: of torch; `threads` may change them from the
        next batch on. is_resident: its optimizer steps where machines compute."""
        self.is_resident = is_resident
        self._source, self._main = source, source.main()
        self.batch_size = batch_size
        self.threads = self._set_threads = threads
        self._turns: SimpleQueue[Turn | None] = SimpleQueue()  # None: the run is over
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._prepared: Prepared | None = None
        self._last: ScriptEnded | ScriptRaised | None = None  # it has no other answer any more
        self._earlier: dict[int, ref[nn.Parameter]] = {}  # those that were there when it began, by id
        self._muted: _Muted | None = None  # its standard output, once it was quiet
        self._is_quiet = False
        self.at_end: Callable[[], None] = lambda: None  # called in its thread

    @property
    def is_quiet(self) -> bool:
        """True while its output is not shown."""
        return self._is_quiet

    @is_quiet.setter
    def is_quiet(self, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        if self._muted is not None:
            self._muted.is_quiet = is_quiet

    @property
    def is_prepared(self) -> bool:
        """It waits in its loop, or has begun it."""
        return self._prepared is not None

    def prepared(self) -> Prepared:
        """Start it if it has not been, and wait until it asks for a batch. Raises what it raises, InputError."""
        if self._prepared is None:
            assert self._thread is None, "the script failed before"
            self._earlier = _parameters_here()
            self._thread = threading.Thread(target=self._run, name="script", daemon=True)
            match self._answer_to(self._thread.start):
                case LoopReached(prepared):
                    self._prepared = prepared
                case answer:
                    assert isinstance(answer, ScriptEnded), answer
                    raise InputError(
                        f"{self._source.name}: it ended without a loop, expected `for batch in loader:` over the "
                        "loader that trainer.prepare() returned"
                    )
        return self._prepared

    def turn(self, turn: Turn) -> float:
        """Have the loop's body run with one batch; returns the sum of its items' losses. Raises InputError, and what it
        raises."""
        match self._answer_to(lambda: self._turns.put(turn)):
            case BatchStepped(loss):
                return loss
            case answer:
                assert isinstance(answer, ScriptEnded), answer
                raise InputError(
                    f"{self._source.name}: it left its loop before the run was over, expected a loop that ends when "
                    "the loader does (early_stopping of the config ends a run earlier)"
                )

    def stop(self) -> None:
        """End it where it waits. Another one may begin then: the random numbers are the process' own."""
        if self._thread is not None:
            with shown(self._main):
                self._turns.put(None)
                self._thread.join(LONGEST_END_S)
            self.is_quiet = True  # handlers of a logger outlive it

    def _answer_to(self, begin: Callable[[], None]) -> Answer:
        """Let the script's thread run until it hands over."""
        with shown(self._main), self._unheard() if self.is_quiet else nullcontext():
            begin()
            answer = self._last or self._answers.get()
        if isinstance(answer, ScriptEnded | ScriptRaised):
            self._last = answer
        if isinstance(answer, ScriptEnded) and answer.was_stopped:
            raise InputError(
                f"{self._source.name}: it was stopped, expected no batch after the end of its run"
            )
        if isinstance(answer, ScriptRaised):
            answer.error.add_note(self._source.name)
            raise answer.error
        return answer

    def _unheard(self) -> AbstractContextManager[Any]:
        if self._muted is None:
            self._muted = _Muted(sys.stdout)
        return redirect_stdout(cast(TextIO, self._muted))

    def check_is_own(self, model: nn.Module) -> None:
        """Raise InputError for a model that was there before the script began: the loop is tried with it, and the
        script that then begins anew would not find it as it was."""
        for name, parameter in model.named_parameters():
            earlier = self._earlier.get(id(parameter))
            if parameter.requires_grad and earlier is not None and earlier() is parameter:
                raise InputError(
                    f"prepare(): found parameter {name!r} that was there before {self._source.name} began, expected it "
                    "to make all of its model that is trained: machines run it, and this process more than once"
                )

    # -- in the script's thread -------------------------------------------------------------------------------

    def ask(self, answer: Answer) -> Turn:
        """Let the computing thread go on, and wait for the next batch."""
        self._answers.put(answer)
        turn = self._turns.get()
        if turn is None:
            raise ScriptStopped
        if self.threads != self._set_threads:
            self._set_threads = self.threads
            torch.set_num_threads(self.threads)  # OpenMP keeps it for each thread
        return turn

    def _run(self) -> None:
        _here.script = self
        torch.set_num_threads(self._set_threads)
        try:
            self._source.run(self._main)
            self._answers.put(ScriptEnded())
        except ScriptStopped:
            self._answers.put(ScriptEnded(was_stopped=True))
        except SystemExit as error:
            failure = InputError(
                f"{self._source.name}: it called exit({error.code!r}), expected it to go on until its loop ends"
            )
            self._answers.put(ScriptRaised(failure))
        except BaseException as error:  # this thread must not end without an answer
            self._answers.put(ScriptRaised(error))
        finally:
            self.at_end()


def _parameters_here() -> dict[int, ref[nn.Parameter]]:
    """All parameters of this process, by id."""
    return {id(each): ref(each) for each in instances_of(nn.Parameter)}
