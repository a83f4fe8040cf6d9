"""The steps of a partition that its owner keeps for the log, and how far it has told them."""

from __future__ import annotations

from collections.abc import Iterable

from agileml.core.protocol.superstep_messages import StepTaken


class KeptSteps:
    """Steps from number `first` on; those before are in the log.

    The owner tells each step once as long as all goes well. What is told and not yet written it keeps, for the
    controller may die with it.
    """

    def __init__(self, first: int, taken: Iterable[StepTaken] = ()) -> None:
        self.first = first
        self._taken = list(taken)
        self._told = 0  # steps that the controller has, as it said last

    @property
    def taken(self) -> tuple[StepTaken, ...]:
        """All steps that are kept."""
        return tuple(self._taken)

    def add(self, step: StepTaken) -> None:
        """Keep the next step."""
        self._taken.append(step)

    def untold(self, most: int) -> tuple[int, tuple[StepTaken, ...]]:
        """The number of the first step that the controller lacks, and at most so many steps from it on."""
        first = max(self._told, self.first)
        start = first - self.first
        return first, tuple(self._taken[start : start + most])

    def heard(self, told: int, written: int) -> None:
        """Go on from step `told`, back if a new controller lacks more, and drop the first `written` steps."""
        self._told = told
        dropped = max(0, written - self.first)
        del self._taken[:dropped]
        self.first += dropped
