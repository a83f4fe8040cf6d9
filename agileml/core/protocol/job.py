"""The facts of a run that never change: how parameters and work are cut, and which rules they follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from agileml.core.parameters.layout import Layout
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.protocol.exchange import Exchange
from straggler.consistency import Consistency
from straggler.coverage import Units, span


@dataclass(frozen=True)
class Job:
    """`slices` of `parts` units each make a clock (both powers of two); the run ends after `clocks` clocks."""

    layout: Layout
    optimizer: Optimizer
    consistency: Consistency
    slices: int
    parts: int
    clocks: int
    deterministic: bool
    exchange: Exchange

    @property
    def units(self) -> int:
        """Units of one clock."""
        return self.slices * self.parts

    @cached_property
    def all_units(self) -> Units:
        """The set of all units of one clock."""
        return span(0, self.units)

    def units_of_slice(self, index: int) -> Units:
        return span(index * self.parts, (index + 1) * self.parts)
