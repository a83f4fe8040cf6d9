"""The key `helping` of a config: whether machines that are ahead take over work of those that are behind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agileml.config.section import Positive, PositiveInt, Section, validate
from agileml.config.text import ConfigError, show

ShareOfClock = Annotated[float, Field(gt=0, le=1)]


class HelpingConfig(Section):
    """FlexRR's settings (thesis, table 3.1). Shares are of a machine's units of a clock.

    Each machine has up to `group_size` helpers. At `checkpoint` of its units a machine reports to those that it may
    help; one that is more than `threshold` behind gives away `initial` of its units, and `follow_up` each time its
    helper has begun the last ones. Only the last `replication` of its units may be given away: helpers load their
    items. Computing goes by chunks, `checks` in a clock: between two of them units may change hands.

    The thesis reports at 0.75 with a threshold of 0.2. Later and lower, bsp comes nearer to the ideal, and ssp loses
    nothing.
    """

    group_size: PositiveInt = 4
    initial: ShareOfClock = 0.025
    follow_up: ShareOfClock = 0.05
    checks: PositiveInt = 100
    threshold: Positive = 0.1
    checkpoint: ShareOfClock = 0.9
    replication: ShareOfClock = 1.0


def _helping(value: Any) -> Any:
    if isinstance(value, HelpingConfig) or value == "auto":
        return value
    if isinstance(value, bool):
        return HelpingConfig() if value else False
    if not isinstance(value, dict):
        raise ConfigError(f"found {show(value)}, expected auto, true, false or a mapping of keys")
    return validate(HelpingConfig, value)


Helping = Annotated[HelpingConfig | Literal[False, "auto"], BeforeValidator(_helping)]


def helping_settings(helping: HelpingConfig | Literal[False, "auto"]) -> HelpingConfig | None:
    """The settings with which machines help each other, if they ever do."""
    if helping == "auto":
        return HelpingConfig()
    return helping or None


def may_help(consistency: str, exchange: str, overlap: bool | str, *, is_pipeline: bool) -> bool:
    """True for a job in which `helping: auto` can turn help on."""
    return (consistency, exchange, overlap) == ("bsp", "servers", False) and not is_pipeline


def check_helping(
    helping: HelpingConfig | Literal["auto"],
    consistency: str,
    exchange: str,
    balance: str,
    overlap: bool | str,
) -> None:
    """Raises ConfigError for keys that do not go with `helping`."""
    if helping == "auto":
        if balance == "lbbsp":
            raise ConfigError(
                "found lbbsp with helping: auto, expected auto or static: lbbsp leaves nothing to choose",
                key=("balance",),
            )
        return
    if consistency == "asp":
        raise ConfigError(
            "found helping with consistency asp, expected bsp or ssp: with asp no machine waits for another",
            key=("helping",),
        )
    if exchange == "allreduce":
        raise ConfigError(
            "found helping with exchange: allreduce, expected servers: there each machine adds up its own units",
            key=("helping",),
        )
    if balance == "lbbsp":
        raise ConfigError(
            "found lbbsp with helping, expected static: both would move the same units", key=("balance",)
        )
    if overlap in (True, "batches"):
        raise ConfigError(
            f"found {show(overlap)} with helping, expected false: what a clock gives away is decided once its "
            "parameters are there",
            key=("overlap",),
        )
