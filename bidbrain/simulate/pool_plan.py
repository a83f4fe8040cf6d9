"""From a configuration and availability traces to an experiment on today's market."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bidbrain.config import POOL_SCHEMES, ConfigError, SimulateConfig, refuse_without_effect
from bidbrain.history.availability import Trace
from bidbrain.history.prices import History, Steps
from bidbrain.instants import Interval
from bidbrain.money import HOUR_S, MICRO_USD
from bidbrain.policy.registry import OTHER_SCHEMES, POOLS, SCHEMES, find_scheme
from bidbrain.setting import REFERENCE_VCPUS, Bidding, Engine, Listing, Reliable, Setting, Workload
from bidbrain.simulate.experiment import Experiment, Starts
from bidbrain.simulate.plan import Plan, routes_of

NODE_ON_DEMAND = MICRO_USD  # a node's on-demand price is the unit: 1 $/h
POOL_MARGIN = 18  # starts leave 18 x the job's hours, because recordings have long outages
OF_PRICES = (
    *("made", "types", "zones", "product", "on_demand", "vcpus", "train", "evaluate", "allow_overlap"),
    *("job_vcpus", "reliable", "reliable_type", "min_delta", "grant_delay_s"),
)
DEFAULTS = {
    "boot_s": 180,
    "cap": 1.0,
    "deadline": 1.5,
    "rules": "per_second_paid",
    "schemes": POOL_SCHEMES,
}


def pool_settings(config: SimulateConfig) -> SimulateConfig:
    """The configuration with what holds on pools where it says nothing: the same for a run, a sweep and the report."""
    said = {key for key in config.model_fields_set if getattr(config, key) not in (None, [])}
    return config.model_copy(update={key: value for key, value in DEFAULTS.items() if key not in said})


def make_pool_plan(config: SimulateConfig, traces: Sequence[Trace]) -> Plan:
    """The experiment of a configuration. Raises ConfigError (one sentence) if it does not fit the traces."""
    refuse_without_effect(config, OF_PRICES, "with availability traces")
    config = pool_settings(config)
    notes: list[str] = []
    names = [trace.market.zone for trace in traces]
    if len(set(names)) != len(names):
        raise ConfigError(f"two availability traces have one name: {', '.join(names)}")
    ticks = sorted({trace.tick_s for trace in traces})
    if len(ticks) > 1:
        raise ConfigError(
            f"availability traces have different ticks: {', '.join(f'{tick} s' for tick in ticks)}"
        )
    if unknown := set(config.spot_shares) - set(names):
        raise ConfigError(f"spot_shares: {min(unknown)} is no pool (there are {', '.join(names)})")
    shares = {name: config.spot_shares.get(name, config.spot_share) for name in names}
    for share in shares.values():
        if round(share * NODE_ON_DEMAND) <= 0:
            raise ConfigError(f"spot_share {share} is nothing")
    pools = tuple(replace(trace, price=round(shares[trace.market.zone] * NODE_ON_DEMAND)) for trace in traces)
    end_s = min(pool.end_s for pool in pools)
    if len({pool.end_s for pool in pools}) > 1:
        notes.append(f"traces of different lengths: the shortest, {end_s / HOUR_S:.1f} h, is used")
    schemes = tuple(config.schemes)
    for name in schemes:
        if name in OTHER_SCHEMES or (name in SCHEMES and name not in ("on_demand", *POOLS)):
            known = ", ".join(("on_demand", *POOLS))
            raise ConfigError(f"the scheme {name} bids on prices; for availability traces there are {known}")
        find_scheme(name)
    setting = _setting(config, pools, end_s)

    def margin_s(hours: float) -> int:
        return min(math.ceil(POOL_MARGIN * hours * HOUR_S), end_s // 2)

    starts = Starts(config.starts, config.seed, grid_s=ticks[0], spread=True)
    experiment = Experiment(
        setting, schemes, tuple(config.job_hours), (Interval(0, end_s),), starts, margin_s
    )
    return Plan(experiment, tuple(notes))


def _setting(config: SimulateConfig, pools: tuple[Trace, ...], end_s: int) -> Setting:
    """The setting of the pools: a node counts as one vCPU, its on-demand price as one dollar an hour."""
    assert config.rules is not None, "`pool_settings` says what holds"
    engine = Engine(config.boot_s, config.lambda_s, config.sigma_s)
    work = (config.nodes, config.job_hours[0], config.cap, config.phi, config.deadline)
    job = Workload(*work, engine, config.traffic_gb_per_h)
    steps = {pool.market: Steps(np.array([0]), np.array([pool.price])) for pool in pools}
    listings = tuple(Listing(pool.market, NODE_ON_DEMAND, 1) for pool in pools)
    return Setting(
        job,
        listings,
        History(steps, end_s),
        Interval(0, end_s),
        Reliable("node", 0, NODE_ON_DEMAND, 1),
        REFERENCE_VCPUS * NODE_ON_DEMAND,
        Bidding(slot_vcpus=config.slot_vcpus),
        rules=config.rules,
        pools=pools,
        routes=routes_of(config, [pool.market for pool in pools]),
    )
