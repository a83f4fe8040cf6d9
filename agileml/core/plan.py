"""Scheduled joins and notices as data, and the runner that makes them exact.

An event happens when clock `at_clock` is complete, in order. Training does not pass the clock of the next event, nor
end, while an earlier one is unfinished: without that, clocks of milliseconds would outrun machines that take seconds.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agileml.core.events import Admit, Notice
from agileml.core.tier import Tier


@dataclass(frozen=True)
class PlannedJoin:
    """`count` machines that wait become members."""

    at_clock: int
    count: int
    tier: Tier = Tier.TRANSIENT

    def __str__(self) -> str:
        return f"clock {self.at_clock}: join {self.count} {self.tier}"


@dataclass(frozen=True)
class PlannedNotice:
    """`count` transient machines (None: all) are told that they go in `warning_s` seconds."""

    at_clock: int
    count: int | None
    warning_s: float

    def __str__(self) -> str:
        who = "all" if self.count is None else self.count
        return f"clock {self.at_clock}: notice {who}, {self.warning_s:g} s ahead"


PlannedEvent = PlannedJoin | PlannedNotice


class PlanRunner:
    """Fires one event at a time and knows when it is finished."""

    def __init__(self, events: Sequence[PlannedEvent], seed: int, fired: int = 0) -> None:
        self.events = sorted(
            events, key=lambda event: event.at_clock
        )  # stable: a clock keeps the plan's order
        self.fired = fired
        self._seed = seed
        self._running: tuple[PlannedEvent, frozenset[str]] | None = None

    @property
    def is_idle(self) -> bool:
        """True when nothing that fired is unfinished."""
        return self._running is None

    @property
    def is_over(self) -> bool:
        """True when everything has happened."""
        return self.is_idle and self.fired == len(self.events)

    def limit(self, clocks: int) -> int:
        """Clocks >= the limit may not start yet; `clocks` is the run's length."""
        return min(clocks, self.events[self.fired].at_clock) if self.fired < len(self.events) else clocks

    def fire(
        self, completed: int, waiting: Mapping[Tier, Sequence[str]], transient: Sequence[str], now_s: float
    ) -> tuple[PlannedEvent, list[Admit | Notice]] | None:
        """The next event, if its clock is complete, and what it means for which machines.

        `waiting` are machines that are no members yet, by tier; `transient` the transient members.
        """
        if not self.is_idle or self.fired == len(self.events):
            return None
        event = self.events[self.fired]
        if completed < event.at_clock:
            return None
        actions: list[Admit | Notice]
        if isinstance(event, PlannedJoin):
            chosen = list(waiting.get(event.tier, ()))[: event.count]
            if len(chosen) < event.count:
                return None  # machines are still starting; training waits at the limit
            actions = [Admit(node) for node in chosen]
        else:
            chosen = list(transient)
            if event.count is not None:
                count = min(event.count, len(chosen))  # fewer are left when some died
                chosen = random.Random(f"{self._seed}/{self.fired}").sample(chosen, count)
            actions = [Notice(node, now_s + event.warning_s) for node in chosen]
        self.fired += 1
        self._running = (event, frozenset(chosen))
        return event, actions

    def settle(
        self, members: Collection[str], gone: Collection[str], *, is_quiet: bool
    ) -> PlannedEvent | None:
        """The running event if it is finished: its machines are in (or out), and everybody knows.

        `gone` are machines that died: they come no more.
        """
        if self._running is None or not is_quiet:
            return None
        event, nodes = self._running
        wanted = nodes - set(gone) if isinstance(event, PlannedJoin) else frozenset()
        if nodes & set(members) != wanted:
            return None
        self._running = None
        return event
