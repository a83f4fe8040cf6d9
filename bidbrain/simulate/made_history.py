"""The prices of a config that names no recording: made by its seed, for its types, zones and windows."""

from __future__ import annotations

from bidbrain.config import ConfigError, SimulateConfig
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History
from bidbrain.instants import Interval
from bidbrain.machines import types_at
from bidbrain.money import micro_usd

REGION = "us-east-1"
ZONES = ("a", "b", "c")


def made_history(config: SimulateConfig) -> History:
    """Prices of the character `made` over both windows, the same for the same seed.

    Raises ConfigError, UnknownTypeError.
    """
    assert config.made is not None
    if config.train is None or config.evaluate is None or not config.types:
        raise ConfigError(
            "made: found it without types, train or evaluate, expected all of them, or a history"
        )
    try:
        train, evaluate = Interval.parse(config.train), Interval.parse(config.evaluate)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    window = Interval(min(train.start_s, evaluate.start_s), max(train.end_s, evaluate.end_s))
    own = {name: micro_usd(price) for name, price in config.on_demand.items()}
    listed = types_at(config.types, window.start_s, own, config.vcpus)
    zones = [zone if len(zone) > 1 else f"{REGION}{zone}" for zone in config.zones or ZONES]
    markets = [(kind, zone, listed[kind][0]) for kind in config.types for zone in zones]
    return generate(markets, window, Character(config.made), config.seed)
