"""What a link between machines carries, learned from what had to travel anyway: cuts and moved partitions.

Nothing is probed. A transfer shares its links with the clocks that go on beside it, or waits for something else, so
what it was seen to carry is what a link carries at least: the fastest of the last few counts. Links are taken to be
alike, each way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from agileml.core.protocol.inputs import Measured

KEPT = 8  # transfers


@dataclass(frozen=True)
class LinkRule:
    """Transfers of less than `least_bytes` through their busiest machine say nothing of links; of the seconds of the
    others, the first `settle_s` are not the links' (heartbeats, round trips)."""

    least_bytes: int = 1 << 20
    settle_s: float = 0.3


class LinkRate:
    """Learns. `bytes_per_s` is None until something is known; infinite where links held nothing up."""

    def __init__(self, rule: LinkRule) -> None:
        self._rule = rule
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._reports: dict[str, deque[tuple[float, Measured]]] = {}

    @property
    def bytes_per_s(self) -> float | None:
        """What a link carries each way, at least."""
        return max(self._rates, default=None)

    def measured(self, event: Measured, now_s: float) -> None:
        """A machine says what it has received so far."""
        self._reports.setdefault(event.node, deque(maxlen=64)).append((now_s, event))

    def arrived(self, size_bytes: Mapping[str, int], since_s: float, now_s: float) -> None:
        """So many bytes went through each of these machines since then, beside what the clocks took."""
        if max(size_bytes.values(), default=0) < self._rule.least_bytes:
            return
        seconds = now_s - since_s - self._rule.settle_s
        if seconds <= 0:
            self._rates.append(float("inf"))
            return
        self._rates.append(
            max(size / seconds + self._clocks(node, since_s) for node, size in size_bytes.items())
        )

    def _clocks(self, node: str, since_s: float) -> float:
        """Bytes a second of parameters and sums that a machine received since then."""
        reports = [event for at_s, event in self._reports.get(node, ()) if at_s >= since_s]
        if len(reports) < 2 or (seconds := reports[-1].at_s - reports[0].at_s) <= 0:
            return 0.0
        received = [event.pulled + event.pushed for event in (reports[0], reports[-1])]
        return max(0, received[1] - received[0]) / seconds
