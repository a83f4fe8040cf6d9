"""The steps of a partition that its owner keeps for the log, and how far it has sent them."""

from __future__ import annotations

from collections.abc import Iterable

from agileml.core.protocol.superstep_messages import StepTaken


class KeptSteps:
    """Steps from number `first` on; those before are in the log.

    The owner sends each step once as long as all goes well. It keeps what is sent and not yet written, because the
    controller may die with it.
    """

    def __init__(self, first: int, taken: Iterable[StepTaken] = ()) -> None:
        self.first = first
        self._taken = list(taken)
        self._received = 0  # steps that the controller has, as it said last

    @property
    def taken(self) -> tuple[StepTaken, ...]:
        """All steps that are kept."""
        return tuple(self._taken)

    def add(self, step: StepTaken) -> None:
        """Keep the next step."""
        self._taken.append(step)

    def unsent(self, most: int) -> tuple[int, tuple[StepTaken, ...]]:
        """The number of the first step that the controller lacks, and at most so many steps from it on."""
        first = max(self._received, self.first)
        start = first - self.first
        return first, tuple(self._taken[start : start + most])

    def acknowledged(self, received: int, written: int) -> None:
        """Go on from step `received`, back if a new controller lacks more, and drop the first `written` steps."""
        self._received = received
        dropped = max(0, written - self.first)
        del self._taken[:dropped]
        self.first += dropped
