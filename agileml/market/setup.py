"""From the section `market` of a config to a live job: history, setting, policy, limits, speed.

Every mistake of a user is reported here, before anything starts, as a ConfigError with its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agileml.config.hardware import check_fits
from agileml.config.job import JobConfig
from agileml.config.market import (
    AvailabilityMarketConfig,
    CloudMarketConfig,
    LocalMarketConfig,
    MadeMarketConfig,
    Offered,
    ReplayMarketConfig,
)
from agileml.config.text import ConfigError
from bidbrain.config import ConfigError as BidBrainConfigError
from bidbrain.config import SimulateConfig
from bidbrain.history.availability import read_trace
from bidbrain.history.generate import Character, generate
from bidbrain.history.prices import History, Market, Steps
from bidbrain.history.readers import HistoryError, read_history
from bidbrain.instants import DAY_S, Interval, parse_instant
from bidbrain.live.cloud import Cloud
from bidbrain.live.dry_run import DryRun, LimitError, dry_run
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan
from bidbrain.live.journal import Opened
from bidbrain.live.replay import InstantLauncher
from bidbrain.live.replay import Replay as ReplayedMarket
from bidbrain.machines import UnknownTypeError, table, types_at
from bidbrain.money import HOUR_S, micro_usd
from bidbrain.policy.answer import PolicyError
from bidbrain.policy.registry import POOLS, SCHEMES, Scheme, Training, UnknownSchemeError, find_scheme
from bidbrain.setting import Setting
from bidbrain.simulate.plan import choose_markets, make_setting
from bidbrain.simulate.pool_plan import make_pool_plan

PRODUCT = "Linux/UNIX"
NAME_MOST = 32
SPARE_HOURS = 36  # that a made market stays open for a job that is late
LEAVE_S = 60  # that an instance of a cloud may take to leave
LOOK_S = 30  # that the service may see the budget reached, and the job drained, late
POOL_NAMES = ("boot_s", "lambda_s", "sigma_s", "phi", "rules", "spot_share", "cap", "slot_vcpus", "deadline")
BIDDING = ("proteus", "renewal", "standard_agileml")
SAME_NAMES = (
    *("job_vcpus", "cap", "slot_vcpus", "min_delta", "boot_s", "lambda_s", "sigma_s", "phi", "rules"),
    "deadline",
)


@dataclass(frozen=True)
class Pacing:
    """How fast local nodes compute for the machines that they stand for.

    unit_s: least seconds of a unit on a machine of the smallest type that is offered, and on a reliable one; 0: as long
    as it takes. speeds: of the types, as multiples of the smallest.
    """

    unit_s: float = 0.0
    speeds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MarketSetup:
    """BidBrain's plan of a run. setting: of the job before its scheme changed the engine.

    pacing: how fast local nodes compute. speed: market seconds per second.
    """

    plan: JobPlan
    setting: Setting
    start_s: int
    speed: float
    pacing: Pacing

    @property
    def is_played(self) -> bool:
        """Whether the market is played from a history."""
        return bool(self.setting.history.steps)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about gaps in a played market's recording: missing hours at the end of the job, holes, pools."""
        history, job = self.setting.history, self.setting.job
        if not self.is_played:
            return ()
        notes: list[str] = []
        if (hours := (history.end_s - self.start_s) / HOUR_S) < job.hours:
            notes.append(f"the market ends after {hours:.2f} h, before a job of {job.hours:g} h does")
        length = Interval(self.start_s, self.start_s + round(job.hours * HOUR_S))
        notes += [
            f"the recording has a hole {hole} ({hole.seconds / HOUR_S:.0f} h) within the job's hours: the prices "
            "before it are taken to hold"
            for hole in history.holes
            if hole.overlap(length).seconds
        ]
        return (*notes, *history.market_notes)

    @property
    def vcpus(self) -> dict[str, int]:
        """Nominal vCPUs by machine type, the reliable one under `on_demand_kind` too."""
        found = {listing.market.instance_type: listing.vcpus for listing in self.setting.listings}
        reliable = self.setting.reliable
        return found | {on_demand_kind(reliable.instance_type): reliable.vcpus_per_machine}


def on_demand_kind(instance_type: str) -> str:
    """The estimators' name of on-demand machines of a type; their speed says nothing about its spot machines."""
    return f"{instance_type} on demand"


def set_up(config: JobConfig, name: str, run: str, now_s: int, before: Opened | None = None) -> MarketSetup:
    """The set-up that `config.market` asks for.

    run: makes the job's name unique on a cloud, where it starts at `now_s` (Unix time). before: the job as an earlier
    process of the run began it: name and start are those of then, so the market knows its instances.

    Raises ConfigError.
    """
    market = config.market
    assert market is not None
    with _users():
        if isinstance(market, CloudMarketConfig):
            start_s, setting = now_s if before is None else before.start_s, _on_cloud(market, config, now_s)
        elif isinstance(market, AvailabilityMarketConfig):
            start_s, setting = round(market.start_hours * HOUR_S), _of_pools(market, config)
        else:
            history, train, start_s = _history(market)
            setting = _setting(market, config, history, train, start_s)
    scheme = _scheme(market)
    if market.policy in RUNNING and market.policy not in _policies(market):
        needs = (
            "learns from a history of bids"
            if market.policy in BIDDING
            else "takes nodes of one vCPU from pools"
        )
        raise ConfigError(
            f"found {market.policy}, which {needs}, expected {', '.join(_policies(market))}",
            key=("market", "policy"),
        )
    live = scheme.setting(setting)
    guards = Guards(
        None if market.budget_usd is None else micro_usd(market.budget_usd),
        None if market.max_price is None else micro_usd(market.max_price),
        config.machines.max,
    )
    if isinstance(market, LocalMarketConfig):
        # One second of delay is many seconds of the market: the reserve covers their cost.
        guards = replace(guards, reserve_s=max(guards.reserve_s, round(5 * market.speed)))
    # A cloud answers a token that it has seen with the instances of that time, so the name must be new. On a played
    # market the name stays, because with the seed it decides which instances get a notice.
    job = (
        name
        if isinstance(market, LocalMarketConfig)
        else f"{re.sub('[^A-Za-z0-9-]', '-', name)[:NAME_MOST]}-{run}"
    )
    plan = JobPlan(
        job if before is None else before.job,
        market.policy,
        live,
        scheme.live(live, start_s),
        start_s,
        with_reliable=scheme.training is not Training.STEADY,
        guards=guards,
        drain_s=market.drain_s,
        leave_s=0 if isinstance(market, LocalMarketConfig) else LEAVE_S + LOOK_S,
    )
    speed = market.speed if isinstance(market, LocalMarketConfig) else 1.0
    return MarketSetup(plan, setting, start_s, speed, _pacing(config, setting))


def first_decision(setup: MarketSetup, cloud: Cloud | None = None) -> DryRun:
    """The first decision and its cost; asking for it also compiles the policy's code.

    Raises ConfigError, also for a policy that answers wrongly, and RunError with its traceback for one that fails.
    """
    if cloud is None:
        cloud = ReplayedMarket(setup.plan.setting, lambda: setup.start_s, InstantLauncher())
    try:
        return dry_run(setup.plan, cloud, setup.start_s)
    except PolicyError as error:
        raise ConfigError(f"{setup.plan.scheme}: {error}", key=("market", "policy")) from None
    except LimitError as error:
        raise ConfigError(error.detail, key=("market", error.key)) from None


@contextmanager
def _users() -> Iterator[None]:
    """Turn BidBrain's errors about settings into errors of the config's section `market`."""
    try:
        yield
    except UnknownTypeError as error:
        cure = "give its dollars per hour under market.on_demand and its vCPUs under market.vcpus"
        raise ConfigError(f"{error.problem} ({cure}){error.hint}", key=("market",)) from None
    except (BidBrainConfigError, HistoryError, UnknownSchemeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(str(error), key=("market",)) from None


def _history(market: LocalMarketConfig) -> tuple[History, Interval, int]:
    """(prices, the interval that policies learn from, when the job starts)."""
    start_s = _instant(market)
    if isinstance(market, MadeMarketConfig):
        train = Interval(start_s - market.train_days * DAY_S, start_s)
        prices = types_at(
            list(market.types),
            start_s,
            {name: micro_usd(price) for name, price in market.on_demand.items()},
            market.vcpus,
        )
        rows = [(kind, zone, prices[kind][0]) for kind in market.types for zone in market.zones]
        window = Interval(train.start_s, start_s + market.hours * HOUR_S)
        # On a slow computer the job takes more hours of the market than it was made for.
        made = generate(rows, window, Character(market.character), market.seed, spare_s=SPARE_HOURS * HOUR_S)
        return made, train, start_s
    assert isinstance(market, ReplayMarketConfig)
    try:
        asked = Interval.parse(market.train)
    except ValueError as error:
        raise ConfigError(str(error), key=("market", "train")) from None
    history = read_history(Path(path) for path in market.history)
    train = asked.overlap(history.window)
    if not history.start_s <= start_s < history.end_s:
        raise ConfigError(
            f"found {market.start}, expected an instant within the history ({history.window})",
            key=("market", "start"),
        )
    _lasts(history.end_s, start_s, market.start, ("market", "start"))
    if train.seconds <= 0 or train.end_s > start_s:
        raise ConfigError(
            f"found {market.train}, expected an interval of the history ({history.window}) that ends before the start",
            key=("market", "train"),
        )
    return history, train, start_s


def _lasts(end_s: int, start_s: int, found: str, key: tuple[str, str]) -> None:
    """Raise ConfigError if the recording ends within the first hour."""
    if end_s - start_s < HOUR_S:
        raise ConfigError(
            f"found {found}, expected at least an hour of the recording after it: it ends {end_s - start_s} s later",
            key=key,
        )


def _instant(market: LocalMarketConfig) -> int:
    assert isinstance(market, MadeMarketConfig | ReplayMarketConfig)
    try:
        return parse_instant(market.start)
    except ValueError as error:
        raise ConfigError(str(error), key=("market", "start")) from None


def _simulate_config(market: LocalMarketConfig | CloudMarketConfig, offered: Offered) -> SimulateConfig:
    """The config that `proteus simulate` would get for the same job."""
    values = {key: getattr(market, key) for key in SAME_NAMES}
    return SimulateConfig.model_validate(
        values
        | {"reliable_type": offered.reliable_type or None, "job_hours": [market.job_hours], "reliable": 1}
        | {"on_demand": dict(offered.on_demand), "vcpus": dict(offered.vcpus)}
    )


def _setting(
    market: LocalMarketConfig, config: JobConfig, history: History, train: Interval, start_s: int
) -> Setting:
    product = market.product if isinstance(market, ReplayMarketConfig) else PRODUCT
    markets = choose_markets(history, market.types, market.zones, product)
    markets = tuple(each for each in markets if history.steps[each].price_at(start_s) is not None)
    if not markets:
        raise ConfigError("found no market with a price then", key=("market", "start"))
    window = Interval(start_s, history.end_s)
    places = tuple((each.instance_type, each.zone) for each in markets)
    offered = Offered(places, market.reliable_type or "", market.on_demand, market.vcpus)
    return _reliable_as_configured(
        make_setting(_simulate_config(market, offered), history, markets, train, window), config
    )


def _of_pools(market: AvailabilityMarketConfig, config: JobConfig) -> Setting:
    """Nodes of pools whose capacity was recorded."""
    values = {key: getattr(market, key) for key in POOL_NAMES}
    values |= {"nodes": market.job_vcpus, "job_hours": [market.job_hours], "starts": 1}
    traces = [read_trace(Path(path)) for path in market.availability]
    setting = make_pool_plan(SimulateConfig.model_validate(values), traces).experiment.setting
    if market.deadline is None and market.policy != "spot_2026":  # which always has one
        setting = setting.with_job(replace(setting.job, deadline=None))
    if not market.start_hours * HOUR_S < setting.history.end_s:
        raise ConfigError(
            f"found {market.start_hours:g}, expected less than the {setting.history.end_s / HOUR_S:g} h recorded",
            key=("market", "start_hours"),
        )
    start_s = round(market.start_hours * HOUR_S)
    _lasts(setting.history.end_s, start_s, f"{market.start_hours:g}", ("market", "start_hours"))
    return _reliable_as_configured(setting, config)


def _on_cloud(market: CloudMarketConfig, config: JobConfig, now_s: int) -> Setting:
    """A setting without history: prices are asked for when they are needed."""
    offered = market.offered
    markets = tuple(Market(kind, zone) for kind, zone in offered.markets)
    window = Interval(now_s - DAY_S, now_s)
    nothing = History({each: Steps.from_rows([now_s], [0]) for each in markets}, now_s)
    setting = make_setting(_simulate_config(market, offered), nothing, markets, window, window)
    setting = replace(setting, history=History({}, now_s), routes=market.routes)
    reliable, gpus = setting.reliable, {row.name: row.gpus for row in table()}
    check_fits(config, reliable.instance_type, reliable.vcpus_per_machine, gpus.get(reliable.instance_type))
    for listing in setting.listings:
        kind = listing.market.instance_type
        check_fits(config, kind, listing.vcpus, gpus.get(kind))
    return _reliable_as_configured(setting, config)


def _reliable_as_configured(setting: Setting, config: JobConfig) -> Setting:
    """One on-demand machine for each reliable machine of the config."""
    reliable = setting.reliable
    vcpus = config.machines.reliable * reliable.vcpus_per_machine
    setting = replace(setting, reliable=replace(reliable, vcpus=vcpus))
    widest = max(listing.vcpus for listing in setting.listings)
    if setting.job.cap_vcpus < widest:
        raise ConfigError(
            f"found {setting.job.vcpus}, and with cap {setting.job.cap:g} not even one machine of {widest} vCPUs",
            key=("market", "job_vcpus"),
        )
    _whole_machines(setting)
    return setting


def _whole_machines(setting: Setting) -> None:
    """Raise ConfigError for requests of a share of a machine: they can be simulated, but not bought."""
    slot = setting.bidding.slot_vcpus
    for listing in setting.listings if slot is not None else ():
        assert slot is not None
        if slot % listing.vcpus:
            raise ConfigError(
                f"found {slot}, expected whole machines: a multiple of the {listing.vcpus} vCPUs of "
                f"{listing.market.instance_type}",
                key=("market", "slot_vcpus"),
            )


def _scheme(market: LocalMarketConfig | CloudMarketConfig) -> Scheme:
    name = market.policy
    try:
        scheme = find_scheme(name)
    except UnknownSchemeError as error:
        sentence = str(error)
        if ":" not in name:
            sentence = (
                f"there is no scheme {name!r} for a running job; there are {', '.join(_policies(market))}, "
                "or your own as package.module:Class"
            )
        raise ConfigError(sentence, key=("market", "policy")) from None
    if not _runs(scheme):
        why = "it knows the future" if scheme.yardstick else "it restarts from checkpoints"
        raise ConfigError(
            f"found {name}, expected a policy for a running job ({why})", key=("market", "policy")
        )
    return scheme


def _runs(scheme: Scheme) -> bool:
    """Whether a running job can follow it."""
    return not scheme.yardstick and scheme.training in (Training.AGILEML, Training.STEADY)


def _policies(market: LocalMarketConfig | CloudMarketConfig) -> list[str]:
    """The built-in schemes that a job on this market can follow."""
    others = (
        BIDDING
        if isinstance(market, CloudMarketConfig | AvailabilityMarketConfig)
        else set(POOLS) - set(SCHEMES)
    )
    return [name for name in RUNNING if name not in others]


RUNNING = tuple(name for name, scheme in (SCHEMES | POOLS).items() if _runs(scheme))


def _pacing(config: JobConfig, setting: Setting) -> Pacing:
    """The pace at which the job's machines together take job_hours."""
    market = config.market
    if not isinstance(market, LocalMarketConfig) or not market.paced:
        return Pacing()
    vcpus = {listing.market.instance_type: listing.vcpus for listing in setting.listings}
    smallest = min(vcpus.values())
    units = config.clocks * config.slices * config.units_per_slice
    unit_s = setting.job.work_vcpu_s / units / smallest / market.speed
    return Pacing(unit_s, {kind: count / smallest for kind, count in vcpus.items()})
