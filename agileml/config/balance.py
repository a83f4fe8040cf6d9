"""The key `balance` of a config: how the units of a clock are shared out between machines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from agileml.config.section import Section, validate
from agileml.config.text import ConfigError, show


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
