"""The place of a computation in its units: how far it has come, and where it is to end.

Two threads share it. The computing thread claims the next few units before it begins them; until then the serving
thread may move the end nearer or abort the rest. Claims are made under a lock, so a unit is either begun or given away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Cursor:
    """Units 0 .. `units` - 1 of a computation, in the order of computing.

    `chunk`: the most units that are begun at once. 0: as many as the computation asks for.
    """

    def __init__(self, units: int, chunk: int = 0) -> None:
        self.units = units
        self.chunk = chunk
        self.begun = 0
        self.stop = units
        self.mark: int | None = None  # `passes` is to tell when so many units are begun
        self.is_aborted = False
        self.is_over = False  # the computing thread reads the inputs no more
        self._lock = threading.Lock()

    def claim(self, most: int) -> int:
        """Begin the next units, at most `most`. Returns how many, 0 at the end."""
        with self._lock:
            count = min(most, self.chunk or most, self.stop - self.begun)
            self.begun += count
            return count

    def passes(self) -> bool:
        """True if the mark is reached, and then forget it. The computing thread asks after each claim."""
        if self.mark is None or self.begun < self.mark:
            return False
        self.mark = None
        return True

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold back further claims, for a decision that depends on the units begun so far."""
        with self._lock:
            yield self.begun

    def end_at(self, stop: int) -> None:
        """Move the end nearer. Only while the cursor is held, and not before what has begun."""
        assert self.begun <= stop <= self.stop, (self.begun, stop, self.stop)
        self.stop = stop

    def abort(self) -> None:
        """Begin no other chunk; the results so far are not wanted."""
        with self._lock:
            self.stop, self.is_aborted = self.begun, True
