"""When an instance or node counts as orphaned: its head was silent for too long. Pure.

Only time in which the watchdog listened counts: after a freeze or suspend of its own it does not blame the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LOOKS = 10  # questions within the time after which a node is orphaned
LONGEST_PERIOD_S = 5.0


@dataclass(frozen=True)
class Silence:
    """How long the head has been silent. `asked_s`: time of the last question, on a monotonic clock."""

    after_s: float
    silent_s: float = 0.0
    asked_s: float | None = None

    @property
    def period_s(self) -> float:
        """Seconds between two questions, and the most to wait for an answer."""
        return min(self.after_s / LOOKS, LONGEST_PERIOD_S)

    def asked(self, now_s: float, answered: bool) -> Silence:
        """Count one question. Without an answer it adds the time since the last one, at most three periods."""
        since_s = 0.0 if self.asked_s is None else min(now_s - self.asked_s, 3 * self.period_s)
        return replace(self, silent_s=0.0 if answered else self.silent_s + since_s, asked_s=now_s)

    @property
    def is_orphaned(self) -> bool:
        """True two periods early, so that the node ends before `after_s` is over."""
        return self.silent_s >= self.after_s - 2 * self.period_s
