"""The machines of a job: how many there are, what they reserve, and how fast they are if they stand for others."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from agileml.config.section import CountOrAuto, Positive, PositiveInt, Section
from agileml.config.text import ConfigError, show
from agileml.events.terms import Tier


def _machine(name: str) -> str:
    if not re.fullmatch(r"m\d+", name):
        raise ConfigError(
            f"found {show(name)}, expected the name of a machine: m0, m1 ... in the order they start"
        )
    return name


MachineName = Annotated[str, AfterValidator(_machine)]
# Slower ones would stand still: with these bounds a machine pauses for some days at most.
Speed = Annotated[float, Field(ge=1e-4)]
LONGEST_UNIT_S = 3600.0


class MachinesConfig(Section):
    """Machines at the start, the most there may ever be, and the resources that each one's actor reserves.

    A machine computes with `workers` processes of `threads` threads each. A run that waits `wait_s` for its next
    machine before its first clock ends.
    """

    reliable: Annotated[int, Field(ge=0)] = 1
    transient: Annotated[int, Field(ge=0)] = 2
    max: PositiveInt = 8
    cpus: Positive = 1
    gpus: Annotated[float, Field(ge=0)] = 0
    workers: CountOrAuto = "auto"
    threads: CountOrAuto = "auto"
    wait_s: Positive = 900.0

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not self.reliable:
            raise ConfigError(
                "found 0, expected at least 1 reliable machine: it keeps the result", key=("reliable",)
            )
        if (total := self.reliable + self.transient) > self.max:
            raise ConfigError(
                f"found {self.max}, expected at least reliable + transient = {total}", key=("max",)
            )
        return self


def check_threads(machines: MachinesConfig, *, deterministic: bool) -> None:
    """Raise ConfigError for threads that share a sum which must have the same bits everywhere."""
    if deterministic and machines.threads not in ("auto", 1):
        raise ConfigError(
            f"found {machines.threads} with deterministic, expected 1: sums must not depend on the number of threads",
            key=("machines", "threads"),
        )


class PaceConfig(Section):
    """Machines that stand for slower ones: a unit takes `unit_s` / speed seconds, by absolute deadlines.

    With `unit_s` 0 it takes 1 / speed times as long as it really does. `speeds`: by name or tier, otherwise 1.
    """

    unit_s: Annotated[float, Field(ge=0, le=LONGEST_UNIT_S)] = 0.0
    speeds: dict[str, Speed] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _speeds_can_be_kept(self) -> Self:
        for name, speed in self.speeds.items():
            if name not in list(Tier):
                try:
                    _machine(name)
                except ConfigError as error:
                    raise ConfigError(
                        f"{error.detail}, or reliable or transient", key=("speeds", name)
                    ) from None
            if speed > 1 and not self.unit_s:
                raise ConfigError(
                    f"found {speed:g} without unit_s, expected at most 1: a machine cannot be faster than it is",
                    key=("speeds", name),
                )
        return self
