"""Planned joins, notices and faults as data, and the runner that fires them at exact clocks.

Events fire in order, each when clock `at_clock` is complete, or `at_s` seconds after the first clock could start.
Until an event is finished, training neither passes the clock of the next one nor ends: machines take seconds to start,
and clocks may take milliseconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agileml.core.protocol.inputs import Admit, Notice
from agileml.events.terms import Fault, Tier


@dataclass(frozen=True)
class PlannedJoin:
    """`count` waiting machines become members."""

    at_clock: int | None
    count: int
    tier: Tier = Tier.TRANSIENT
    at_s: float | None = None

    def __str__(self) -> str:
        return f"{_when(self)}: join {self.count} {self.tier}"


@dataclass(frozen=True)
class PlannedNotice:
    """`count` transient machines (None: all) get a preemption notice of `warning_s` seconds."""

    at_clock: int | None
    count: int | None
    warning_s: float
    at_s: float | None = None

    def __str__(self) -> str:
        who = "all" if self.count is None else self.count
        return f"{_when(self)}: notice {who}, {self.warning_s:g} s ahead"


@dataclass(frozen=True)
class PlannedFault:
    """A fault of `count` machines (None: all), or of the controller, for `seconds`; SLOW and SPEED by `factor`.

    SPEED concerns the machine of the name `machine`.
    """

    at_clock: int | None
    kind: Fault
    count: int | None = 1  # None: all
    seconds: float = 0.0
    factor: float = 1.0
    at_s: float | None = None
    machine: str = ""

    def __str__(self) -> str:
        if self.kind is Fault.SPEED:
            return f"{_when(self)}: speed {1 / self.factor:g} of {self.machine}"
        details = f", {self.seconds:g} s" if self.seconds else ""
        details += f", {self.factor:g} times" if self.kind is Fault.SLOW else ""
        return f"{_when(self)}: {self.kind} {'all' if self.count is None else self.count}{details}"


PlannedEvent = PlannedJoin | PlannedNotice | PlannedFault


def _when(event: PlannedEvent) -> str:
    return f"clock {event.at_clock}" if event.at_clock is not None else f"{event.at_s:g} s"


@dataclass(frozen=True)
class Strike:
    """Command to the shell: do this to these machines; no machine means the controller itself."""

    kind: Fault
    nodes: tuple[str, ...]
    seconds: float
    factor: float


@dataclass(frozen=True)
class Fired:
    """An event that fires now, the actions that it means, and its index in the plan."""

    index: int
    event: PlannedEvent
    actions: tuple[Admit | Notice | Strike, ...]


class PlanRunner:
    """Fires one event at a time and tells when it is finished.

    `fired`: the indices of the events that fired before a restart, in their order. `at_s` of an event counts from the
    first clock that this runner sees, after a restart too. `patience_s`: how long a join waits for missing machines;
    one that has died, or was sent away, never comes.
    """

    def __init__(
        self,
        events: Sequence[PlannedEvent],
        seed: int,
        fired: Sequence[int] = (),
        patience_s: float = math.inf,
    ) -> None:
        # The sort is stable, so events of one clock keep the plan's order. Timed events follow those at a clock.
        self.events = sorted(
            events, key=lambda e: (e.at_clock is None, e.at_clock if e.at_clock is not None else e.at_s)
        )
        self.fired = tuple(fired)
        ahead = [(i, event) for i, event in enumerate(self.events) if i not in self.fired]
        self._at_clock = [i for i, event in ahead if event.at_clock is not None]
        self._at_s = [i for i, event in ahead if event.at_clock is None]
        self._seed = seed
        self._patience_s = patience_s
        self._lacks_since_s: float | None = None  # machines of the join that is due
        self._started_s: float | None = None
        # The end of the last event may not have been logged: it is over as soon as all is quiet.
        self._running: tuple[int, frozenset[str], float] | None = (
            (fired[-1], frozenset(), 0.0) if fired else None
        )

    def fired_by(self, members: Collection[str], before: Collection[int]) -> tuple[int, ...]:
        """The events that a record with these members names as fired: a later controller does not fire them again.

        `before`: those by the record before. A join counts once one of its machines is a member: until then only this
        controller has admitted them.
        """
        if self._running is None:
            return self.fired
        index, nodes, _ = self._running
        is_open = isinstance(self.events[index], PlannedJoin) and bool(nodes) and nodes.isdisjoint(members)
        return tuple(i for i in self.fired if i != index or not is_open or i in before)

    @property
    def is_idle(self) -> bool:
        """True when every event that fired is finished."""
        return self._running is None

    @property
    def concerned(self) -> frozenset[str]:
        """The machines of the event that is not finished yet."""
        return frozenset() if self._running is None else self._running[1]

    @property
    def is_over(self) -> bool:
        """True when all events have fired and are finished."""
        return self.is_idle and not self._at_clock and not self._at_s

    def limit(self, clocks: int) -> int:
        """Clocks >= the limit may not start yet; `clocks` is the run's length."""
        if not self._at_clock:
            return clocks
        at_clock = self.events[self._at_clock[0]].at_clock
        assert at_clock is not None
        return min(clocks, at_clock)

    def drop(self) -> None:
        """Fire nothing more, and hold no clock: the run is told to stop, and an event may wait for machines."""
        self._at_clock, self._at_s = [], []

    def _due(self, completed: int, now_s: float) -> int | None:
        if self._started_s is None:
            self._started_s = now_s
        if self._at_clock and completed >= (self.events[self._at_clock[0]].at_clock or 0):
            return self._at_clock[0]
        if self._at_s and now_s - self._started_s >= (self.events[self._at_s[0]].at_s or 0.0):
            return self._at_s[0]
        return None

    def fire(
        self,
        completed: int,
        waiting: Mapping[Tier, Sequence[str]],
        members: Mapping[Tier, Sequence[str]],
        now_s: float,
    ) -> Fired | None:
        """The next event, if its time has come, with its actions.

        `waiting`: machines that are not members yet, by tier; `members`: members that stay.
        """
        if not self.is_idle or (index := self._due(completed, now_s)) is None:
            return None
        event = self.events[index]
        draw = random.Random(f"{self._seed}/{index}")
        actions: list[Admit | Notice | Strike]
        until_s = now_s
        if isinstance(event, PlannedJoin):
            chosen = list(waiting.get(event.tier, ()))[: event.count]
            if len(chosen) < event.count and self._waits(now_s):
                return None  # machines are still starting; training waits at the limit
            self._lacks_since_s = None
            actions = [Admit(node) for node in chosen]
        elif isinstance(event, PlannedNotice):
            chosen = _drawn(draw, members[Tier.TRANSIENT], event.count)
            actions = [Notice(node, now_s + event.warning_s) for node in chosen]
        else:
            chosen = self._struck(draw, event, members)
            actions = [Strike(event.kind, tuple(chosen), event.seconds, event.factor)]
            # Only the next controller can tell that this one is dead: until then nothing more fires.
            until_s = math.inf if event.kind is Fault.KILL_CONTROLLER else now_s + event.seconds
        (self._at_clock if event.at_clock is not None else self._at_s).remove(index)
        self.fired += (index,)
        self._running = (index, frozenset(chosen), until_s)
        return Fired(index, event, tuple(actions))

    def _waits(self, now_s: float) -> bool:
        """True while the machines that a join lacks may still come."""
        if self._lacks_since_s is None:
            self._lacks_since_s = now_s
        return now_s - self._lacks_since_s < self._patience_s

    @staticmethod
    def _struck(draw: random.Random, event: PlannedFault, members: Mapping[Tier, Sequence[str]]) -> list[str]:
        if event.kind is Fault.KILL_CONTROLLER:
            return []
        if event.kind is Fault.DISK_FULL:
            return list(members[Tier.RELIABLE])
        if event.kind is Fault.SPEED:
            return [node for tier in Tier for node in members[tier] if node == event.machine]
        tier = Tier.RELIABLE if event.kind is Fault.KILL_RELIABLE else Tier.TRANSIENT
        return _drawn(draw, members[tier], event.count)

    def settle(
        self, members: Collection[str], gone: Collection[str], now_s: float, *, is_quiet: bool
    ) -> tuple[int, PlannedEvent] | None:
        """The last event, if it is finished: its machines have joined or left, and all members know.

        `gone`: machines that died, and so never join.
        """
        if self._running is None or not is_quiet:
            return None
        index, nodes, until_s = self._running
        event = self.events[index]
        if now_s < until_s:
            return None
        if isinstance(event, PlannedJoin) or (
            isinstance(event, PlannedFault) and event.kind in (Fault.FREEZE, Fault.CUT, Fault.SLOW)
        ):
            is_done = nodes - set(gone) <= set(members)
        elif isinstance(event, PlannedFault) and event.kind in (
            Fault.DISK_FULL,
            Fault.KILL_CONTROLLER,
            Fault.SPEED,
        ):
            is_done = True
        else:
            is_done = not nodes & set(members)
        if not is_done:
            return None
        self._running = None
        return index, event


def _drawn(draw: random.Random, nodes: Sequence[str], count: int | None) -> list[str]:
    """`count` random nodes (None: all), or fewer where fewer are left."""
    return list(nodes) if count is None else draw.sample(list(nodes), min(count, len(nodes)))
