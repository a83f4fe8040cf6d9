"""When to send again what was not answered: patiently, because what is large may only be slow.

A message that takes longer than the first wait must not be sent again and again behind itself: each wait is twice as
long as the one before. And while anything comes from the peer, the answer may be on its way behind it (messages keep
their order): then the first wait counts from the last sign of the peer, as long as that is not the longest wait.
"""

from __future__ import annotations

from collections.abc import Hashable

LONGEST = 16  # waits: the longest one is so many times the first


class RetryBackoff:
    """Asked in rounds, `begin` to `end`, about everything that is not answered yet."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._now_s = 0.0
        self._waits: dict[Hashable, tuple[float, float]] = {}  # key -> (sent, wait from then)
        self._asked: dict[Hashable, tuple[float, float]] = {}
        self._heard_s: dict[str, float] = {}

    def heard(self, peer: str, now_s: float) -> None:
        """Something came from a peer, a piece of a message for instance."""
        self._heard_s[peer] = now_s

    def begin(self, now_s: float) -> None:
        """A round begins."""
        self._now_s = now_s
        self._asked = {}

    def is_due(self, key: Hashable, peer: str | None = None) -> bool:
        """True when this was not answered for its whole wait. What is new was sent just now: it waits first.

        `peer`: from which the answer comes behind whatever else comes from there; None: nothing else tells.
        """
        sent_s, wait_s = self._waits.get(key, (self._now_s, self._first_s))
        waited_s = self._now_s - sent_s
        quiet_s = waited_s if peer is None else self._now_s - self._heard_s.get(peer, sent_s)
        is_due = waited_s >= wait_s and (quiet_s >= self._first_s or waited_s >= LONGEST * self._first_s)
        if is_due:
            sent_s, wait_s = self._now_s, min(2 * wait_s, LONGEST * self._first_s)
        self._asked[key] = (sent_s, wait_s)
        return is_due

    def end(self) -> None:
        """Forget what nobody asked about: it is answered."""
        self._waits = self._asked
