"""Into how many units a clock is divided, and the key `balance`: how they are shared out between machines."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agileml.config.section import Section, validate
from agileml.config.text import ConfigError, show

MOST_UNITS = 1 << 20  # each is computed on its own, and a set of them is a number with so many bits
MOST_SLICES = 1 << 18  # a view names a machine for each, in one message
Partitions = Annotated[int, Field(ge=1, le=4096)]  # each costs every worker a message a clock


class BalanceConfig(Section):
    """`kind`: static shares, shares by speed, a pool, or what is found to be better. `predictor`: of a machine's speed.

    `ema` averages past speeds; `narx` also sees the CPU and memory that a machine has.
    """

    kind: Literal["static", "lbbsp", "pool", "auto"] = "auto"
    predictor: Literal["ema", "narx"] = "ema"


def _balance(value: Any) -> Any:
    if isinstance(value, BalanceConfig):
        return value
    if isinstance(value, str):
        if value not in ("static", "lbbsp", "pool", "auto"):
            raise ConfigError(f"found {show(value)}, expected static, lbbsp, pool or auto")
        return validate(BalanceConfig, {"kind": str(value)})
    if not isinstance(value, dict):
        raise ConfigError(f"found {show(value)}, expected static, lbbsp, pool, auto or a mapping of keys")
    return validate(BalanceConfig, value)


Balance = Annotated[BalanceConfig, BeforeValidator(_balance)]


def check_balance(balance: BalanceConfig, consistency: str, *, is_pipeline: bool, helps: bool) -> None:
    """Raises ConfigError for settings that have nothing to do in a job."""
    if balance.kind == "lbbsp" and consistency != "bsp":
        raise ConfigError(
            f"found lbbsp with consistency {consistency}, expected static or auto: only the workers of bsp wait for "
            "each other in every clock",
            key=("balance",),
        )
    if balance.predictor == "ema":
        return
    reason = None
    if balance.kind == "static":
        reason = "kind static, expected ema: static shares need no speeds"
    elif consistency != "bsp":
        reason = f"consistency {consistency}, expected ema: only the clocks of bsp are planned"
    elif helps:
        reason = "helping, expected ema: units change hands while a clock lasts, and no clock is planned"
    elif is_pipeline:
        reason = "pipeline, expected ema: every stage computes all units"
    if reason is not None:
        raise ConfigError(f"found {balance.predictor} with {reason}", key=("balance", "predictor"))


def check_units(slices: int, units_per_slice: int, machines: int) -> None:
    """Raise ConfigError unless both are powers of two, the units are not too many, and there is a slice for each of so
    many machines."""
    for name, value in (("slices", slices), ("units_per_slice", units_per_slice)):
        if value & (value - 1):
            raise ConfigError(
                f"found {value}, expected a power of two ({_powers_around(value)})", key=(name,)
            )
    if slices > MOST_SLICES:
        raise ConfigError(
            f"found {slices}, expected at most {MOST_SLICES}: units_per_slice makes more units of them",
            key=("slices",),
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
