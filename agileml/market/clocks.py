"""Turns the events of a run into samples for BidBrain's estimators: each clock with its machines. Pure.

A clock begins where the one before it ended. Every membership change during a clock begins a new stretch of it; a
change in which machines are missing that were taken is an eviction. Clocks that are done again after a rollback are no
new work: their time is the cost of the eviction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agileml.core.protocol.commands import Happened
from agileml.events.run import ClockDone, MachineNoticed, MembershipChanged
from agileml.events.terms import Cause
from bidbrain.live.estimators import Clock, Disturbance, Stretch


@dataclass(frozen=True)
class _Turn:
    """A membership change: when it came, the machines that work since then, by type, and how it disturbs a clock."""

    at_s: float
    machines: Mapping[str, int]
    disturbance: Disturbance


@dataclass
class RunClocks:
    """Takes the events of a run in their order, returns its clocks.

    work_vcpu_s: of one clock. speed: market seconds per second. kind_of: the instance type of a machine (None:
    unknown). planned: machines that leave because we give their instances back.
    """

    work_vcpu_s: float
    speed: float
    kind_of: Callable[[str], str | None]
    planned: set[str] = field(default_factory=set)
    _noticed: set[str] = field(default_factory=set)
    _members: frozenset[str] = frozenset()
    _turns: list[_Turn] = field(default_factory=list)
    _machines: Mapping[str, int] | None = None
    _last_s: float | None = None
    _reached: int = 0

    @property
    def machines(self) -> int:
        """Machines of the run now, which compute or hold parameters."""
        return len(self._members)

    def happened(self, happened: Happened) -> Clock | None:
        """Take an event of the run; returns the clock that it completes."""
        match happened.event:
            case MachineNoticed(machine):
                self._noticed.add(machine)
            case MembershipChanged() as change:
                self._changed(happened.at_s, change)
            case ClockDone(number):
                return self._clock(happened.at_s, number)
        return None

    def _changed(self, at_s: float, change: MembershipChanged) -> None:
        members = frozenset((*change.workers, *change.owners))
        left = (self._members - members) & self._noticed
        evicted = change.rolled_back or change.trigger.cause is Cause.FAILURE or left - self.planned
        kinds = Counter(self.kind_of(name) or "" for name in change.workers)
        first = not self._members
        self._members = members
        if first:
            self._machines, self._last_s = kinds, at_s
            return
        what = Disturbance.EVICTION if evicted else Disturbance.CHANGE
        self._turns.append(_Turn(at_s, kinds, what))

    def _clock(self, at_s: float, number: int) -> Clock | None:
        """Clock `number` is done. The first clock also loads and compiles: it is no sample."""
        last_s, machines = self._last_s, self._machines
        is_new, is_first = number > self._reached, self._reached == 0
        self._reached = max(self._reached, number)
        if last_s is None or machines is None or at_s <= last_s:
            return None
        turns = [turn for turn in self._turns if turn.at_s < at_s]
        self._turns = self._turns[len(turns) :]
        self._last_s, self._machines = at_s, turns[-1].machines if turns else machines
        if is_first:
            return None
        begins = [last_s, *(max(turn.at_s, last_s) for turn in turns), at_s]
        held = [machines, *(turn.machines for turn in turns)]
        stretches = tuple(
            Stretch((end - begin) * self.speed, own)
            for begin, end, own in zip(begins, begins[1:], held, strict=False)
            if end > begin
        )
        if any("" in stretch.machines for stretch in stretches):
            return None
        what, events = _disturbance([turn.disturbance for turn in turns], is_new)
        return Clock(stretches, self.work_vcpu_s if is_new else 0.0, what, events)


def _disturbance(turns: list[Disturbance], is_new: bool) -> tuple[Disturbance, int]:
    """The disturbance of a clock, and how many. Machines of one allocation may leave one by one: one eviction."""
    if Disturbance.EVICTION in turns:
        return Disturbance.EVICTION, 1
    if not is_new:
        return Disturbance.EVICTION, 0
    return (Disturbance.CHANGE, len(turns)) if turns else (Disturbance.NONE, 0)
