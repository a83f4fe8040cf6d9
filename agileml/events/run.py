"""The events of a run, one class each. The controller, the driver or the session makes them.

`kind` is the name of the class in the log. Durations and moments are in seconds; machines go by their names in the run.
Long because it is one list: everything that a run may log, in one order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agileml.events.observed import BestKept, Evaluated, LossScaleChanged, StopDecided
from agileml.events.sums import ClocksDone, CutsCommitted, Standing
from agileml.events.terms import Fault, Loss, Move, Task, Tier, Trigger, Way

# -- the run ------------------------------------------------------------------------------------------------


# A host knows when a process was created by when the host booted, which moves with every correction of its clock. No
# host gives a process's number to another one within a minute: it would have to start hundreds of them a second.
CLOCK_STEP_S = 60.0


@dataclass(frozen=True)
class Process:
    """A process of some host; a later one with the same number was created at another time (Unix time)."""

    host: str
    pid: int
    created_s: float

    def was_created(self, at_s: float) -> bool:
        """True if a process of that number and creation time (Unix time) is this one."""
        return abs(at_s - self.created_s) < CLOCK_STEP_S


@dataclass(frozen=True)
class RunStarted:
    """The run begins, at `unix_s` (Unix time), in this driver process."""

    kind: ClassVar = "run_started"
    config_name: str
    versions: Mapping[str, str]
    unix_s: float
    process: Process


@dataclass(frozen=True)
class RunRestarted:
    """The head of a supervised run died (`cause`); the run goes on in a new process, `process`, from the checkpoint of
    `clock` (0: from its start). It is restart `count`; `redone` clocks that were complete are done again."""

    kind: ClassVar = "restarted"
    cause: str
    clock: int
    redone: int
    count: int
    process: Process


@dataclass(frozen=True)
class StopAsked:
    """The run was told to stop: it ends with its next cut."""

    kind: ClassVar = "stopping"
    clock: int


@dataclass(frozen=True)
class RunStopped:
    """The run ended before its last clock, with the cut of `clock`."""

    kind: ClassVar = "stopped"
    clock: int


@dataclass(frozen=True)
class RunFailed:
    """The run broke off; its model is the committed cut of `clock`."""

    kind: ClassVar = "failed"
    reason: str
    clock: int


@dataclass(frozen=True)
class RunFinished:
    """Training is over, whole or stopped, after so many seconds."""

    kind: ClassVar = "finished"
    seconds: float


@dataclass(frozen=True)
class Warned:
    """Something went wrong that the run goes on from."""

    kind: ClassVar = "warning"
    reason: str


@dataclass(frozen=True)
class MachineQuarantined:
    """Work failed on a machine, number `count` of `of` that the run survives: it is sent away, and others do the work.

    `clock`: that of the units that it was computing; -1 where it was not computing.
    """

    kind: ClassVar = "quarantined"
    machine: str
    work: Task
    clock: int
    problem: str
    trace: str
    count: int
    of: int


@dataclass(frozen=True)
class UserCodeFailed:
    """The application or its data failed on a machine; the run ends."""

    kind: ClassVar = "user_code_failed"
    machine: str
    problem: str
    trace: str


# -- machines -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachinesJoined:
    """Machines became members, each of its tier."""

    kind: ClassVar = "join"
    machines: Mapping[str, Tier]


@dataclass(frozen=True)
class MachineNoticed:
    """A machine got a preemption notice: it will be taken away in `warning_s` seconds."""

    kind: ClassVar = "notice"
    machine: str
    warning_s: float


@dataclass(frozen=True)
class ShortNoticeJudged:
    """A notice may be too short for what must move from these machines: which way is taken, and what each would cost.

    The most pressed machine goes in `left_s`; what must be copied from it takes `needed_s`.
    """

    kind: ClassVar = "short_notice"
    machines: tuple[str, ...]
    way: Way
    left_s: float
    needed_s: float
    expected_s: Mapping[Way, float]
    reason: str


@dataclass(frozen=True)
class MachineReleased:
    """A machine holds nothing of the run any more and may go."""

    kind: ClassVar = "released"
    machine: str


@dataclass(frozen=True)
class MachineLost:
    """A machine is gone or does not answer. It may be told more than once, and again by a new controller."""

    kind: ClassVar = "lost"
    machine: str
    loss: Loss
    detail: str


@dataclass(frozen=True)
class WaitingForSilent:
    """The run waits, `limit_s` at most, for silent machines that hold the only copy of some state."""

    kind: ClassVar = "waiting"
    machines: tuple[str, ...]
    reason: str
    limit_s: float


@dataclass(frozen=True)
class GaveUpWaiting:
    """None of those machines came back in time; the run goes on without them, or ends."""

    kind: ClassVar = "gave_up"
    waited_s: float
    reason: str


@dataclass(frozen=True)
class ProcessDied:
    """A process ended by itself on a Ray node that is alive: the `count`th of at most `of`."""

    kind: ClassVar = "process_died"
    machine: str
    cause: str
    count: int
    of: int


# -- training -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MembershipChanged:
    """A view is durable, `seconds` after the change to it began; training goes on from clock `base`.

    `redone`: clocks that were complete and are done again. `rolled_back`: to the committed cut or a checkpoint.
    `reason`: what led to this arrangement and what had to move.
    """

    kind: ClassVar = "change"
    epoch: int
    trigger: Trigger
    reason: str
    seconds: float
    stage: int
    reliable: int
    transient: int
    owners: tuple[str, ...]
    workers: tuple[str, ...]
    base: int
    redone: int
    rolled_back: bool


@dataclass(frozen=True)
class ClockDone:
    """`clock` clocks are complete. `loss`: the mean over the clock's examples; `seconds`: since the clock before it."""

    kind: ClassVar = "clock"
    clock: int
    loss: float
    examples: int
    seconds: float | None


@dataclass(frozen=True)
class CutCommitted:
    """The cut of a clock is durable; from its clock's end until then it took `travel_s`."""

    kind: ClassVar = "cut"
    clock: int
    travel_s: float


@dataclass(frozen=True)
class CheckpointSaved:
    """The checkpoint of a clock is whole and will be found."""

    kind: ClassVar = "checkpoint"
    clock: int


@dataclass(frozen=True)
class CheckpointFailed:
    """The checkpoint of a clock could not be written and is given up; the run goes on."""

    kind: ClassVar = "checkpoint_failed"
    clock: int
    reason: str


@dataclass(frozen=True)
class StageJudged:
    """The controller compared the stages by measured clocks: `clock_s` now, `predicted_s` of a clock in each stage."""

    kind: ClassVar = "stage_auto"
    move: Move
    stage: int
    thresholds: tuple[float, ...]
    clock_s: float
    predicted_s: Mapping[int, float]
    reason: str


@dataclass(frozen=True)
class ExchangeFailed:
    """The all-reduce of an epoch's group failed, as this machine says."""

    kind: ClassVar = "exchange_failed"
    machine: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class UnitsPlanned:
    """From `clock` until the next plan, the machines compute so many units of every clock. The log leaves out small
    changes of a plan. `reason`: the measured speeds, and the predicted time of a clock."""

    kind: ClassVar = "units"
    clock: int
    units: Mapping[str, int]
    predicted_s: float
    reason: str


@dataclass(frozen=True)
class SuperstepPlanned:
    """From minibatch `position` (in the order of all) until the next plan, each superstep has so many minibatches for
    each machine. `predicted_s`: its predicted length. `reason`: why its barrier is there."""

    kind: ClassVar = "superstep"
    position: int
    units: Mapping[str, int]
    predicted_s: float
    reason: str


@dataclass(frozen=True)
class StepsLogged:
    """The steps of a partition from number `first` on. `positions`: the minibatch of each step. `reads`: for each step,
    the number of steps of every partition in the parameters of its gradient. Steps of a later `timeline` replace those
    of the same number."""

    kind: ClassVar = "steps"
    partition: int
    timeline: int
    first: int
    positions: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class StagesArranged:
    """In a pipeline without a flush: from `clock` on, under `epoch`, stage l has the partitions before `ends[l]` that
    no earlier stage has. Replaces what an earlier epoch says of these clocks; at `clock` nothing is in flight.
    `overlapping`: the stages whose weights are one clock older, as their machines exchange the sums of a clock while
    they compute the next."""

    kind: ClassVar = "stages"
    epoch: int
    clock: int
    ends: tuple[int, ...]
    overlapping: tuple[int, ...] = ()


@dataclass(frozen=True)
class RemedyDecided:
    """With `balance: auto` or `helping: auto`: from `clock` on work is shared out with `remedy`, or, told once in a
    view, stays so: "static", "lbbsp" (shares by speed) or "helping". `reason`: what a clock takes with each."""

    kind: ClassVar = "remedy"
    clock: int
    remedy: str
    reason: str


@dataclass(frozen=True)
class HelpRefused:
    """With `helping: auto`: a machine helps no other from now on, because of `reason`. It may still be helped."""

    kind: ClassVar = "help_refused"
    machine: str
    reason: str


@dataclass(frozen=True)
class SplitDecided:
    """With `machines.threads: auto`: from `clock` on a machine computes with `workers` processes of `threads` threads.

    `reason`: what it measured.
    """

    kind: ClassVar = "split"
    machine: str
    clock: int
    workers: int
    threads: int
    reason: str


@dataclass(frozen=True)
class OverlapDecided:
    """With `overlap: auto`: from `clock` on a machine pulls parameters while it computes, or does not. With `batches`:
    from `clock` on it pulls in the batches that `reason` names.

    `reason`: what it measured.
    """

    kind: ClassVar = "overlap"
    machine: str
    clock: int
    overlaps: bool
    reason: str


# -- the plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanFired:
    """Event number `index` of the plan happens. A controller that takes over may say it again."""

    kind: ClassVar = "plan_fired"
    index: int
    event: str


@dataclass(frozen=True)
class PlanFinished:
    """The consequences of event number `index` of the plan are complete."""

    kind: ClassVar = "plan_finished"
    index: int
    event: str


@dataclass(frozen=True)
class FaultFired:
    """A planned fault strikes these machines (none: the controller), for `seconds`."""

    kind: ClassVar = "fault"
    fault: Fault
    machines: tuple[str, ...]
    seconds: float


# -- measured -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BytesSent:
    """Bytes that the machines have sent so far, by what they were for."""

    kind: ClassVar = "bytes"
    by_kind: Mapping[str, int]


@dataclass(frozen=True)
class WorkersSpent:
    """By machine, the seconds that its worker has spent so far with each thing (see `agileml/core/node/time_spent.py`).

    A machine that left, or that a restarted controller has not heard yet, is in earlier events only.
    """

    kind: ClassVar = "time_spent"
    by_machine: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Work:
    """The units that a machine computed, and the seconds that it computed and waited."""

    units: int
    compute_s: float
    wait_s: float

    def __add__(self, other: Work) -> Work:
        """Both together."""
        return Work(self.units + other.units, self.compute_s + other.compute_s, self.wait_s + other.wait_s)


NO_WORK = Work(0, 0.0, 0.0)


@dataclass(frozen=True)
class WorkDone:
    """By machine, its work in the last `clocks` clocks before `clock` clocks were complete, in the view of `epoch`.

    A machine waits from the end of computing a clock to the beginning of the next, but for changes of members. A window
    may come in several events, whose machines and figures add up.
    """

    kind: ClassVar = "work"
    epoch: int
    clock: int
    clocks: int
    by_machine: Mapping[str, Work]


@dataclass(frozen=True)
class HelpGiven:
    """By helper and helped machine, the units that the one computed for the other in the last `clocks` clocks before
    `clock` clocks were complete, in the view of `epoch`. As with `work`, a window may come in several events."""

    kind: ClassVar = "help"
    epoch: int
    clock: int
    clocks: int
    units: Mapping[str, Mapping[str, int]]


ControllerEvent = (
    StopAsked | Warned | MachineQuarantined | UserCodeFailed | MachinesJoined | MachineNoticed | ShortNoticeJudged
    | MachineReleased | MachineLost | WaitingForSilent | GaveUpWaiting | MembershipChanged | ClockDone | Evaluated
    | CutCommitted | CheckpointSaved | CheckpointFailed | StageJudged | ExchangeFailed | UnitsPlanned | RemedyDecided
    | HelpRefused | OverlapDecided | SplitDecided | SuperstepPlanned | StepsLogged | StagesArranged | LossScaleChanged
    | PlanFired | PlanFinished | FaultFired
)  # fmt: skip
DriverEvent = (
    RunStarted
    | RunRestarted
    | StopDecided
    | BestKept
    | RunStopped
    | RunFailed
    | RunFinished
    | ProcessDied
    | Standing
    | BytesSent
    | WorkersSpent
    | WorkDone
    | HelpGiven
    | ClocksDone
    | CutsCommitted
)
