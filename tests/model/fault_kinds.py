"""Kinds of faults, how often each is drawn, and the drawing of one."""

from __future__ import annotations

import random
from dataclasses import dataclass

PRESSING, WAKING = "notice_owner", "freeze_owner"
ONE_WAY = ("deaf", "dumb", "mute_join")
PARTED = "part"
LEAVING = "notice_every_reliable"
FOR_GOOD_S = 1e6

# How often each kind is drawn.
GENTLE = {"join": 4, "notice": 2, "notice_all": 2, "notice_reliable": 1}
DEADLY = {
    "join": 5,
    "notice": 2,
    "short_notice": 2,
    "kill": 2,
    "kill_owner": 3,
    "kill_many": 1,
    "kill_reliable": 2,
}
ROUGH = {
    "join": 5,
    "notice": 2,
    "notice_all": 1,
    "notice_reliable": 1,
    "short_notice": 1,
    "sooner_notice": 1,
    "kill": 2,
    "kill_owner": 3,
    "kill_many": 1,
    "kill_reliable": 2,
    "freeze": 2,
    "freeze_reliable": 1,
    "cut": 1,
    "slow": 1,
    "kill_controller": 1,
    "freeze_controller": 1,
    "double_controller": 1,
}

# Messages in the middle of a change at which an aimed fault strikes.
AIMS = (
    "Prepare",
    "Promise",
    "Fetch",
    "Get",
    "Copy",
    "Installed",
    "Announce",
    "Persist",
    "NameCut",
    "Part",
    "Stored",
)


@dataclass(frozen=True)
class Fault:
    """`kind` happens at `at_s`, or (aimed) when the `count`-th message of type `aim` after `at_s` is sent."""

    kind: str
    at_s: float
    number: int = 1
    seconds: float = 0.0
    aim: str = ""
    count: int = 1


def draw_fault(rng: random.Random, weights: dict[str, int], span_s: float) -> Fault:
    """One of these kinds, within the first seconds of a run; a rough one may be aimed at a message."""
    at_s = rng.uniform(0.2, span_s)
    gentle = weights is GENTLE
    kind = rng.choices(list(weights), list(weights.values()))[0]
    number = rng.randint(1, 3)
    seconds = {
        "notice": rng.choice([5.0, 60.0]) if not gentle else 60.0,
        "notice_all": rng.choice([5.0, 60.0]) if not gentle else 60.0,
        "notice_reliable": 60.0,
        "short_notice": rng.uniform(0.0, 0.3),
        "sooner_notice": rng.uniform(0.0, 1.0),
        "freeze": rng.choice([0.3, 1.5, 4.0]),
        "freeze_reliable": rng.choice([0.3, 1.5, 4.0]),
        "cut": rng.choice([0.3, 1.5, 4.0]),
        "slow": rng.choice([1.0, 4.0]),
        "freeze_controller": rng.choice([0.3, 1.5, 4.0]),
        "kill_controller": rng.uniform(0.1, 1.0),
    }.get(kind, 0.0)
    if not gentle and kind != "join" and rng.random() < 0.4:
        return Fault(kind, at_s, number, seconds, aim=rng.choice(AIMS), count=rng.randint(1, 6))
    return Fault(kind, at_s, number, seconds)


def draw_pressing(rng: random.Random) -> Fault:
    """A notice for machines that serve, over links that may be too slow for it; some while a cut is on its way."""
    at_s, number, seconds = rng.uniform(2.0, 8.0), rng.randint(1, 2), rng.uniform(0.05, 4.0)
    aim = rng.choice(["NameCut", "Part", "Stored"]) if rng.random() < 0.5 else ""
    return Fault(PRESSING, at_s, number, seconds, aim, rng.randint(1, 6))
