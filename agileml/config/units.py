"""Into how many parts a job's work and its parameters are divided."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from agileml.config.text import ConfigError

MOST_UNITS = 1 << 20  # each is computed on its own, and a set of them is a number with so many bits
Partitions = Annotated[int, Field(ge=1, le=4096)]  # each costs every worker a message a clock


def check_units(slices: int, units_per_slice: int, machines: int) -> None:
    """Raise ConfigError unless both are powers of two, the units are not too many, and there is a slice for each of so
    many machines."""
    for name, value in (("slices", slices), ("units_per_slice", units_per_slice)):
        if value & (value - 1):
            raise ConfigError(
                f"found {value}, expected a power of two ({_powers_around(value)})", key=(name,)
            )
    if slices * units_per_slice > MOST_UNITS:
        raise ConfigError(
            f"found {units_per_slice} with {slices} slices, expected at most {MOST_UNITS} units in all",
            key=("units_per_slice",),
        )
    if slices < machines:
        raise ConfigError(
            f"found {slices}, expected at least machines.max = {machines}: every machine works on its own slices",
            key=("slices",),
        )


def _powers_around(value: int) -> str:
    below = 1 << int(math.log2(value))
    return f"{below} or {2 * below}"
