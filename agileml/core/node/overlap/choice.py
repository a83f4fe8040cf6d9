"""`overlap: auto`: a machine measures its clocks and chooses whether to overlap pulling and computing.

Every machine chooses for itself, since only its own pulls and computations are affected. All count clocks from the
beginning of a view, so they try at the same time. Time is an argument; nothing here knows of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from statistics import median

SETTLE = 2  # clocks that are not measured after each turn
WINDOW = 6  # clocks that are measured
WORTH = 0.02  # of a clock: less is not worth the memory traffic, and may be noise


class _Phase(Enum):
    WITHOUT = auto()
    WITH = auto()
    DONE = auto()


@dataclass(frozen=True)
class Chosen:
    """A decision at a clock, with its reason."""

    clock: int
    overlaps: bool
    reason: str


@dataclass(frozen=True)
class _Clock:
    length_s: float
    wait_s: float


class OverlapChoice:
    """Measures some clocks without overlap and, where they wait for parameters, some with it; keeps the better."""

    def __init__(self) -> None:
        self.overlaps = False
        self._members: frozenset[str] = frozenset()
        self._phase = _Phase.WITHOUT
        self._clocks: list[_Clock] = []
        self._skip = SETTLE
        # A clock, when it began, and the seconds of waiting until then.
        self._last: tuple[int, float, float] | None = None
        self._before = _Clock(0.0, 0.0)

    @property
    def clock(self) -> int:
        """The clock that the worker came to last; -1 at the beginning of a view."""
        return -1 if self._last is None else self._last[0]

    def begin_view(self, members: frozenset[str]) -> None:
        """Begin a view. With other members than before, everything is measured anew."""
        self._last = None
        if members != self._members:
            self._members = members
            self._turn(_Phase.WITHOUT)

    def reached(self, clock: int, now_s: float, wait_s: float) -> Chosen | None:
        """Take a clock that the worker has come to, and the `wait_s` of waiting so far; return a decision, if any."""
        last, self._last = self._last, (clock, now_s, wait_s)
        if self._phase is _Phase.DONE or last is None or clock != last[0] + 1:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._clocks.append(_Clock(now_s - last[1], wait_s - last[2]))
        return self._judge(clock) if len(self._clocks) == WINDOW else None

    def _judge(self, clock: int) -> Chosen:
        found = _Clock(median(c.length_s for c in self._clocks), median(c.wait_s for c in self._clocks))
        if self._phase is _Phase.WITHOUT:
            # Overlap hides waiting behind computing, so it saves at most the shorter of the two.
            most_s = min(found.wait_s, found.length_s - found.wait_s)
            waits = f"{found.wait_s:.3g} s of a clock of {found.length_s:.3g} s are spent waiting"
            if most_s <= WORTH * found.length_s:
                self._turn(_Phase.DONE)
                return Chosen(clock, False, f"{waits}: overlap can save {max(0.0, most_s):.2g} s at most")
            self._before = found
            self._turn(_Phase.WITH)
            return Chosen(clock, True, f"{waits}: overlap, which can save up to {most_s:.2g} s, is tried")
        pays = found.length_s <= (1 - WORTH) * self._before.length_s
        self._turn(_Phase.DONE)
        self.overlaps = pays
        took = f"a clock takes {found.length_s:.3g} s with overlap and {self._before.length_s:.3g} s without"
        return Chosen(clock, pays, f"{took}: it {'stays' if pays else 'is given up'}")

    def _turn(self, phase: _Phase) -> None:
        self._phase, self._skip = phase, SETTLE
        self.overlaps = phase is _Phase.WITH
        self._clocks = []
