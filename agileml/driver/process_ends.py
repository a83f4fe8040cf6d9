"""Tracks which machines' processes have ended, and which of these ends the controller does not know yet. Pure.

A reliable machine whose process dies on a living Ray node is replaced by another process, under another name. Without
reliable machines the controller would end the run, so the driver tells it of the death once a successor is up.
"""

from __future__ import annotations

from agileml.core.protocol.inputs import NodeUp

ENDED_KEPT = 1000  # names: new controllers are told of these machines, and late events name them


class ProcessEnds:
    """The ends of processes. Only the last `most` are kept: over weeks there are thousands."""

    def __init__(self, most: int = ENDED_KEPT) -> None:
        self._most = most
        self._ended: dict[str, None] = {}
        # By successor: the machine that died last of those that were up.
        self._unreported: dict[str, NodeUp] = {}

    def __contains__(self, name: object) -> bool:
        """True for a machine whose process has ended, unless that is long ago."""
        return name in self._ended

    def add(self, name: str) -> str | None:
        """Note the end of a machine's process. Returns the name of the machine that is forgotten for it, if any."""
        self._ended[name] = None
        if len(self._ended) <= self._most:
            return None
        oldest = next(iter(self._ended))
        del self._ended[oldest]
        return oldest

    def replaced(self, dead: NodeUp, successor: str, *, was_up: bool) -> None:
        """A process of this name is to take the place of a dead one, of which the controller is not told yet.

        If the dead one never came up, the controller does not know it, and is still to hear of the one before.
        """
        before = self._unreported.pop(dead.node, None)
        if (unreported := dead if was_up else before) is not None:
            self._unreported[successor] = unreported

    def settled(self, successor: str) -> NodeUp | None:
        """The machine whose end the controller must be told now that a successor is up, or none will come."""
        return self._unreported.pop(successor, None)

    def is_reported(self, name: str) -> bool:
        """Whether a controller that takes over is told of the end of this machine."""
        return name in self._ended and all(dead.node != name for dead in self._unreported.values())
