"""The rate of links between machines, learned from cuts and moved partitions; no traffic is made to measure it.

A transfer shares its links with clocks, or waits for something else, so its rate is a lower bound of the link's: the
fastest of the last few transfers counts. All links are assumed to be alike, in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from agileml.core.protocol.inputs import Measured

KEPT = 8  # transfers


@dataclass(frozen=True)
class LinkRule:
    """The transfers that count: those with at least `least_bytes` through their busiest machine.

    The first `settle_s` seconds of each are heartbeats and round trips, and are subtracted.
    """

    least_bytes: int = 1 << 20
    settle_s: float = 0.3


class LinkRate:
    """Learns the rate. `bytes_per_s` is None until a transfer counted, and infinite if links did not limit it."""

    def __init__(self, rule: LinkRule) -> None:
        self._rule = rule
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._reports: dict[str, deque[tuple[float, Measured]]] = {}

    @property
    def bytes_per_s(self) -> float | None:
        """A lower bound of a link's rate, each way."""
        return max(self._rates, default=None)

    def measured(self, event: Measured, now_s: float) -> None:
        """Take a machine's report of the bytes that it has received so far."""
        self._reports.setdefault(event.node, deque(maxlen=64)).append((now_s, event))

    def forget(self, node: str) -> None:
        """Drop the reports of a machine that is gone."""
        self._reports.pop(node, None)

    def arrived(self, size_bytes: Mapping[str, int], since_s: float, now_s: float) -> None:
        """Learn from a transfer that began at `since_s` and has ended. `size_bytes`: its bytes through each machine,
        without the clocks'."""
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
        """Bytes per second of parameters and updates that a machine received since `since_s`."""
        reports = [event for at_s, event in self._reports.get(node, ()) if at_s >= since_s]
        if len(reports) < 2 or (seconds := reports[-1].at_s - reports[0].at_s) <= 0:
            return 0.0
        received = [event.pulled + event.pushed for event in (reports[0], reports[-1])]
        return max(0, received[1] - received[0]) / seconds
