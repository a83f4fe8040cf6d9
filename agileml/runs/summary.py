"""summary.json of a run: as much as possible is derived from its log of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby, pairwise
from typing import Any

from agileml.config.job import JobConfig
from agileml.events.run import (
    BytesSent,
    CheckpointFailed,
    CheckpointSaved,
    ClockDone,
    CutCommitted,
    FaultFired,
    MachineLost,
    MachineQuarantined,
    MachineReleased,
    MachinesJoined,
    MembershipChanged,
    PlanFinished,
    PlanFired,
    ProcessDied,
    RunFailed,
    RunFinished,
    RunRestarted,
    RunStopped,
    WorkersSpent,
)
from agileml.events.schema import Log, events_of
from agileml.events.sums import ClocksDone, CutsCommitted
from agileml.runs.folder import for_others
from agileml.runs.help import help_rows
from agileml.runs.thinning import begun_s, clocks_of
from agileml.runs.work import waiting_share, work_windows


def summarize(
    log: Log,
    config: JobConfig,
    *,
    params_sha256: str,
    metrics: Mapping[str, float],
    split: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """The content of summary.json. `log` is in the order of time."""
    clocks, stopped = clocks_kept(log), stopped_in(log)
    checkpoints = events_of(log, CheckpointSaved)
    return {
        "params_sha256": params_sha256,
        # In a long log one event stands for many clocks, perhaps for some before a stop and some after it.
        "clocks": stopped.clock if stopped else max((done.clock for done in clocks), default=0),
        "stopped": stopped is not None,
        **resumed_from(log),
        "clocks_redone": clocks_redone(log),
        "loss": clocks[-1].loss if clocks else None,
        "metrics": dict(metrics),
        "stages": stages(log),
        "seconds": seconds(log),
        "longest_gap_s": longest_gap_s(log),
        "machines": machines(log),
        "changes": len(events_of(log, MembershipChanged)),
        "cuts": len(events_of(log, CutCommitted)) + sum(each.count for each in events_of(log, CutsCommitted)),
        "bytes": bytes_by_kind(log),
        "time_spent_s": time_spent_s(log),
        "waiting_share": waiting_share(work_windows(log)),
        "help": {
            "units": sum(row.units for row in help_rows(log)),
            "spared_s": sum(row.spared_s for row in help_rows(log)),
        },
        "plan": {
            "planned": len(config.plan),
            "fired": len(fired_in(log)),
            "finished": len({finished.index for finished in events_of(log, PlanFinished)}),
        },
        "faults": faults(log),
        **restarts(log),
        "failures": len(events_of(log, ProcessDied)),
        "quarantined": len({sick.machine for sick in events_of(log, MachineQuarantined)}),
        "checkpoints": {
            "written": len(checkpoints),
            "failed": len(events_of(log, CheckpointFailed)),
            "newest_clock": max((saved.clock for saved in checkpoints), default=None),
        },
        "seed": config.seed,
        "split": for_others(split),  # it may name its data
        "versions": dict(versions),
    }


def fired_in(log: Log) -> set[int]:
    """The numbers of the planned events that fired.

    What finished has fired, though the controller that fired it may have died before the log had that.
    """
    return {each.index for each in events_of(log, PlanFired)} | {
        each.index for each in events_of(log, PlanFinished)
    }


def clocks_kept(log: Log) -> list[ClockDone]:
    """The clocks that were done, without those after the cut that a stopped run ended with."""
    done = [each.event for each in clocks_of(log)]
    stopped = stopped_in(log)
    return [each for each in done if each.clock <= stopped.clock] if stopped else done


def stopped_in(log: Log) -> RunStopped | None:
    """The stop that the run ended with; None without one, and where the run went on after it in a new process: the one
    that was told to stop had died before it wrote the result.
    """
    ends = [each.event for each in log if isinstance(each.event, RunStopped | RunRestarted)]
    return ends[-1] if ends and isinstance(ends[-1], RunStopped) else None


def goes_on(log: Log) -> bool:
    """True where the run began again after it had ended, if it had: a summary is that of a process before."""
    ends = [each.event for each in log if isinstance(each.event, RunFinished | RunFailed | RunRestarted)]
    return bool(ends) and isinstance(ends[-1], RunRestarted)


def stages(log: Log) -> list[int]:
    """The stages of the run, in order, without repeats."""
    return [stage for stage, _ in groupby(change.stage for change in events_of(log, MembershipChanged))]


def clocks_redone(log: Log) -> int:
    """Completed clocks that were computed again, over all rollbacks and restarts."""
    return sum(each.event.redone for each in log if isinstance(each.event, MembershipChanged | RunRestarted))


def resumed_from(log: Log) -> dict[str, int]:
    """The clock of the checkpoint that the run began from; {} of one that began at its start."""
    first = next((each.event for each in log if isinstance(each.event, MembershipChanged)), None)
    return {"resumed_from": first.base} if first is not None and first.base else {}


def restarts(log: Log) -> dict[str, Any]:
    """How often the head died, and the longest time from the last clock before to the first after; {} if never."""
    found: list[float] = []
    last_s, is_waiting = 0.0, False
    for each in log:
        match each.event:
            case RunRestarted():
                is_waiting = True
            case ClockDone() | ClocksDone() as done:
                if is_waiting:
                    found.append(begun_s(each.t_s, done) - last_s)
                last_s, is_waiting = each.t_s, False
    count = len(events_of(log, RunRestarted))
    return {"restarts": {"count": count, "longest_s": max(found, default=None)}} if count else {}


def longest_gap_s(log: Log) -> float | None:
    """The longest time between two consecutive clocks; None with fewer than two."""
    times_s = [(each.t_s, each.event) for each in log if isinstance(each.event, ClockDone | ClocksDone)]
    gaps_s = [begun_s(later_s, done) - earlier_s for (earlier_s, _), (later_s, done) in pairwise(times_s)]
    gaps_s += [done.longest_s for _, done in times_s if isinstance(done, ClocksDone)]
    return max(gaps_s, default=None)


def seconds(log: Log) -> float:
    """The length of the run: as it reported at its end, or else the time of its newest event."""
    finished = events_of(log, RunFinished)
    if finished:
        return finished[-1].seconds
    return log[-1].t_s if log else 0.0


def bytes_by_kind(log: Log) -> dict[str, int]:
    """Bytes sent over the whole run, by purpose. After a restart of the head they are counted anew."""
    total: Counter[str] = Counter()
    newest: Mapping[str, int] = {}
    for each in log:
        match each.event:
            case RunRestarted():
                total.update(newest)
                newest = {}
            case BytesSent(by_kind):
                newest = by_kind
    total.update(newest)
    return dict(total)


def spent_by_machine(log: Log) -> dict[str, Mapping[str, float]]:
    """By machine, the seconds that its worker spent on each activity."""
    found: dict[str, Mapping[str, float]] = {}
    for spent in events_of(log, WorkersSpent):
        found |= spent.by_machine
    return found


def time_spent_s(log: Log) -> dict[str, float]:
    """The seconds of all machines' workers together, by activity."""
    total: Counter[str] = Counter()
    for spent in spent_by_machine(log).values():
        total.update(spent)
    return {what: round(seconds, 6) for what, seconds in total.items()}


def faults(log: Log) -> dict[str, int]:
    """Planned faults that struck, by kind."""
    return dict(sorted(Counter(fired.fault.value for fired in events_of(log, FaultFired)).items()))


def machines(log: Log) -> dict[str, dict[str, int]]:
    """By tier: machines that started the run, joined later, left after a notice, and were lost, also with the head.

    A machine that was lost before it joined is of tier "unknown". A loss that is detected twice, or reported again to a
    new controller, counts once, and none of a machine that has left.
    """
    tier_of: dict[str, str] = {}
    counts: dict[str, Counter[str]] = {}

    def count(machine: str, what: str) -> None:
        counts.setdefault(tier_of.get(machine, "unknown"), Counter())[what] += 1

    running = False
    present: set[str] = set()
    away: set[str] = set()
    for each in log:
        match each.event:
            case MachinesJoined(joined):
                tier_of |= joined
                away -= joined.keys()
                present |= joined.keys()
                for machine in joined:
                    count(machine, "joined" if running else "started")
            case MembershipChanged():
                running = True
            case MachineReleased(machine):
                count(machine, "left")
                away.add(machine)
                present.discard(machine)
            case MachineLost(machine) if machine not in away:
                count(machine, "lost")
                away.add(machine)
                present.discard(machine)
            case RunRestarted():
                for machine in sorted(present):
                    count(machine, "lost")
                present, running = set(), False
    order = ("started", "joined", "left", "lost")
    return {str(tier): {what: counts[tier][what] for what in order} for tier in sorted(counts)}
