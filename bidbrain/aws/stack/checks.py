"""Checks before money is spent, and the cost per hour. Pure: facts in, verdicts out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Network

from bidbrain.aws.site import HEAD_GIB, Site
from bidbrain.aws.stack.names import names_of
from bidbrain.machines import TABLE_REGION, UnknownTypeError, find_type
from bidbrain.money import micro_usd, show_usd

DISK_USD_PER_GIB_MONTH = 0.08  # gp3 in us-east-1
ADDRESS_USD_PER_H = 0.005  # a public IPv4 address
MONTH_H = 730
TABLE = f"the package's table ({TABLE_REGION})"  # a source of prices
LATEST_S = 1 << 40


class Verdict(StrEnum):
    """The result of a check."""

    GOOD = "ok"
    WRONG = "wrong"
    NOTE = "note"
    UNREAD = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. text: a sentence that can stand alone."""

    what: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class TypeFact:
    """A machine type in this region.

    on_demand: micro-dollars per hour, None where no source knows it; source: its name. zones: those of the stack where
    the type is offered.
    """

    vcpus: int
    architectures: tuple[str, ...]
    on_demand: int | None
    source: str
    zones: tuple[str, ...]


@dataclass(frozen=True)
class Unread:
    """A fact that could not be read, and why."""

    why: str


@dataclass(frozen=True)
class Quota:
    """A limit of the account on running vCPUs of a family, on-demand or spot."""

    code: str
    name: str
    vcpus: float


@dataclass(frozen=True)
class Facts:
    """The facts of the account and the region. spot: (type, zone) -> micro-dollars per hour.

    image_gib: the smallest disk that the image fits on; 0: not known.
    quotas: by (family, "spot" or "on-demand"). rights: actions that this identity may not do, None of them if empty.
    cidrs: of the home region's network, where there are other regions; elsewhere: the facts of those.
    """

    account: str
    identity: str
    all_zones: tuple[str, ...]
    types: Mapping[str, TypeFact]
    image: str
    image_architecture: str | None
    root_device: str
    vpc: str
    subnets: Mapping[str, str]
    spot: Mapping[tuple[str, str], int] | Unread
    quotas: Mapping[tuple[str, str], Quota | Unread] = field(default_factory=dict)
    denied: tuple[str, ...] | Unread = ()
    cidrs: tuple[str, ...] = ()
    elsewhere: Mapping[str, Facts] = field(default_factory=dict)
    image_gib: int = 0

    @property
    def head_gib(self) -> int:
        """The disk of the head."""
        return max(HEAD_GIB, self.image_gib)

    @property
    def spot_everywhere(self) -> Mapping[tuple[str, str], int]:
        """Spot prices of all regions that are known."""
        each = [
            facts.spot for facts in (self, *self.elsewhere.values()) if not isinstance(facts.spot, Unread)
        ]
        return {market: price for prices in each for market, price in prices.items()}


@dataclass(frozen=True)
class Scale:
    """The number of machines of a job. most: reliable ones included. budget: micro-dollars.

    deadline_vcpus: the most that it buys on demand close to its deadline, beside the reliable machines.
    """

    reliable: int
    most: int
    budget: int | None
    deadline_vcpus: int = 0


@dataclass(frozen=True)
class Cost:
    """One line of the estimate, micro-dollars per hour, None where it is not known."""

    what: str
    per_h: int | None
    basis: str
    is_sure: bool  # there from the first minute on, whatever BidBrain decides


def family(instance_type: str) -> str:
    """The family that a quota is for: `standard` (A, C, D, H, I, M, R, T, Z), or the type's own letters."""
    letters = instance_type[: len(instance_type) - len(instance_type.lstrip("abcdefghijklmnopqrstuvwxyz-"))]
    if letters[:1] in "acdhimrtz" and not letters.startswith(("inf", "hpc", "dl", "trn", "mac", "high")):
        return "standard"
    return {"vt": "g", "gr": "g"}.get(letters, letters)


def nearest(word: str, known: tuple[str, ...]) -> str:
    """An ending of a sentence: what might have been meant."""
    close = difflib.get_close_matches(word, known, 3, 0.5)
    return f"expected {' or '.join(close)}" if close else f"expected one of {', '.join(known[:8])}"


def checks(site: Site, scale: Scale, facts: Facts) -> Iterator[Check]:
    """Every check in the order of what it needs. A wrong one: `up` must not begin."""
    yield Check("credentials", Verdict.GOOD, f"{facts.identity} in account {facts.account}")
    yield from _zones(site, facts)
    yield from _types(site, facts)
    yield from _image(site, facts)
    yield from _quotas(site, scale, facts)
    yield from _prices(site, facts)
    yield from _counted_prices(site, facts)
    for region, there in facts.elsewhere.items():
        for check in _elsewhere(site, region, scale, facts, there):
            yield replace(check, text=f"{region}: {check.text}")
    yield from _rights(site, facts)
    yield from _budget(site, scale, facts)


def _elsewhere(site: Site, region: str, scale: Scale, facts: Facts, there: Facts) -> Iterator[Check]:
    """The checks of another region."""
    part = site.part_in(region)
    yield from _zones(part, there)
    yield from _types(part, there, is_home=False)
    yield from _image(part, there)
    yield from _quotas(part, scale, there)
    yield from _prices(part, there)
    mine = site.cidr_of(region)
    for cidr in facts.cidrs:
        if mine.overlaps(IPv4Network(cidr)):
            text = (
                f"market.regions: found the network {mine}, expected one that does not overlap with {cidr}, "
                f"the network of {site.region}: set market.regions.{region}.cidr"
            )
            yield Check("networks", Verdict.WRONG, text)
            return
    yield Check("networks", Verdict.GOOD, f"{mine}")


def _zones(site: Site, facts: Facts) -> Iterator[Check]:
    missing = [zone for zone in site.zones if zone not in facts.all_zones]
    for zone in missing:
        text = f"market.zones: found {zone}, {nearest(zone, facts.all_zones)}"
        yield Check("zones", Verdict.WRONG, text)
    for zone in site.zones:
        if zone not in facts.subnets and zone not in missing:
            text = (
                f"market.subnets: found none for zone {zone}, expected one (the default VPC has none there)"
            )
            yield Check("subnets", Verdict.WRONG, text)
    if not missing:
        yield Check("zones", Verdict.GOOD, ", ".join(site.zones))


def _types(site: Site, facts: Facts, *, is_home: bool = True) -> Iterator[Check]:
    """is_home: the head and the reliable machines are here, in the first zone, also where spot machines of their types
    are bought in every zone."""
    for name in site.all_types:
        fact = facts.types[name]
        absent = [zone for zone in site.zones if zone not in fact.zones]
        if name in site.types and len(absent) == len(site.zones):
            text = (
                f"market.types: {name} is offered in none of {', '.join(site.zones)}, expected another type"
            )
            yield Check("types", Verdict.WRONG, text)
        elif is_home and name in (site.head_type, site.of_reliable) and site.zones[0] in absent:
            where = f"{site.zones[0]}, where the head and the reliable machines go"
            yield Check("types", Verdict.WRONG, f"machine type {name}: found no offer in {where}")
        elif absent and name in site.types:
            yield Check("types", Verdict.NOTE, f"{name} is not offered in {', '.join(absent)}")
        else:
            yield Check("types", Verdict.GOOD, f"{name}: {fact.vcpus} vCPUs")


def _image(site: Site, facts: Facts) -> Iterator[Check]:
    built = facts.image_architecture
    if built is None:
        yield Check("image", Verdict.UNREAD, f"{facts.image} cannot be described")
        return
    for name in site.all_types:
        if built not in facts.types[name].architectures:
            has = ", ".join(facts.types[name].architectures)
            text = f"market.image: {facts.image} is built for {built}, expected {has} as {name} has"
            yield Check("image", Verdict.WRONG, text)
            return
    if site.disk_gib < facts.image_gib:
        text = f"market.disk_gib: found {site.disk_gib}, expected at least {facts.image_gib}, as {facts.image} has"
        yield Check("image", Verdict.WRONG, text)
        return
    yield Check("image", Verdict.GOOD, f"{facts.image}, {built}")


def _quotas(site: Site, scale: Scale, facts: Facts) -> Iterator[Check]:
    types = facts.types
    fixed = [(site.head_type, 1), (site.of_reliable, scale.reliable)]
    for (group, life), quota in facts.quotas.items():
        if isinstance(quota, Unread):
            yield Check("quotas", Verdict.UNREAD, f"{life} vCPUs of {group} types: {quota.why}")
            continue
        what = f"quota {quota.code} ({quota.name})"
        if life == "on-demand":
            need = sum(types[name].vcpus * count for name, count in fixed if family(name) == group)
            want, who = need, "the head and the reliable machines"
            if family(site.of_reliable) == group:
                size = types[site.of_reliable].vcpus
                want += -(-scale.deadline_vcpus // size) * size
        else:
            sizes = [types[name].vcpus for name in site.types if family(name) == group]
            need, want = min(sizes), max(sizes) * (scale.most - scale.reliable)
            who = "the smallest spot machine"
        if quota.vcpus < need:
            text = (
                f"{what}: found {quota.vcpus:g} vCPUs, expected at least {need} for {who}; "
                "ask AWS for more in Service Quotas"
            )
            yield Check("quotas", Verdict.WRONG, text)
        elif quota.vcpus < want:
            text = f"{what}: {quota.vcpus:g} vCPUs, the most that this job may use is {want}"
            yield Check("quotas", Verdict.NOTE, text)
        else:
            yield Check("quotas", Verdict.GOOD, f"{what}: {quota.vcpus:g} vCPUs")


def _prices(site: Site, facts: Facts) -> Iterator[Check]:
    for name in site.all_types:
        if facts.types[name].on_demand is None:
            asked = facts.types[name].source
            text = (
                f"machine type {name}: found no on-demand price ({asked}), expected one in market.on_demand"
            )
            yield Check("prices", Verdict.WRONG, text)
    if isinstance(facts.spot, Unread):
        yield Check("prices", Verdict.UNREAD, f"spot prices: {facts.spot.why}")
    elif not any(name in site.types for name, _ in facts.spot):
        text = f"spot prices: found none of {', '.join(site.types)} in {', '.join(site.zones)}, expected at least one"
        yield Check("prices", Verdict.WRONG, text)
    else:
        yield Check("prices", Verdict.GOOD, f"spot prices of {len(facts.spot)} markets")


def _counted_prices(site: Site, facts: Facts) -> Iterator[Check]:
    """Jobs and the buyer count with the config's prices, else with the package's table: a budget is passed where AWS
    bills more for the reliable machines than that."""
    if any(facts.types[name].source == TABLE for name in site.bought_types) and site.region != TABLE_REGION:
        text = (
            f"AWS's price list could not be read, and jobs count with on-demand prices of {TABLE_REGION}: "
            f"set market.on_demand where {site.region} has others"
        )
        yield Check("prices", Verdict.NOTE, text)
    for name in site.bought_types:
        fact = facts.types[name]
        try:
            counted = find_type(name, LATEST_S).on_demand
        except UnknownTypeError:
            if name not in site.on_demand or name not in site.vcpus:
                text = (
                    f"machine type {name}: found it in no table of the package, expected its dollars per hour in "
                    f"market.on_demand and its vCPUs ({fact.vcpus}) in market.vcpus: jobs count with these"
                )
                yield Check("prices", Verdict.WRONG, text)
            continue
        if name in site.on_demand or fact.on_demand in (None, counted):
            continue
        is_dearer = name == site.of_reliable and (fact.on_demand or 0) > counted
        text = (
            f"machine type {name}: jobs count with {show_usd(counted)} $ per hour on demand, as in {TABLE_REGION}, "
            f"expected {show_usd(fact.on_demand or 0)} $ as {fact.source} says: set market.on_demand"
        )
        yield Check("prices", Verdict.WRONG if is_dearer else Verdict.NOTE, text)


def _rights(site: Site, facts: Facts) -> Iterator[Check]:
    if isinstance(facts.denied, Unread):
        yield Check("rights", Verdict.UNREAD, f"what {facts.identity} may do: {facts.denied.why}")
    elif facts.denied:
        text = f"{facts.identity} may not do {', '.join(facts.denied)}; the policy below allows it"
        if site.boundary is None and "iam:CreateRole" in facts.denied:
            text += f" with market.boundary: {names_of(site, facts.account).boundary}"
        yield Check("rights", Verdict.NOTE, text)
    else:
        yield Check("rights", Verdict.GOOD, "this identity may do all that is needed")


def _budget(site: Site, scale: Scale, facts: Facts) -> Iterator[Check]:
    most = None if site.stack_budget_usd is None else micro_usd(site.stack_budget_usd)
    if scale.budget is not None and most is not None and most < scale.budget:
        text = (
            f"market.stack_budget_usd: found {show_usd(most)}, expected at least {show_usd(scale.budget)}, "
            "market.budget_usd: the stack takes no job that may cost more than all of its jobs together"
        )
        yield Check("budget", Verdict.WRONG, text)
    sure = [cost for cost in costs(site, scale, facts) if cost.is_sure]
    if scale.budget is None or any(cost.per_h is None for cost in sure):
        return
    hour = sum(cost.per_h or 0 for cost in sure)
    if scale.budget < hour:
        text = (
            f"market.budget_usd: found {show_usd(scale.budget)}, expected at least {show_usd(hour)}, "
            "the first hour of the head and the reliable machines"
        )
        yield Check("budget", Verdict.WRONG, text)
    else:
        yield Check("budget", Verdict.GOOD, f"{show_usd(scale.budget)} $")


def costs(site: Site, scale: Scale, facts: Facts) -> tuple[Cost, ...]:
    """The costs of the stack per hour: first those in any case, then those of the most that BidBrain may buy."""
    head, reliable = facts.types[site.head_type], facts.types[site.of_reliable]

    def times(price: int | None, count: int) -> int | None:
        return None if price is None else price * count

    def disks(count: int, gib: int) -> int:
        return round(1e6 * count * gib * DISK_USD_PER_GIB_MONTH / MONTH_H)

    transient = scale.most - scale.reliable
    address = round(1e6 * ADDRESS_USD_PER_H)
    lines = [
        Cost(f"head, {site.head_type}", head.on_demand, head.source, True),
        Cost(
            f"{scale.reliable} x {site.of_reliable}, reliable",
            times(reliable.on_demand, scale.reliable),
            reliable.source,
            True,
        ),
        Cost(
            f"disks and addresses of {1 + scale.reliable} machines",
            disks(1, facts.head_gib) + disks(scale.reliable, site.disk_gib) + address * (1 + scale.reliable),
            "prices of us-east-1",
            True,
        ),
    ]
    if transient > 0:
        pools = sorted(facts.spot_everywhere.items(), key=lambda pair: pair[1])
        if not pools:
            lines.append(Cost(f"up to {transient} spot machines", None, "spot prices are not known", False))
        else:
            (name, zone), price = pools[0]
            (dear, there), most = pools[-1]
            basis = "price of now"
            if most > price:
                basis += f", the cheapest; {transient * most / 1e6:.4f} of {dear} in {there}, the dearest"
            lines.append(Cost(f"up to {transient} x {name} in {zone}, spot", transient * price, basis, False))
        more = disks(transient, site.disk_gib) + address * transient
        lines.append(Cost(f"disks and addresses of {transient} machines", more, "prices of us-east-1", False))
    return tuple(lines)
