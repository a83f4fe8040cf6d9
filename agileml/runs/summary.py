"""summary.json of a run: as much as possible is derived from its log of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from agileml.config.job import JobConfig

Event = Mapping[str, Any]


def summarize(
    events: Sequence[Event],
    config: JobConfig,
    *,
    params_sha256: str,
    metrics: Mapping[str, float],
    split: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """What summary.json says. `events` are in the order of their time."""
    stopped = of_kind(events, "stopped")
    clocks = of_kind(events, "clock")
    if stopped:  # what came after the cut that it ended with is not in the result
        clocks = [event for event in clocks if event["clock"] <= stopped[-1]["clock"]]
    return {
        "params_sha256": params_sha256,
        "clocks": max((event["clock"] for event in clocks), default=0),
        "stopped": bool(stopped),
        "clocks_redone": clocks_redone(events),
        "loss": clocks[-1]["loss"] if clocks else None,
        "metrics": dict(metrics),
        "stages": stages(events),
        "seconds": seconds(events),
        "longest_gap_s": longest_gap_s(events),
        "machines": machines(events),
        "changes": len(of_kind(events, "change")),
        "cuts": len(of_kind(events, "cut")),
        "bytes": bytes_by_kind(events),
        "time_spent_s": time_spent_s(events),
        "plan": {
            "planned": len(config.plan),
            "fired": planned(events, "fired"),
            "finished": planned(events, "finished"),
        },
        "faults": faults(events),
        "failures": len(of_kind(events, "failure")),
        "checkpoints": {
            "written": len(of_kind(events, "checkpoint")),
            "failed": len(of_kind(events, "checkpoint_failed")),
            "newest_clock": max((event["clock"] for event in of_kind(events, "checkpoint")), default=None),
        },
        "seed": config.seed,
        "split": dict(split),
        "versions": dict(versions),
    }


def of_kind(events: Iterable[Event], *kinds: str) -> list[Event]:
    """The events of some kinds, in their order."""
    return [event for event in events if event["kind"] in kinds]


def stages(events: Sequence[Event]) -> list[int]:
    """The stages gone through, in order; one that a change keeps is named once."""
    return [stage for stage, _ in groupby(event["stage"] for event in of_kind(events, "view"))]


def clocks_redone(events: Sequence[Event]) -> int:
    """Clocks that were complete and had to be done again, over all rollbacks."""
    return sum(event.get("redone", 0) for event in of_kind(events, "view"))


def longest_gap_s(events: Sequence[Event]) -> float | None:
    """The longest time between two clocks that were completed one after the other; None with fewer than two."""
    times_s = [event["t_s"] for event in of_kind(events, "clock")]
    return max((later - earlier for earlier, later in pairwise(times_s)), default=None)


def seconds(events: Sequence[Event]) -> float:
    """How long the run took: what it says at its end, or else the time of the last event."""
    finished = of_kind(events, "finished")
    if finished:
        return float(finished[-1]["seconds"])
    return float(events[-1]["t_s"]) if events else 0.0


def bytes_by_kind(events: Sequence[Event]) -> dict[str, int]:
    """Bytes sent over the whole run by what they were for; `bytes` events carry totals so far."""
    found = of_kind(events, "bytes")
    return dict(found[-1]["by_kind"]) if found else {}


def spent_by_machine(events: Sequence[Event]) -> dict[str, dict[str, float]]:
    """By machine, the seconds that its worker spent with each thing (`core/time_spent.py` says which there are).

    `time_spent` events carry totals so far; one that left, or that a restarted controller has not heard yet, is in
    earlier ones only.
    """
    found: dict[str, dict[str, float]] = {}
    for event in of_kind(events, "time_spent"):
        found |= event["by_machine"]
    return found


def time_spent_s(events: Sequence[Event]) -> dict[str, float]:
    """The seconds of all machines' workers together, by what they were spent with."""
    total: Counter[str] = Counter()
    for spent in spent_by_machine(events).values():
        total.update(spent)
    return {what: round(seconds, 6) for what, seconds in total.items()}


def planned(events: Sequence[Event], status: str) -> int:
    """Planned events that fired or were finished; a controller that takes over may say it again."""
    return len({event["index"] for event in of_kind(events, "plan") if event["status"] == status})


def faults(events: Sequence[Event]) -> dict[str, int]:
    """Planned faults that struck, by kind."""
    return dict(sorted(Counter(str(event["fault"]) for event in of_kind(events, "fault")).items()))


def machines(events: Sequence[Event]) -> dict[str, dict[str, int]]:
    """By tier: machines that started the run, joined later, left after a notice, and were lost.

    `join` events name the tier of each machine in `tiers`; one that no event names a tier for is "unknown". A loss
    that is noticed in several ways, or told to a new controller again, is one.
    """
    tier_of: dict[str, str] = {}
    counts: dict[str, dict[str, int]] = {}

    def count(machine: str, what: str) -> None:
        tier = counts.setdefault(tier_of.get(machine, "unknown"), {})
        tier[what] = tier.get(what, 0) + 1

    running = False
    away: set[str] = set()
    for event in events:
        match event["kind"]:
            case "join":
                tier_of.update(zip(event["machines"], event.get("tiers", ()), strict=False))
                away.difference_update(event["machines"])
                for machine in event["machines"]:
                    count(machine, "joined" if running else "started")
            case "view":
                running = True
            case "released":
                for machine in event["machines"]:
                    count(machine, "left")
            case "lost":
                for machine in sorted(set(event["machines"]) - away):
                    count(machine, "lost")
                away.update(event["machines"])
    order = ("started", "joined", "left", "lost")
    return {tier: {what: counts[tier].get(what, 0) for what in order} for tier in sorted(counts)}
