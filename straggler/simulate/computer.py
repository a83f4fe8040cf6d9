"""A simulated worker's progress through its work, at the speed of its profile."""

from __future__ import annotations

import math

from straggler.flexrr.protocol import Bundle, Message
from straggler.flexrr.worker import FlexRrWorker
from straggler.simulate.profile import SpeedProfile
from straggler.speed.predictors import FREE

SECOND_NS = 1_000_000_000


class Computer:
    """The progress of a worker through its present bundle."""

    __slots__ = (
        "begun_ns", "bundle", "done", "generation", "idle_since_ns", "machine", "mailbox", "profile",
        "read_ns", "round_ns", "seen", "stop", "target", "task", "unit_work", "wants", "work",
    )  # fmt: skip

    def __init__(self, machine: FlexRrWorker, profile: SpeedProfile, unit_work: float) -> None:
        self.machine = machine
        self.profile = profile
        self.unit_work = unit_work
        self.bundle: Bundle | None = None
        self.stop = 0  # units of the bundle to compute
        self.done = 0  # of them, as of the last check
        self.target = -1  # units at which to wake up; -1: not planned
        self.generation = 0  # of the planned wake-up; older ones are void
        self.task = 0  # counts what was begun
        self.begun_ns = 0
        self.work = 0.0  # of the profile, when the present computing began
        self.mailbox: list[tuple[int, Message]] = []
        self.idle_since_ns: int | None = 0
        self.wants = True  # waits for its next round
        self.read_ns: dict[Bundle, int] = {}
        self.round_ns = 0
        self.seen = FREE

    def time_of(self, units: int, now_ns: int) -> int:
        """The time at which this many units of the present bundle are done."""
        time_s = self.profile.time_of(self.work + units * self.unit_work)
        return max(now_ns, math.ceil(time_s * SECOND_NS))

    def units_by(self, now_ns: int) -> int:
        """Whole units of the present bundle done by now."""
        spent = self.profile.work_by(now_ns / SECOND_NS) - self.work
        return min(self.stop, max(self.done, math.floor(spent / self.unit_work + 1e-6)))
