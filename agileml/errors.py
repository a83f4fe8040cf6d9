"""Errors that end a run without a result."""

from __future__ import annotations

from typing import ClassVar

HEAD_LOST_CODE = 5
STATE_LOST_CODE = 6
CONTROLLER_LOST_CODE = 7
CHECKPOINTS_UNREAD_CODE = 8
# The exit codes of ends that a restart from the newest checkpoint cures.
RESTARTED_CODES = frozenset({HEAD_LOST_CODE, STATE_LOST_CODE, CONTROLLER_LOST_CODE, CHECKPOINTS_UNREAD_CODE})


class RunError(Exception):
    """A run cannot go on. The text says why; `trace` is the traceback of user code that failed, if any."""

    exit_code: ClassVar[int] = 1

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(reason)
        self.trace = trace


class HeadLostError(RunError):
    """The cluster's head is gone, and the run's records with it: there is no controller left to ask or stop."""

    exit_code = HEAD_LOST_CODE


class StateLostError(RunError):
    """No machine holds a part of the run's state any more: only a checkpoint does."""

    exit_code = STATE_LOST_CODE


class ControllerLostError(RunError):
    """The controller has died, and Ray does not bring up another: its host is starved, or kills each one."""

    exit_code = CONTROLLER_LOST_CODE


class CheckpointsUnreadError(RunError):
    """The checkpoints that the run needs cannot be read just now: without them it would begin at its start."""

    exit_code = CHECKPOINTS_UNREAD_CODE
