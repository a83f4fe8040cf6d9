"""From a configuration and a price history to an experiment; checks every choice that a user can get wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bidbrain.billing.traffic import Routes, UnknownRouteError, prices_with
from bidbrain.config import DEFAULT_SCHEMES, ConfigError, SimulateConfig, refuse_without_effect
from bidbrain.history.locations import location_of
from bidbrain.history.prices import ON_DEMAND_ZONE, History, Market
from bidbrain.instants import DAY_S, Interval, parse_instant
from bidbrain.machines import TABLE_REGION, UnknownTypeError, types_at
from bidbrain.money import HOUR_S, micro_usd
from bidbrain.policy.registry import EXPECTED_COST, OTHER_SCHEMES, find_scheme
from bidbrain.setting import (
    REFERENCE_VCPUS,
    Bidding,
    Engine,
    Listing,
    Reliable,
    Setting,
    Workload,
    reference_price,
    reference_type,
)
from bidbrain.simulate.experiment import Experiment, Starts, price_margin_s

MOST_SLOTS = 20
OF_POOLS = ("nodes", "spot_share", "spot_shares")
BIDS_ENDED_S = parse_instant("2017-12-01T00:00:00Z")


@dataclass(frozen=True)
class Plan:
    """The experiment that will run, and notes for its user, a sentence each."""

    experiment: Experiment
    notes: tuple[str, ...]


def make_plan(config: SimulateConfig, history: History) -> Plan:
    """The experiment of a configuration. Raises ConfigError (one sentence) if it does not fit the history."""
    refuse_without_effect(config, OF_POOLS, "on prices")
    notes: list[str] = []
    train, evaluate = _windows(config, history, notes)
    markets = choose_markets(history, config.types, config.zones, config.product)
    markets = _priced(config, markets, evaluate, notes)
    notes += price_notes(markets, config.on_demand)
    for key, figures in (("on_demand", config.on_demand), ("vcpus", config.vcpus)):
        notes += unused_note(key, figures.keys() - {config.reliable_type}, history)
    if (config.rules or "hourly_2016") == "hourly_2016" and evaluate.end_s > BIDS_ENDED_S:
        notes.append(
            "hourly_2016 bids on prices since December 2017, when EC2 gave up bidding: nobody was evicted by these "
            "prices and hours were not billed whole; --rules per_second bills them as EC2 does"
        )
    notes += _beginning_notes(history, markets, train, evaluate)
    for hole in history.holes:
        length = f"the recording has a hole {hole} ({hole.seconds / 3600:.0f} h)"
        if hole.overlap(evaluate).seconds:
            notes.append(f"{length}: no job starts in it")
        if hole.overlap(train).seconds:
            notes.append(f"{length}: tables leave it out")
    notes += history.select(markets).market_notes
    setting = make_setting(config, history, markets, train, evaluate)
    pieces = history.usable(evaluate)
    schemes = tuple(config.schemes or DEFAULT_SCHEMES)
    for name in schemes:
        if name not in OTHER_SCHEMES:
            find_scheme(name)
    _check_room(setting, schemes)
    notes += _bound_notes(setting, schemes)
    experiment = Experiment(
        setting, schemes, tuple(config.job_hours), pieces, Starts(config.starts, config.seed)
    )
    for hours in config.job_hours:
        try:
            experiment.starts_of(hours)
        except ValueError as error:
            raise ConfigError(f"jobs of {hours:g} h: {error} ({price_margin_s(hours) / 3600:g} h)") from None
    return Plan(experiment, tuple(notes))


def _beginning_notes(
    history: History, markets: Sequence[Market], train: Interval, evaluate: Interval
) -> list[str]:
    """Sentences about markets whose recording begins late. Raises ConfigError if none has a price by then."""
    late = [m for m in markets if history.steps[m].price_at(evaluate.start_s) is None]
    if len(late) == len(markets):
        raise ConfigError("no market is left: none has a price before the evaluation window begins")
    notes = []
    if late:
        notes.append(
            "markets whose recording begins inside the evaluation window are used from then on: "
            f"{', '.join(map(str, late))}"
        )
    pieces = history.usable(train)
    unknown = [
        str(market)
        for market in markets
        if not any(
            max(piece.start_s, int(history.steps[market].times[0])) + HOUR_S <= piece.end_s
            for piece in pieces
        )
    ]
    if unknown:
        notes.append(
            f"train has no hour of {', '.join(unknown)}: the tables of proteus say that nobody is ever evicted there"
        )
    return notes


def _check_room(setting: Setting, schemes: Collection[str]) -> None:
    """Raise ConfigError where a scheme that holds whole machines has no room for one."""
    cap, least = setting.job.cap_vcpus, min(setting.listings, key=lambda each: each.vcpus)
    if EXPECTED_COST.name in schemes and least.vcpus > cap:
        raise ConfigError(
            f"job_vcpus: {EXPECTED_COST.name} holds whole machines, and the cap of {cap} vCPUs has no room for one of "
            f"{least.market.instance_type} ({least.vcpus})"
        )


def _bound_notes(setting: Setting, schemes: Collection[str]) -> list[str]:
    """Sentences about what the linear program does not know of this setting."""
    if not set(schemes) & set(OTHER_SCHEMES):
        return []
    notes = ["paid_hours_bound leaves traffic out"] if setting.routes is not None else []
    if setting.rules != "hourly_2016":
        notes.append(
            f"paid_hours_bound pays whole hours: {setting.rules} bills seconds, so a scheme may cost less than it"
        )
    if setting.job.phi < 1.0:
        notes.append(
            f"paid_hours_bound leaves phi out: with {setting.job.phi:g} paid_hours_schedule cannot be carried out"
        )
    return notes


def _priced(
    config: SimulateConfig, markets: tuple[Market, ...], evaluate: Interval, notes: list[str]
) -> tuple[Market, ...]:
    """The markets without those whose type has no known on-demand price, unless the user named the type.

    The table has plain Linux alone: of another product the price is known only if the user gives it.
    """
    overrides = {name: micro_usd(price) for name, price in config.on_demand.items()}
    other = {m.instance_type for m in markets if not m.product.startswith("Linux")} - overrides.keys()
    unknown = sorted(other - set(config.types))
    for name in sorted({market.instance_type for market in markets} - set(config.types) - set(unknown)):
        try:
            types_at([name], evaluate.start_s, overrides, config.vcpus)
        except UnknownTypeError:
            unknown.append(name)
    left = tuple(market for market in markets if market.instance_type not in unknown)
    for market in left or markets:
        if market.instance_type in other:
            raise UnknownTypeError(
                f"no on-demand price is known for {market.instance_type} with {market.product}, only with Linux",
                f"--on-demand {market.instance_type}=USD",
            )
    if not unknown or not left:
        return markets  # `make_setting` names the type that is missing
    notes.append(
        f"left out, because no on-demand price is known: {', '.join(sorted(unknown))} "
        "(--on-demand TYPE=USD and --vcpus TYPE=N bring them in)"
    )
    return left


def price_notes(markets: Iterable[Market], own: Collection[str]) -> list[str]:
    """A sentence about on-demand prices of the table, where these markets are in another region. own: types that the
    user gave a price for."""
    places = {location_of(market.zone) for market in markets if market.instance_type not in own}
    others = sorted({place.region for place in places if place is not None} - {TABLE_REGION})
    if not others:
        return []
    return [
        f"on-demand prices are those of {TABLE_REGION}, also for {', '.join(others)}: the package has no others "
        "(--on-demand TYPE=USD)"
    ]


def unused_note(key: str, named: Iterable[str], history: History) -> list[str]:
    """A sentence about types that `key` names and no market of the history has: one may be misspelt."""
    unknown = sorted(set(named) - {market.instance_type for market in history.markets})
    return (
        [f"{key}: nothing comes of {', '.join(unknown)}, as the history has no such type"] if unknown else []
    )


def make_setting(
    config: SimulateConfig, history: History, markets: Sequence[Market], train: Interval, evaluate: Interval
) -> Setting:
    """The setting of a configuration: on-demand prices of the time, the job, its engine, how to bid."""
    overrides = {name: micro_usd(price) for name, price in config.on_demand.items()}
    names = sorted({market.instance_type for market in markets})
    types = types_at(names, evaluate.start_s, overrides, config.vcpus)
    listings = tuple(Listing(market, *types[market.instance_type]) for market in markets)
    reference_name = config.reliable_type or reference_type(types)
    price, vcpus = types_at([reference_name], evaluate.start_s, overrides, config.vcpus)[reference_name]
    each = vcpus if config.reliable_type else REFERENCE_VCPUS
    base_name = reference_type(types)
    reference = reference_price(*types[base_name])
    if reference <= 0:
        raise ConfigError(
            f"on_demand: {base_name} costs nothing, by {REFERENCE_VCPUS} vCPUs of it and in whole 0.000001 $ per hour; "
            "expected more: all costs are relative to it"
        )
    engine = Engine(config.boot_s, config.lambda_s, config.sigma_s)
    work = (config.job_vcpus, config.job_hours[0], config.cap, config.phi, config.deadline)
    job = Workload(*work, engine, config.traffic_gb_per_h)
    bidding = Bidding(
        min_delta=micro_usd(config.min_delta),
        grant_delay_s=config.grant_delay_s,
        slot_vcpus=config.slot_vcpus,
    )
    try:
        bidding.first_delta  # noqa: B018 - raises if no delta is left
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if config.slot_vcpus is not None and config.slot_vcpus * MOST_SLOTS < job.cap_vcpus:
        raise ConfigError(
            f"slot_vcpus {config.slot_vcpus} is too small: a cap of {job.cap_vcpus} vCPUs is at most {MOST_SLOTS} slots"
        )
    routes = routes_of(config, markets)
    return Setting(
        job,
        listings,
        history.select(markets),
        train,
        Reliable(reference_name, config.reliable * each, price, vcpus),
        reference,
        bidding,
        config.rules or "hourly_2016",
        routes=routes,
    )


def routes_of(config: SimulateConfig, markets: Sequence[Market]) -> Routes | None:
    """The prices of traffic between these pools; None: free. Raises ConfigError for an unknown price or zone."""
    if not config.traffic_gb_per_h:
        for key, value in (("home", config.home), ("traffic_usd_per_gb", config.traffic_usd_per_gb)):
            if value:
                raise ConfigError(f"{key} is given without traffic_gb_per_h, expected both")
        return None
    try:
        prices = prices_with(config.traffic_usd_per_gb)
        routes = Routes(config.home or markets[0].zone, prices)
        home = routes.place(Market("", ON_DEMAND_ZONE))
        routes.matrix(sorted({home, *(routes.place(market) for market in markets)}))
    except UnknownRouteError as error:
        raise ConfigError(f"traffic: {error}") from None
    return routes


def choose_markets(
    history: History, types: Sequence[str], zones: Sequence[str], product: str
) -> tuple[Market, ...]:
    """Markets of these types (none: all) in these zones (us-east-1a, or its letter; none: all), sorted.

    `product` is a prefix; the shortest that fits is taken where a zone has several. Raises ConfigError.
    """
    there_types = sorted({market.instance_type for market in history.markets})
    there_zones = sorted({market.zone for market in history.markets})
    for name in types:
        if name not in there_types:
            raise ConfigError(f"unknown type {name!r}: the history has {', '.join(there_types)}")
    chosen_zones = set()
    for zone in zones:
        fitting = [each for each in there_zones if each == zone or (len(zone) == 1 and each.endswith(zone))]
        if not fitting:
            raise ConfigError(f"unknown zone {zone!r}: the history has {', '.join(there_zones)}")
        chosen_zones.update(fitting)
    found: dict[tuple[str, str], Market] = {}
    for market in sorted(history.markets, key=lambda m: (m.instance_type, m.zone, len(m.product), m.product)):
        right = (not types or market.instance_type in types) and (not zones or market.zone in chosen_zones)
        if right and market.product.startswith(product):
            found.setdefault((market.instance_type, market.zone), market)
    if not found:
        products = sorted({market.product for market in history.markets})
        raise ConfigError(
            f"no market is left: types {', '.join(types) or 'all'}, zones {', '.join(zones) or 'all'},"
            f" product {product} (the history has the products {', '.join(products)})"
        )
    return tuple(sorted(found.values()))


def _windows(config: SimulateConfig, history: History, notes: list[str]) -> tuple[Interval, Interval]:
    train = _window("train", config.train, history, notes)
    evaluate = _window("evaluate", config.evaluate, history, notes)
    if train.overlap(evaluate).seconds and not config.allow_overlap:
        raise ConfigError(
            f"train and evaluate overlap ({train.overlap(evaluate)}): results would know their own future"
            " (--allow-overlap to do it all the same)"
        )
    if train.start_s >= evaluate.end_s:
        notes.append("train is later than evaluate: tables know prices that came after the jobs")
    return train, evaluate


def _window(name: str, text: str | None, history: History, notes: list[str]) -> Interval:
    """A window cut to the recording; refused if more than a day of it lies outside, or most of it in a hole."""
    if text is None:
        raise ConfigError(f"{name} is missing: an interval FROM/TO (the history covers {history.window})")
    try:
        window = Interval.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    inside = window.overlap(history.window)
    outside_s = max(history.start_s - window.start_s, window.end_s - history.end_s)
    if not inside.seconds or outside_s > DAY_S:
        raise ConfigError(
            f"{name} {window} lies outside of the history by more than a day (it covers {history.window})"
        )
    if outside_s > 0:
        notes.append(f"{name} is cut to the history: {inside}")
    usable_s = sum(piece.seconds for piece in history.usable(inside))
    if 2 * usable_s < inside.seconds:
        holes = ", ".join(str(hole) for hole in history.holes)
        raise ConfigError(f"{name} {window} lies mostly in a hole of the recording ({holes})")
    return inside
