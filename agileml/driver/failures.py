"""Processes that end by themselves: user code exits or crashes, or memory runs out.

Such a process is counted once another has come up on the same Ray node, because then the node was not lost. A lost node
never uses up the budget. Processes that die while they start also have a count of their own, for each node in a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from agileml.application import without_secrets
from agileml.checkpoints.errors import StoreError
from agileml.core.protocol.commands import Halt, HaltKind
from agileml.errors import CheckpointsUnreadError, RunError, StateLostError


@dataclass(frozen=True)
class Death:
    """A process that ended by itself: its machine, and Ray's account of the cause."""

    machine: str
    cause: str

    def __str__(self) -> str:
        return f"the process of machine {self.machine} ended by itself ({self.cause})"


class Failures:
    """Counts deaths of processes; the run survives up to `most`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counted: list[Death] = []
        self.news: list[Death] = []  # for the screen, at once
        self._open: dict[str, Death] = {}  # by node, until it is known whether the Ray node is alive
        self._failed_starts: Counter[str] = Counter()  # by node, since a process of it was up

    def died(self, node: str, death: Death) -> None:
        """Record a death before it is known whether the Ray node went too."""
        self._open[node] = death
        self.news.append(death)

    def start_failed(self, node: str) -> int:
        """Record a process that died while it started; returns how many in a row have on this node."""
        self._failed_starts[node] += 1
        return self._failed_starts[node]

    def machine_lives(self, node: str) -> Death | None:
        """Count and return the death on a node where another process runs now; None if there was none. It ends a row of
        failed starts."""
        del self._failed_starts[node]
        death = self._open.pop(node, None)
        if death is not None:
            self.counted.append(death)
        return death

    def machine_lost(self, node: str) -> None:
        """Forget the deaths on a node that is gone: the loss of the node explains them."""
        del self._failed_starts[node]
        self._open.pop(node, None)

    @property
    def is_too_many(self) -> bool:
        """True when one more than `most` are counted."""
        return len(self.counted) > self.most

    def verdict(self) -> str:
        """The sentence with which a run of too many deaths stops."""
        many = len(self.counted)
        what = (
            "a process ended on a machine that lives"
            if many == 1
            else f"{many} processes ended on machines that live"
        )
        return (
            f"{what}, more than max_failures = {self.most}: user code exits or crashes, or memory runs out; "
            f"the last: {self.counted[-1]}"
        )

    def blamed(self, reason: str) -> str:
        """`reason` with the death, if any, that most likely led to it."""
        deaths = [*self.counted, *self._open.values()]
        return f"{reason}; before that {deaths[-1]}" if deaths else reason


def halt_error(halt: Halt, failures: Failures) -> RunError:
    """The error that ends a run whose controller has stopped."""
    match halt.kind:
        case HaltKind.USER_CODE:
            return RunError(halt.reason, halt.trace)
        case HaltKind.UNREAD:
            return CheckpointsUnreadError(halt.reason)
        case HaltKind.LOST:
            return StateLostError(failures.blamed(halt.reason), halt.trace)
    return RunError(failures.blamed(halt.reason), halt.trace)


def begin_error(what: str, error: Exception) -> RunError:
    """The error of a controller that cannot begin. what: the beginning of its sentence. error: what Ray raised.

    Ray's error is also of the class that the process raised.
    """
    kind = CheckpointsUnreadError if isinstance(error, StoreError) else RunError
    return kind(f"{what}: {said_by(error)}")


def said_by(error: Exception) -> str:
    """The text of Ray's error about a process, which quotes errors of user code in it. It ends up in logs, so addresses
    in it show no secret."""
    return without_secrets(str(error))


def cause_of(said: str) -> str:
    """The relevant part of Ray's message about an actor that died."""
    text = " ".join(said.split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in text:
            text = text.partition(mark)[2]
            break
    return text.partition(" Some common causes")[0].strip().rstrip(".")[:300] or "no reason known"


def last_line(said: str) -> str:
    """The last line of a traceback: the exception and its message."""
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "no reason known")
