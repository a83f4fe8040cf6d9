"""The terms of an optimizer's step that come from its clock, or from a contribution that is applied on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepTerms:
    """The numbers of a clock that the step of a block needs.

    scale: of the gradient. skipped: how many clocks before took no step. norms: by layer, those of its parameters and
    of the direction in which they move; trust: their ratio, for the layer that is stepped (both for LAMB alone).
    weight: the share of a clock that the step stands for (`own_mean`); taken: steps so far, this one among them; None:
    one a clock.
    """

    scale: float = 1.0
    skipped: int = 0
    norms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    trust: float = 1.0
    weight: float = 1.0
    taken: float | None = None

    def steps(self, clock: int) -> float:
        """The number of steps that have been taken with that of `clock`."""
        return clock + 1 - self.skipped if self.taken is None else self.taken

    @property
    def of_rows(self) -> StepTerms:
        """The terms for rows of a sparse table: a contribution has all updates of its rows in the clock, or nearly all,
        so they take a whole step."""
        return self if self.weight == 1.0 else PLAIN


PLAIN = StepTerms()


def own_mean(units: int, of: int, counted: int) -> StepTerms:
    """The step along the mean of one contribution of `units` of the `of` units of a clock, where contributions are
    applied as they come. counted: all units that the partition has counted, these among them.

    The learning rate is that of the share w = units / of of a clock: the shares of a clock sum to 1, so a clock moves
    about as far as in one step. Adam counts steps as if all contributions so far had been of this size.
    """
    return StepTerms(scale=of / units, weight=units / of, taken=counted / units)


def trust_ratio(of_parameters: float, of_direction: float) -> float:
    """LAMB's ratio of a layer's two norms; 1 where one is 0."""
    return of_parameters / of_direction if of_parameters > 0 and of_direction > 0 else 1.0
