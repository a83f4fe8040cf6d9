"""Decides whether and when a supervised run begins again after its process has ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from agileml.errors import CHECKPOINTS_UNREAD_CODE, CONTROLLER_LOST_CODE, HEAD_LOST_CODE, STATE_LOST_CODE
from agileml.runs.supervision import Restart

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
BAD_INPUT = 2


class Next(StrEnum):
    """The supervisor's next action."""

    AGAIN = "again"
    STOP = "stop"  # it was told to
    GIVE_UP = "give up"


@dataclass(frozen=True)
class RestartVerdict:
    """The next action, and the wait before it. `cause`: of the end; `reason`: the whole verdict as a sentence.

    `clock`: of the newest checkpoint that is known, 0 if none is.
    """

    next: Next
    wait_s: float
    cause: str
    reason: str
    clock: int


def cause_of(code: int) -> str:
    """The cause of an end without a result, from the process's exit code (below zero: minus the signal)."""
    if code == HEAD_LOST_CODE:
        return "Ray's head has ended"
    if code == STATE_LOST_CODE:
        return "the machines that held its state have ended"
    if code == CONTROLLER_LOST_CODE:
        return "its controller did not come back"
    if code == CHECKPOINTS_UNREAD_CODE:
        return "its checkpoints could not be read"
    if code == BAD_INPUT:
        return "its input was refused"
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        return f"its process was ended by {names.get(-code, f'signal {-code}')}"
    return f"its process ended without a result (exit code {code})"  # as Ray ends a driver that has lost its cluster


def judge(
    code: int,
    newest: int | None,
    restarts: Sequence[Restart],
    most: int,
    *,
    is_stopping: bool,
    earlier: int = 0,
) -> RestartVerdict:
    """Decide whether a run begins again whose process has ended with `code` before the run was over.

    newest: the clock of the newest checkpoint, 0 without one; None: its place cannot be read, so what the last restart
    knew counts. restarts: the earlier ones, the oldest first. is_stopping: the user has ended it. earlier: how many
    restarts there were when the command was given, which tries as often again.
    The first restart comes at once. Another one without a newer checkpoint waits 1 s, 2 s, 4 s ... up to a minute,
    and after `most` of them the supervisor gives up.
    """
    cause = cause_of(code)
    clock = known_clock(newest, restarts)
    from_where = f"the checkpoint of clock {clock}" if clock else "its start"
    if newest is None:
        from_where = "its newest checkpoint, which cannot be read just now"
    if is_stopping:
        sentence = f"{cause} after it was told to stop; the same command goes on from {from_where}"
        return RestartVerdict(Next.STOP, 0.0, cause, sentence, clock)
    in_a_row = sum(1 for _ in takewhile(lambda each: each.clock == clock, reversed(restarts[earlier:])))
    if in_a_row >= most:
        sentence = (
            f"{cause}; given up after {most} restarts from {from_where}, "
            "none of which reached a newer checkpoint"
        )
        return RestartVerdict(Next.GIVE_UP, 0.0, cause, sentence, clock)
    # From 2 ** 1024 on a float overflows: with many --restarts a head may stay away for days.
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(in_a_row - 1, 100)) if in_a_row else 0.0
    when = f" in {wait_s:g} s" if wait_s else ""
    sentence = f"{cause}; the run goes on{when} from {from_where} (restart {len(restarts) + 1})"
    return RestartVerdict(Next.AGAIN, wait_s, cause, sentence, clock)


def known_clock(newest: int | None, restarts: Sequence[Restart]) -> int:
    """The clock of the newest checkpoint; None: its place cannot be read, so what the last restart knew counts."""
    if newest is not None:
        return newest
    return restarts[-1].clock if restarts else 0


def missing_clock(restart: Restart, saved: int | None, resume: str | None) -> int | None:
    """The clock of a checkpoint that a run has had, though its place shows none now; None: it has had none.

    restart: the one that begins. saved: the newest checkpoint in the log of the run. resume: the place that the run
    itself began from, whose checkpoint `restart` may mean.
    """
    if saved is not None:
        return saved
    return restart.clock if restart.clock and resume is None else None
