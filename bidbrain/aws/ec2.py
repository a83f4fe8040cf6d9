"""EC2 as a market: instant fleets from our launch template, found again by tag, prices as they are.

One order is one `create_fleet(Type="instant")` with the order's token as ClientToken, in one pool (type and zone):
which pool is BidBrain's decision, so several types and zones are several orders. Every machine carries the job, the
order and the market as tags, and that is how it is found, counted and ended.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bidbrain.aws.answers import TAG_JOB, TAG_MARKET, TAG_ORDER, fate_of, fleet_error, machine_of
from bidbrain.aws.calls import NoRightError, UnknownMachineError, errors
from bidbrain.aws.prices import Ec2Prices
from bidbrain.billing import Ending
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CapacityError,
    CloudError,
    CredentialsError,
    EndedInstance,
    Instance,
    InstanceNotice,
    KnownTokenError,
    NoticeSource,
    Order,
    QuotaError,
    Quotes,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.policy.base import Offer
from bidbrain.risk.survival import RECENT_S
from bidbrain.setting import ON_DEMAND_ZONE, Listing, Reliable

SPOT_STRATEGY = "price-capacity-optimized"
ON_DEMAND_STRATEGY = "lowest-price"
FULL_S = 600  # how long a market that refused is left alone
MOST_DENIED = 3  # tries to buy in a market without the right, which may just be coming; then it is left alone
PULSE_S = 120  # capacity cannot be seen: a policy that waits for it asks again this often
UNSEEN_S = 600  # a new machine may not be listed yet; after this it is gone
MOST_UNSEEN = 10_000  # of which it is known since when: whoever asks may make ids up
BATCH = 200
STOPPED = ("stopping", "stopped")
ALIVE = ["pending", "running", *STOPPED]
_ID = re.compile(r"i-[0-9a-f]+")


@dataclass(frozen=True)
class Place:
    """The template and the subnets of a job's instances.

    subnets: zone -> subnet id; on-demand instances go to the first zone.
    """

    job: str
    template_id: str
    template_version: str
    subnets: Mapping[str, str]
    tags: Mapping[str, str]


class NoticeQueue(NoticeSource, Protocol):
    """A source of notices that says what is wrong with itself."""

    @property
    def troubles(self) -> tuple[str, ...]: ...


class Offerings(Protocol):
    """The offers that may be bought: a `setting.Setting`, or a `limits.Catalog`."""

    @property
    def listings(self) -> tuple[Listing, ...]: ...

    @property
    def markets(self) -> tuple[Market, ...]: ...

    @property
    def by_market(self) -> Mapping[Market, Listing]: ...

    @property
    def reliable(self) -> Reliable: ...


class Ec2:
    """The market of one job in one region. `now_s`: Unix time."""

    together = False
    silent: tuple[str, ...] = ()  # a single region that does not answer is an error

    def __init__(
        self,
        ec2: Any,
        place: Place,
        setting: Offerings,
        now_s: Callable[[], int],
        queue: NoticeQueue | None = None,
        archive: Path | None = None,
        look_again: Callable[[], Place] | None = None,
    ) -> None:
        """look_again: the place as it is now. Raises CloudError."""
        self._ec2 = ec2
        self._place, self._look_again = place, look_again
        self._setting = setting
        self._now_s = now_s
        self._queue = queue
        self._prices = Ec2Prices(ec2, setting.markets, archive)
        # Until when each market is left alone, and the kind of its refusal.
        self._refusals: dict[Market, tuple[int, type[RefusedError]]] = {}
        self._unseen_since_s: dict[str, int] = {}
        self._bought_s: dict[str, int] = {}
        self._sent: set[str] = set()  # tokens that EC2 may know
        self._without_rights = Counter[str]()  # by order: fleets that came empty for want of rights
        self._denied = Counter[Market]()  # purchases in a row without the right to them

    # -- prices ---------------------------------------------------------------------------------------------------

    def quotes(self, now_s: int) -> Quotes:
        self._prices.refresh(now_s)
        offers: list[Offer] = []
        gone: list[str] = []
        for listing in self._setting.listings:
            steps, price = self._prices.steps(listing.market), self._prices.price(listing.market, now_s)
            if steps is None or price is None or not self._prices.is_quoted(listing.market):
                gone.append(str(listing.market))
                continue
            high = steps.highest(now_s - RECENT_S, now_s)
            what = (listing.market, price, high or price, listing.on_demand, listing.vcpus)
            offers.append(Offer(*what, float(listing.vcpus)))
        full = frozenset(market for market, (until_s, _) in self._refusals.items() if until_s > now_s)
        prices = " ".join(f"{offer.market} {offer.price}" for offer in offers)
        pulse = f"{now_s // PULSE_S}-{zlib.crc32(prices.encode()):08x}"
        troubles = () if self._queue is None else self._queue.troubles
        if gone:
            said = f"AWS has no spot price of {', '.join(gone)}: nothing is bought there, what is held there is kept"
            troubles = (said, *troubles)
        denied = [market for market in self._setting.markets if self._denied[market] >= MOST_DENIED]
        if denied:
            named = ", ".join(map(str, denied))
            troubles = (*troubles, f"AWS allows no purchase of {named}: it is asked again every ten minutes")
        if self._prices.trouble:
            troubles = (*troubles, self._prices.trouble)
        return Quotes(tuple(offers), pulse, full, troubles)

    def price(self, market: Market, at_s: int) -> int:
        """Of a spot market that AWS has no price of since before this process began, what the type costs on demand."""
        if market.zone == ON_DEMAND_ZONE:
            return self._setting.reliable.on_demand
        self._prices.refresh(self._now_s())
        price = self.last_price(market, at_s)
        return self._setting.by_market[market].on_demand if price is None else price

    def last_price(self, market: Market, at_s: int) -> int | None:
        """Of a spot market as far as it is known without asking; None: nothing is."""
        return self._prices.price(market, at_s)

    # -- buying -----------------------------------------------------------------------------------------------------

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        now_s = self._now_s()
        is_new = order.token not in self._sent  # of another one EC2 may have sold machines already
        until_s, refusal = self._refusals.get(order.market, (now_s, RefusedError))
        if is_new and until_s > now_s:  # for the reason of then: a quota says nothing about the pool
            raise refusal(f"{order.market} refused a short while ago")
        what, request = f"{order.instances} x {order.market}", self.fleet(order)
        self._sent.add(order.token)
        try:
            with errors(what):
                answer = self._ec2.create_fleet(**request)
            ids = [each for group in answer.get("Instances", ()) for each in group["InstanceIds"]]
            if not ids:
                error = fleet_error(answer.get("Errors", ()), what)
                self._without_rights[order.token] += isinstance(error, CredentialsError)
                raise error
        except (CapacityError, QuotaError) as error:
            self._remember(order.market, now_s, error)
            raise
        except CredentialsError as error:
            self._renew()
            if isinstance(error, NoRightError) and self._is_denied(order):
                refused = RefusedError(str(error))
                self._remember(order.market, now_s, refused)
                raise refused from None
            raise
        except KnownTokenError:
            if not (sold := self._sold_before(order)):
                raise
            return sold
        self._denied.pop(order.market, None)
        if len(ids) < order.instances:
            self._remember(order.market, now_s, fleet_error(answer.get("Errors", ()), what))
        self._bought_s.update(dict.fromkeys(ids, now_s))
        launched_s = self._launch_times(ids)
        return tuple(Instance(each, order.token, order.market, launched_s.get(each, now_s)) for each in ids)

    def _is_denied(self, order: Order) -> bool:
        """Whether a spot market is to be left alone, so that others are bought in: an account may forbid one type or
        zone. Without its reliable machines a job has no others."""
        self._denied[order.market] += 1
        return not order.on_demand and self._denied[order.market] >= MOST_DENIED

    def _sold_before(self, order: Order) -> tuple[Instance, ...]:
        """The instances of an order from a template that `up` has replaced since: EC2 keeps its token for that one."""
        return tuple(each for each in self.held() if each.token == order.token)

    def _renew(self) -> None:
        """Order from the newest template from now on: since `up` made it, the rights may be for its image alone."""
        if self._look_again is not None:
            with suppress(CloudError):
                self._place = self._look_again()

    def _remember(self, market: Market, now_s: int, error: CloudError) -> None:
        kinds: tuple[type[RefusedError], ...] = (CapacityError, QuotaError)
        kind = next((each for each in kinds if isinstance(error, each)), RefusedError)
        if market.zone != ON_DEMAND_ZONE:
            self._refusals[market] = now_s + FULL_S, kind

    def fleet(self, order: Order) -> dict[str, Any]:
        """The request of an order. Raises RefusedError where the zone has no subnet of ours."""
        place = self._place
        zone = next(iter(place.subnets)) if order.on_demand else order.market.zone
        if zone not in place.subnets:
            known = ", ".join(place.subnets)
            raise RefusedError(f"{order.market}: there is no subnet for zone {zone} (there are {known})")
        override: dict[str, Any] = {
            "InstanceType": order.market.instance_type,
            "SubnetId": place.subnets[zone],
        }
        # AWS advises against a maximum price: without one the price ends at on-demand, and evictions are fewer.
        listing = self._setting.by_market.get(order.market)
        if listing is not None and order.bid < listing.on_demand:
            override["MaxPrice"] = f"{order.bid / 1e6:.6f}"
        spot = not order.on_demand
        tags = {
            **place.tags,
            TAG_JOB: place.job,
            TAG_ORDER: order.token,
            TAG_MARKET: str(order.market),
            "Name": f"proteus {place.job}",
        }
        # EC2 would repeat an answer for want of rights when the rights are there.
        times = self._without_rights[order.token]
        request: dict[str, Any] = {
            "Type": "instant",
            "ClientToken": f"{order.token}-{times}" if times else order.token,
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {
                        "LaunchTemplateId": place.template_id,
                        "Version": place.template_version,
                    },
                    "Overrides": [override],
                }
            ],
            "TargetCapacitySpecification": {
                "TotalTargetCapacity": order.instances,
                "SpotTargetCapacity": order.instances if spot else 0,
                "OnDemandTargetCapacity": 0 if spot else order.instances,
                "DefaultTargetCapacityType": "spot" if spot else "on-demand",
            },
            "TagSpecifications": [
                {
                    "ResourceType": kind,
                    "Tags": [{"Key": key, "Value": value} for key, value in sorted(tags.items())],
                }
                for kind in ("fleet", "instance")
            ],
        }
        if spot:
            request["SpotOptions"] = {
                "AllocationStrategy": SPOT_STRATEGY,
                "InstanceInterruptionBehavior": "terminate",
            }
        else:
            request["OnDemandOptions"] = {"AllocationStrategy": ON_DEMAND_STRATEGY}
        return request

    def _launch_times(self, ids: Sequence[str]) -> dict[str, int]:
        """When machines were launched, as far as they are listed by now: they are bought whether or not they are."""
        try:
            found = list(self._describe(_by_id(ids)))
        except CloudError:
            return {}
        return {each["InstanceId"]: int(each["LaunchTime"].timestamp()) for each in found}

    # -- what there is ----------------------------------------------------------------------------------------------

    def held(self) -> tuple[Instance, ...]:
        filters = [
            {"Name": f"tag:{TAG_JOB}", "Values": [self._place.job]},
            {"Name": "instance-state-name", "Values": ALIVE},
        ]
        return tuple(machine_of(each) for each in self._describe([filters]))

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        """See `live.cloud.Cloud`. One that was stopped, by its user or by AWS, is terminated, and has ended then: it
        would never join the cluster again, and its watchdog is gone."""
        now_s = self._now_s()
        seen = {each["InstanceId"]: each for each in self._describe(_by_id(instance_ids))}
        fates = []
        if stopped := [name for name, each in seen.items() if each["State"]["Name"] in STOPPED]:
            with suppress(CloudError):  # the next call tries it again
                self._terminate(stopped)
        for instance_id in instance_ids:
            instance = seen.get(instance_id)
            if instance is None:
                since_s = self._unseen_since_s.setdefault(instance_id, now_s)
                if len(self._unseen_since_s) > MOST_UNSEEN:  # the first of them was asked for long ago
                    del self._unseen_since_s[next(iter(self._unseen_since_s))]
                if now_s - since_s >= UNSEEN_S:
                    fates.append(EndedInstance(instance_id, now_s, Ending.TERMINATED))
                continue
            self._unseen_since_s.pop(instance_id, None)
            if instance["State"]["Name"] in ("shutting-down", "terminated"):
                fates.append(fate_of(instance, now_s))
        return tuple(fates)

    def listed(self, instance_ids: tuple[str, ...]) -> frozenset[str]:
        """The ids that this region knows, of ended instances too."""
        return frozenset(each["InstanceId"] for each in self._describe(_by_id(instance_ids)))

    def release(self, instance_ids: tuple[str, ...]) -> None:
        """See `live.cloud.Cloud`. One that may not be ended, as somebody has protected it, keeps no others."""
        kept: list[str] = []
        for start in range(0, len(instance_ids), BATCH):
            try:
                self._terminate(instance_ids[start : start + BATCH])
            except UnknownOutcomeError as error:
                kept.append(str(error))
        if kept:
            raise UnknownOutcomeError("; ".join(dict.fromkeys(kept)))

    def _terminate(self, ids: Sequence[str]) -> None:
        """End machines; what EC2 does not know is gone, or too new to be listed: then it is asked for again. So is one
        that EC2 does not end, as somebody has protected it: it costs money until then."""
        unknown: set[str] = set()
        kept: dict[str, str] = {}
        while rest := [each for each in ids if each not in unknown and each not in kept]:
            try:
                with errors("ending machines"):
                    self._ec2.terminate_instances(InstanceIds=rest)
                break
            except RefusedError as error:
                named = {each for each in _ID.findall(str(error)) if each in rest}
                if not named:
                    raise
                if isinstance(error, UnknownMachineError):
                    unknown |= named
                else:
                    kept |= dict.fromkeys(named, str(error))
        if kept:
            raise UnknownOutcomeError("; ".join(dict.fromkeys(kept.values())))
        new = sorted(
            each for each in unknown if self._now_s() - self._bought_s.get(each, -UNSEEN_S) < UNSEEN_S
        )
        if new:
            raise UnknownOutcomeError(f"ending machines: {', '.join(new)} are not known to EC2 yet")

    def notices(self) -> tuple[InstanceNotice, ...]:
        return () if self._queue is None else self._queue.notices()

    def _describe(self, groups: Sequence[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        with errors("listing machines"):
            for filters in groups:
                for page in self._ec2.get_paginator("describe_instances").paginate(Filters=filters):
                    for reservation in page["Reservations"]:
                        yield from reservation["Instances"]


def _by_id(ids: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Filters by id, in groups: unlike InstanceIds, a filter does not fail for an id that is gone."""
    return [
        [{"Name": "instance-id", "Values": list(ids[start : start + BATCH])}]
        for start in range(0, len(ids), BATCH)
    ]
