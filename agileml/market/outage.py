"""Reports the failure of a market once, again when its reason changes, and when it is over. Pure.

A service meets the same failure every half minute until a person renews the credentials, which may take a weekend.
"""

from __future__ import annotations

from dataclasses import dataclass, field

QUIET_S = 120.0  # without a failure, until an outage is over: a service does not ask its cloud in every step


@dataclass
class Outage:
    """Failures of a market in a row. Times are on one clock, whichever it is."""

    count: int = 0
    _since_s: float = 0.0
    _last_s: float = 0.0
    _said: set[str] = field(default_factory=set)

    def failed(self, now_s: float, reason: str, again_s: float) -> str | None:
        """Count a failure. Returns the sentence to show for a new reason; None for one that it has returned before.

        again_s: seconds from one try to the next.
        """
        if not self.count:
            self._since_s = now_s
        self.count += 1
        self._last_s = now_s
        if reason in self._said:
            return None
        self._said.add(reason)
        before = f" (failure {self.count} in a row)" if self.count > 1 else ""
        return f"{reason}{before}; it is asked again every {again_s:g} s"

    def worked(self, now_s: float) -> str | None:
        """A step of the service went through. Returns the sentence to show once the outage is over."""
        if not self.count or now_s - self._last_s < QUIET_S:
            return None
        count, lasted_s = self.count, self._last_s - self._since_s
        self.count = 0
        self._said.clear()
        return f"it answers again, after {count} failures in {lasted_s:.0f} s"
