"""Simulated time: actions in the order of their times, in processes that may be dead or frozen."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Process:
    """Something that runs on a machine: it can be dead, or frozen until some time."""

    name: str
    is_dead: bool = False
    frozen_until_s: float = 0.0
    late: list[Callable[[], None]] = field(default_factory=list)  # what arrived while it was frozen
    cut_until_s: float = 0.0  # no message gets through, either way
    slow_until_s: float = 0.0  # computes ten times slower


class Timeline:
    """What is still to happen. Actions of one time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def go_on(self) -> bool:
        """Do what comes next; False when nothing is left."""
        if not self._heap:
            return False
        self.now_s, _, action = heapq.heappop(self._heap)
        action()
        return True

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at_s, self._sequence, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self.now_s + seconds, action)

    def on(self, process: Process, action: Callable[[], None]) -> None:
        """Do something inside a process: nothing if it is dead, later if it is frozen."""
        if process.is_dead:
            return
        if self.now_s < process.frozen_until_s:
            process.late.append(action)
        else:
            action()

    def freeze(self, process: Process, seconds: float) -> None:
        process.frozen_until_s = max(process.frozen_until_s, self.now_s + seconds)
        self.at(process.frozen_until_s, lambda: self.wake(process))

    def wake(self, process: Process) -> None:
        if self.now_s >= process.frozen_until_s:
            late, process.late = process.late, []
            for action in late:
                self.on(process, action)
