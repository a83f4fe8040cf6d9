"""A small job on a made market, and what its log says of the market."""

from typing import Any

from agileml.events.market import (
    AllocationEnded,
    EstimatesChanged,
)
from agileml.events.run import MembershipChanged
from agileml.events.schema import Log, events_of

MARKET: dict[str, Any] = {
    "kind": "made",
    "seed": 7,
    "types": ["c3.8xlarge", "r3.8xlarge"],
    "zones": ["us-east-1a", "us-east-1b", "us-east-1d"],
    "reliable_type": "c4.xlarge",
    "job_vcpus": 128,
    "job_hours": 1.0,
    "hours": 240,
    "speed": 1200,
    "silent_share": 0.5,
    "paced": True,
}


def job(clocks: int = 60, more: dict[str, Any] | None = None, **market: Any) -> dict[str, Any]:
    return {
        "application": "mlr",
        "data": {"kind": "digits"},
        "optimizer": {"kind": "adam", "learning_rate": 0.01},
        "clocks": clocks,
        "clocks_per_pass": 4,
        "slices": 16,
        "machines": {"reliable": 1, "max": 7},
        "stage": "thresholds",
        "stage_thresholds": [1, 3],
        "cuts": {"every_s": 0.1},
        "market": {**MARKET, **market},
        **(more or {}),
    }


def taken(log: Log) -> bool:
    """Whether the market has taken machines of the run."""
    return any(ended.ending == "evicted" for ended in events_of(log, AllocationEnded))


def seen_all(log: Log) -> bool:
    """An eviction, stage 3, and the measured speed of spot machines."""
    stages = {change.stage for change in events_of(log, MembershipChanged)}
    measured = {kind for told in events_of(log, EstimatesChanged) for kind in told.nu}
    return taken(log) and {1, 3} <= stages and bool(measured & set(MARKET["types"]))
