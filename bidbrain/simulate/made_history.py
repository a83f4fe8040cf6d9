"""The prices of a config: its recording, or made ones, by its seed, for its types, zones and windows."""

from __future__ import annotations

from dataclasses import replace

from bidbrain.config import ConfigError, SimulateConfig
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History
from bidbrain.history.readers import read_history
from bidbrain.instants import Interval
from bidbrain.machines import types_at
from bidbrain.money import micro_usd
from bidbrain.simulate.plan import Plan, make_plan

REGION = "us-east-1"
ZONES = ("a", "b", "c")


def plan_on_prices(config: SimulateConfig, history: History | None = None) -> Plan:
    """The experiment of a configuration on its history, or on made prices, which a note says then.

    history: what `history_of` found, where there are several plans on it. Raises what `make_plan` and readers raise.
    """
    plan = make_plan(config, history_of(config) if history is None else history)
    if config.history:
        return plan
    note = f"the prices are made ({config.made}, seed {config.seed}): they show the tool, and are no evidence"
    return replace(plan, notes=(note, *plan.notes))


def history_of(config: SimulateConfig) -> History:
    """The recording that a configuration names, else the prices that it has made."""
    return read_history(config.history) if config.history else made_history(config)


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
