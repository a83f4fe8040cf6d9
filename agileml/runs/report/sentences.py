"""One sentence for each event of a run that a person wants to read."""

from __future__ import annotations

from agileml.config.hardware import Split
from agileml.events.market import MarketLeftOpen
from agileml.events.run import (
    CheckpointFailed,
    ExchangeFailed,
    FaultFired,
    GaveUpWaiting,
    HelpRefused,
    MachineLost,
    MachineNoticed,
    MachineQuarantined,
    MachineReleased,
    MachinesJoined,
    MembershipChanged,
    OverlapDecided,
    PlanFinished,
    PlanFired,
    ProcessDied,
    RemedyDecided,
    RunFailed,
    RunFinished,
    RunRestarted,
    RunStarted,
    RunStopped,
    ShortNoticeJudged,
    SplitDecided,
    StageJudged,
    StopAsked,
    SuperstepPlanned,
    UnitsPlanned,
    UserCodeFailed,
    WaitingForSilent,
    Warned,
)
from agileml.events.schema import RunEvent

REMEDIES = {
    "static": "the units stay with their machines",
    "lbbsp": "units are shared out by speed",
    "helping": "machines help each other",
}


Tuned = UnitsPlanned | OverlapDecided | SplitDecided | SuperstepPlanned | RemedyDecided | HelpRefused


def _tuning(event: Tuned) -> str:
    """The sentence for a choice that machines made from their own measurements."""
    if isinstance(event, RemedyDecided):
        return f"from clock {event.clock} on {REMEDIES.get(event.remedy, event.remedy)}: {event.reason}"
    if isinstance(event, HelpRefused):
        return f"{event.machine} helps no other machine: {event.reason}"
    if isinstance(event, SplitDecided):
        split = Split(event.workers, event.threads)
        return f"{event.machine} computes with {split} from clock {event.clock} on: {event.reason}"
    if not isinstance(event, OverlapDecided):
        shares = ", ".join(f"{machine} {count}" for machine, count in event.units.items())
        what = (
            f"units of clock {event.clock}"
            if isinstance(event, UnitsPlanned)
            else f"superstep at minibatch {event.position}"
        )
        return f"{what}: {shares} ({event.reason})"
    does = "overlaps" if event.overlaps else "does not overlap"
    return f"{event.machine} {does} from clock {event.clock} on: {event.reason}"


def sentence(event: RunEvent) -> str | None:
    """The timeline's text for an event; None if it is only drawn or counted."""
    match event:
        case RunStarted(config_name):
            return f"{config_name} starts"
        case RunRestarted(cause, base, again, count):
            return f"{cause}; goes on from clock {base}, {again} clocks again (restart {count})"
        case MachinesJoined(machines):
            return f"{', '.join(machines)} joined"
        case MembershipChanged():
            return _change(event)
        case MachineNoticed(machine, warning_s):
            return f"{machine} will go in {warning_s:.1f} s"
        case MachineReleased(machine):
            return f"{machine} may go, nothing is on it any more"
        case MachineLost(machine, loss, detail):
            return f"{machine} lost: {loss}{f' ({detail})' if detail else ''}"
        case PlanFired(_, planned):
            return f"{planned} (fired)"
        case PlanFinished(_, planned):
            return f"{planned} (finished)"
        case FaultFired(fault, machines, seconds):
            lasts = f", {seconds:g} s" if seconds else ""
            return f"{fault}{lasts}: {', '.join(machines) or 'the controller'}"
        case CheckpointFailed(clock, reason):
            return f"checkpoint of clock {clock} could not be written: {reason}"
        case (
            Warned(reason)
            | StageJudged(reason=reason)
            | ShortNoticeJudged(reason=reason)
            | MarketLeftOpen(reason)
        ):
            return reason
        case _ if isinstance(event, Tuned):
            return _tuning(event)
        case MachineQuarantined(machine, _, _, problem, _, count, most):
            return f"work failed on {machine}, which is sent away ({count} of {most}): {problem}"
        case UserCodeFailed(machine, problem):
            return f"machine {machine}: {problem}"
        case ExchangeFailed(machine, epoch, reason):
            return f"the all-reduce of epoch {epoch} failed at {machine}: {reason}"
        case WaitingForSilent(machines, reason, limit_s):
            names = ", ".join(machines)
            return f"waits up to {limit_s:g} s for {names}, which may come back: {reason}"
        case GaveUpWaiting(waited_s, reason):
            return f"waited {waited_s:.1f} s, goes on without: {reason}"
        case ProcessDied(machine, cause, count, most):
            return f"the process of {machine} ended by itself ({cause}), {count} of {most}"
        case StopAsked(clock):
            return f"told to stop at clock {clock}: ends with the next cut"
        case RunStopped(clock):
            return f"ended with the cut of clock {clock}"
        case RunFailed(reason, clock):
            return f"{reason}; the model is that of clock {clock}"
        case RunFinished(seconds):
            return f"done after {seconds:.2f} s"
        case _:
            return None


def _change(event: MembershipChanged) -> str:
    redone = f"; {event.redone} clocks again" if event.redone else ""
    back = f", rolled back to clock {event.base}{redone}" if event.rolled_back else ""
    fleet = f"{event.reliable} reliable + {event.transient} transient"
    return f"epoch {event.epoch}, stage {event.stage}, {fleet}{back} ({event.trigger}: {event.reason})"
