"""The units, computing and waiting of one machine by clock, in windows that grow: a bounded record of any run.

After a change of the view the first FINE clocks have a window each, the next FINE windows hold two clocks each, then
four, and so on: n clocks make about FINE log2(n / FINE) windows, and a window is at most 1/FINE as long as all before
it. A window's bounds depend on the clock alone, so all machines have the same windows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FINE = 32  # windows of one length


def window(clocks_before: int) -> tuple[int, int]:
    """(first, length) of the window of the clock that comes after so many clocks of its view, counted like it."""
    level = (clocks_before // FINE + 1).bit_length() - 1
    begin = FINE * ((1 << level) - 1)
    return begin + ((clocks_before - begin) >> level << level), 1 << level


@dataclass(frozen=True)
class WorkRow:
    """The work of one machine in the clocks first .. first + clocks - 1 of a view.

    `wait_s`: from the end of computing a clock to the beginning of the next one, but for changes of members. `helped`:
    of the units, those that it computed for others, by their names. Rows of one window add up.
    """

    epoch: int
    first: int
    clocks: int
    units: int
    compute_s: float
    wait_s: float
    helped: tuple[tuple[str, int], ...] = ()


class WorkLog:
    """Collects the rows of one machine."""

    def __init__(self) -> None:
        self._epoch = self._base = 0
        self._window: tuple[int, int] | None = None  # first clock and length
        self._units = 0
        self._compute_s = self._wait_s = 0.0
        self._helped: dict[str, int] = {}
        self._rows: deque[WorkRow] = deque()

    def begin_view(self, epoch: int, base: int) -> None:
        """Count windows from clock `base` of a new view."""
        self.close()
        self._epoch, self._base = epoch, base

    def computes(self, clock: int) -> None:
        """Count units and time for this clock from now on."""
        first, length = window(max(0, clock - self._base))
        if self._window != (found := (self._base + first, length)):
            self.close()
            self._window = found

    def computed(self, units: int) -> None:
        """Count units that were computed."""
        self._units += units

    def helped(self, helpee: str, units: int) -> None:
        """Count units, of those computed, as another machine's."""
        self._helped[helpee] = self._helped.get(helpee, 0) + units

    def spent(self, compute_s: float, wait_s: float) -> None:
        """Add time that has passed."""
        self._compute_s += compute_s
        self._wait_s += wait_s

    def close(self) -> None:
        """End the present window, or this machine's part of it. Time before the first computation does not count."""
        if self._window is not None and (self._units or self._compute_s):
            helped = tuple(sorted(self._helped.items()))
            self._rows.append(
                WorkRow(self._epoch, *self._window, self._units, self._compute_s, self._wait_s, helped)
            )
            self._helped = {}
        self._window = None
        self._units, self._compute_s, self._wait_s = 0, 0.0, 0.0

    def take(self) -> tuple[WorkRow, ...]:
        """The rows that are complete; each is returned once."""
        return tuple(self._rows.popleft() for _ in range(len(self._rows)))
