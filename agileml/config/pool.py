"""The demands of `balance: pool` on a config's other keys, and where `balance: auto` stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agileml.config.helping import HelpingConfig
from agileml.config.text import ConfigError

if TYPE_CHECKING:
    from agileml.config.job import JobConfig


def has_pool(config: JobConfig) -> bool:
    """True where machines draw what they compute from one pool: with `pool`, and with `auto` where that is possible."""
    section = config.consistency
    can = section.kind == "asp" or (section.kind == "ssp" and section.slack > 0)
    is_free = can and not isinstance(config.helping, HelpingConfig)
    return config.balance.kind == "pool" or (config.balance.kind == "auto" and is_free)


def check_pool(config: JobConfig) -> None:
    """Raises ConfigError where the keys do not go together."""
    kind = config.consistency.kind
    if config.balance.kind == "pool":
        if kind not in ("ssp", "asp"):
            raise ConfigError(
                f"found pool with consistency {kind}, expected static, lbbsp or auto: machines draw from one pool "
                "where none waits for all others, with ssp and asp",
                key=("balance",),
            )
        if kind == "ssp" and config.consistency.slack == 0:
            raise ConfigError(
                "found pool with a slack of 0, expected static, lbbsp or auto: without slack ssp is bsp",
                key=("balance",),
            )
        if isinstance(config.helping, HelpingConfig):
            raise ConfigError(
                "found pool with helping, expected static or auto: both would move the same units",
                key=("balance",),
            )
    if config.pool_units is None:
        return
    if not has_pool(config):
        raise ConfigError(
            f"found {config.pool_units} with balance {config.balance.kind} and consistency {kind}, expected it with a "
            "pool only (asp, or ssp with a slack, without helping)",
            key=("pool_units",),
        )
    units = config.slices * config.units_per_slice
    if config.pool_units > units:
        raise ConfigError(
            f"found {config.pool_units}, expected at most slices x units_per_slice = {units}",
            key=("pool_units",),
        )
