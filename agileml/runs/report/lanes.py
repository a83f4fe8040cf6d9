"""The machines of a run over time: when each came, was noticed and went, and why. Folded from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from agileml.events.run import (
    MachineLost,
    MachineNoticed,
    MachineReleased,
    MachinesJoined,
    RunRestarted,
)
from agileml.events.schema import RunEvent
from agileml.events.terms import Loss

HEAD_LOST = "head lost"
LEFT = "left"
IN_ORDER = (LEFT, str(Loss.GIVEN_BACK), str(Loss.PROCESS_ENDED))  # ends that cost nothing


@dataclass
class Lane:
    """A machine over time. `to_s` None: it is still a member; otherwise `end` says why it left."""

    machine: str
    tier: str
    from_s: float
    to_s: float | None = None
    end: str = ""
    marks: list[tuple[float, str]] = field(default_factory=list)

    @property
    def is_sudden(self) -> bool:
        """It went without leaving first, which may have cost work."""
        return self.to_s is not None and self.end not in IN_ORDER


class MachineLanes:
    """Takes events in their order; of ended machines at most `most` are kept, the newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: dict[str, Lane] = {}

    @property
    def all(self) -> list[Lane]:
        """The lanes, the oldest first."""
        return list(self._lanes.values())

    def add(self, t_s: float, event: RunEvent) -> None:
        """Take the next event."""
        match event:
            case MachinesJoined(machines):
                for name, tier in machines.items():
                    lane = self._lanes.setdefault(name, Lane(name, str(tier), t_s))
                    if lane.to_s is not None:  # it was silent for a while
                        lane.to_s, lane.end = None, ""
                        lane.marks.append((t_s, "back"))
                self._forget_old()
            case MachineNoticed(name):
                if name in self._lanes:
                    self._lanes[name].marks.append((t_s, "notice"))
            case MachineReleased(name):
                self._end(name, t_s, LEFT)
            case MachineLost(name, loss):
                self._end(name, t_s, str(loss))
            case RunRestarted():
                for name in self._lanes:
                    self._end(name, t_s, HEAD_LOST)

    def _end(self, name: str, t_s: float, reason: str) -> None:
        lane = self._lanes.get(name)
        if lane is not None and lane.to_s is None:
            lane.to_s, lane.end = t_s, reason

    def _forget_old(self) -> None:
        ended = sorted((lane.to_s, name) for name, lane in self._lanes.items() if lane.to_s is not None)
        for _, name in ended[: max(0, len(self._lanes) - self._most)]:
            del self._lanes[name]
