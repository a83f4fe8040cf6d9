"""How long a machine's computations take when it stands for a slower one: virtual compute, or pauses after each unit.

With `unit_s` a computation of n units lasts n unit_s / speed, whatever it really takes (which must be less): the
machine pauses until an absolute deadline. Without `unit_s` it lasts 1 / speed times as long as it really takes. Either
way errors do not add up: after a pause that ends late the next one is shorter.
"""

from __future__ import annotations

# Being late by up to so much shortens later pauses; a machine that cannot keep up saves up no more.
MOST_CREDIT_S = 0.05


class Pace:
    """The seconds that one machine still has to pause. Time is an argument, of one monotonic clock."""

    def __init__(self, unit_s: float = 0.0, speed: float = 1.0) -> None:
        assert unit_s >= 0 and speed > 0, (unit_s, speed)
        self.unit_s = unit_s
        self.speed = speed
        self._slow: tuple[float, float] = (1.0, 0.0)  # factor, until
        self._owed_s = 0.0

    def slow_down(self, factor: float, until_s: float) -> None:
        """Until `until_s`, computations last `factor` times as long."""
        self._slow = (factor, until_s)

    def computed(self, units: int, took_s: float, now_s: float) -> float:
        """A computation of `units` units took `took_s` until now: the seconds to pause; none if not positive."""
        due_s = (units * self.unit_s or took_s) / self.speed
        factor, until_s = self._slow
        if now_s < until_s:
            due_s += min((factor - 1) * due_s, until_s - now_s)
        self._owed_s = max(self._owed_s + due_s - took_s, -MOST_CREDIT_S)
        return self._owed_s

    def paused(self, seconds: float) -> None:
        """Take off a pause that lasted `seconds`, perhaps more than was asked for."""
        self._owed_s -= seconds
