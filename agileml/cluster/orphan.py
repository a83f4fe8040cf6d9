"""When a machine counts as orphaned: its head has been silent for too long. Pure.

Only silence that was listened to counts: a machine that was frozen or suspended itself does not blame the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LOOKS = 10  # in the time after which a machine is orphaned
LONGEST_PERIOD_S = 5.0


@dataclass(frozen=True)
class Silence:
    """How long the head has been silent. `asked_s`: when it was asked last, any clock that only goes forward."""

    after_s: float
    silent_s: float = 0.0
    asked_s: float | None = None

    @property
    def period_s(self) -> float:
        """How often to ask, and how long to wait for an answer at most."""
        return min(self.after_s / LOOKS, LONGEST_PERIOD_S)

    def asked(self, now_s: float, answered: bool) -> Silence:
        """The head was asked. An unanswered question adds the time since the one before, at most three periods."""
        since_s = 0.0 if self.asked_s is None else min(now_s - self.asked_s, 3 * self.period_s)
        return replace(self, silent_s=0.0 if answered else self.silent_s + since_s, asked_s=now_s)

    @property
    def is_orphaned(self) -> bool:
        """Two periods early, so that the end comes before `after_s` is over."""
        return self.silent_s >= self.after_s - 2 * self.period_s
