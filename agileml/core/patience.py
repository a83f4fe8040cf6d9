"""When to send again what was not answered: patiently, because what is large may only be slow.

A message that takes longer than the first wait must not be sent again and again behind itself: each wait is twice as
long as the one before.
"""

from __future__ import annotations

from collections.abc import Hashable

LONGEST = 16  # waits: the longest one is so many times the first


class Patience:
    """Asked in rounds, `begin` to `end`, about everything that is not answered yet."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._now_s = 0.0
        self._waits: dict[Hashable, tuple[float, float]] = {}  # key -> (due, wait until then)
        self._asked: dict[Hashable, tuple[float, float]] = {}

    def begin(self, now_s: float) -> None:
        """A round begins."""
        self._now_s = now_s
        self._asked = {}

    def is_due(self, key: Hashable) -> bool:
        """True when this was not answered for its whole wait. What is new was sent just now: it waits first."""
        due_s, wait_s = self._waits.get(key, (self._now_s + self._first_s, self._first_s))
        is_due = self._now_s >= due_s
        if is_due:
            wait_s = min(2 * wait_s, LONGEST * self._first_s)
            due_s = self._now_s + wait_s
        self._asked[key] = (due_s, wait_s)
        return is_due

    def end(self) -> None:
        """Forget what nobody asked about: it is answered."""
        self._waits = self._asked
