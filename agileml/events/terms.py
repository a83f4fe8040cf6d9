"""Words that events share with the code that decides: tiers, faults, causes and decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tier(StrEnum):
    """The tier of a machine: it stays (reliable), or may be evicted at any moment (transient)."""

    RELIABLE = "reliable"
    TRANSIENT = "transient"


class Fault(StrEnum):
    """A fault that a plan injects into machines, or into the controller."""

    KILL = "kill"  # the whole machine, without a word
    KILL_RELIABLE = "kill_reliable"
    FREEZE = "freeze"  # it stands still, with its connections open
    CUT = "cut"  # it runs on, but no message gets through
    SLOW = "slow"  # it computes so many times slower
    SPEED = "speed"  # from now on it computes so many times slower, or faster
    DISK_FULL = "disk_full"  # checkpoints cannot be written
    KILL_CONTROLLER = "kill_controller"


class Task(StrEnum):
    """The task that a machine had when it failed."""

    START = "start"  # its process, the application's constructor, its warm-up
    LOAD = "load"  # items of slices
    COMPUTE = "compute"  # units of a clock
    SERVE = "serve"  # the parameters, in our own code
    RUN = "run"  # nothing of its own: the run cannot go on with any machine


class Cause(StrEnum):
    """The cause of a membership change."""

    START = "start"
    RESTART = "restart of the controller"
    FAILURE = "failure"
    NOTICE = "notice"
    JOIN = "join"
    STAGE = "stage"
    EXCHANGE = "the all-reduce failed"


@dataclass(frozen=True)
class Trigger:
    """The trigger of a membership change: its cause, its machines, and the rule's reason for another stage."""

    cause: Cause
    machines: tuple[str, ...] = ()
    why: str = ""

    def __str__(self) -> str:
        names = ", ".join(self.machines)
        match self.cause:
            case Cause.FAILURE | Cause.JOIN:
                return f"{self.cause} of {names}"
            case Cause.NOTICE:
                return f"{self.cause} for {names}"
            case Cause.EXCHANGE:
                return f"{self.cause} at {names}"
            case Cause.STAGE:
                return self.why
            case Cause.START | Cause.RESTART:
                return self.cause.value


class Loss(StrEnum):
    """The sign by which a machine counts as lost."""

    SILENT = "silent"  # no heartbeat came in time: it may come back
    DISCONNECTED = "disconnected"  # its connection closed, or nothing came through it in time
    UNREACHABLE = "unreachable"  # no connection to it came about in time
    CUT_OFF = "cut off"  # it and another machine do not reach each other: it may come back
    REFUSED = "refused"  # the handshake with it failed
    PROCESS_DIED = "process died"
    PROCESS_ENDED = "process ended"
    NODE_GONE = "node gone"  # Ray lost its node
    EVICTED = "evicted"  # the market took it
    GIVEN_BACK = "given back"  # to the market, as the policy decided
    QUARANTINED = "quarantined"  # its work failed: it was sent away
    NOT_READY = "not ready"  # it did not load its items in time
    GONE_BEFORE = "gone before"  # before this controller began


class Way(StrEnum):
    """The controller's answer to a notice that may be too short."""

    MOVE = "move"
    ROLL_BACK = "roll back"
    FINISH_CUT = "finish cut"


class Move(StrEnum):
    """The decision about a stage."""

    TRY = "try"
    KEEP = "keep"
    TAKE_BACK = "take back"


class AllocationEnding(StrEnum):
    """The end of an allocation (instances that were bought together)."""

    EVICTED = "evicted"
    TERMINATED = "terminated"  # given back before the job's end
    JOB_END = "job_end"
