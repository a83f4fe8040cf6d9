"""What everybody trains in kill_one: a linear model of 1 M parameters, each step as long as said.

A machine computes its gradient and then waits for the rest of its step: three machines share a computer's cores here,
and waiting lets each have a step of the same length, as on machines of their own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from agileml.application import Application, Array, Table, Unit, Updates

ROWS, COLUMNS = 1000, 1000
STEP_S = 0.2
MACHINES = 3
SLICES = 16
UNIT_S = STEP_S * MACHINES / SLICES  # a clock's whole work is the same however many machines there are


class Paced(Application):
    """A quadratic: the gradient is the distance to a target drawn from the seed."""

    def tables(self) -> list[Table]:
        return [Table("weights", ROWS, COLUMNS)]

    def load(self, slice_index: int) -> Array:
        return np.random.default_rng(slice_index).standard_normal((ROWS, COLUMNS)).astype(np.float32)

    def process(self, unit: Unit, items: Array, parameters: Mapping[str, Array]) -> Updates:
        begin_s = time.monotonic()
        difference = parameters["weights"] - items
        loss = float((difference * difference).mean())
        time.sleep(max(0.0, UNIT_S - (time.monotonic() - begin_s)))
        return Updates({"weights": difference / SLICES}, loss, 1)
