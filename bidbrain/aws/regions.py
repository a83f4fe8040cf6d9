"""Several regions of EC2 as one market of one job: each order goes to the region of its zone, all else to every region.

The home region has the head, the queue of the stack and the reliable machines; when it does not answer, nothing does,
as with one region. Another region may be silent: that is a trouble of the quotes, nothing is bought there, what is held
there is kept, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from bidbrain.aws.clients import Clients
from bidbrain.aws.ec2 import Ec2, Offerings
from bidbrain.aws.limits import Catalog
from bidbrain.aws.site import Site
from bidbrain.aws.stack.attach import Attached, attach
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CloudError,
    EndedInstance,
    Instance,
    InstanceNotice,
    Order,
    Quotes,
    RefusedError,
    UnknownOutcomeError,
)

SILENT_S = 60  # how long a region that did not answer is left alone, twice as long each time
MOST_SILENT_S = 240  # a call without an answer takes a while, in which the other regions wait
GIVE_UP_S = 120  # an order without an answer holds up the other regions no longer than this
T = TypeVar("T")


class _Region:
    """Another region. open: attaches to the stack's part there, which may have to be tried again."""

    def __init__(self, name: str, open_: Callable[[], Ec2], zones: Collection[str]) -> None:
        self.name, self.zones = name, frozenset(zones)
        self._open = open_
        self._ec2: Ec2 | None = None
        self.trouble = ""
        self.again_s = 0
        self._wait_s = SILENT_S

    def failed(self, error: CloudError, now_s: int) -> None:
        """It did not answer."""
        self.trouble, self.again_s = str(error), now_s + self._wait_s
        self._wait_s = min(2 * self._wait_s, MOST_SILENT_S)

    def answered(self) -> None:
        """It did."""
        self.trouble, self._wait_s = "", SILENT_S

    @property
    def ec2(self) -> Ec2:
        if self._ec2 is None:
            self._ec2 = self._open()
        return self._ec2

    @property
    def last(self) -> Ec2 | None:
        """Without a call; None: it has never answered."""
        return self._ec2


class Ec2Regions:
    """The market of one job in its home region and others. See the module; `live.cloud.Cloud` for the methods."""

    together = False

    def __init__(
        self,
        home: Ec2,
        others: Mapping[str, Callable[[], Ec2]],
        zones: Mapping[str, Collection[str]],
        offered: Offerings,
        now_s: Callable[[], int],
    ) -> None:
        """others: by name, each attached when it is first asked. zones: those of each other region."""
        self._home = home
        self._others = tuple(_Region(name, open_, zones[name]) for name, open_ in others.items())
        self._offered = offered
        self._now_s = now_s
        self._where: dict[str, _Region | None] = {}  # machine -> its region, None: home
        self._asked_s: dict[str, int] = {}  # order without an answer -> when it was asked first

    @property
    def silent(self) -> tuple[str, ...]:
        """Regions that do not answer."""
        return tuple(each.name for each in self._others if each.trouble)

    def _ask(self, region: _Region, call: Callable[[Ec2], T], otherwise: T) -> T:
        """A region's answer, or `otherwise` while it is silent."""
        now_s = self._now_s()
        if region.trouble and now_s < region.again_s:
            return otherwise
        try:
            answer = call(region.ec2)
        except CloudError as error:
            region.failed(error, self._now_s())
            return otherwise
        region.answered()
        return answer

    def _of(self, market: Market) -> _Region | None:
        return next((each for each in self._others if market.zone in each.zones), None)

    # -- prices ---------------------------------------------------------------------------------------------------

    def quotes(self, now_s: int) -> Quotes:
        """All regions' together; a region that is silent has no offers and a sentence."""
        first = self._home.quotes(now_s)
        found, troubles = [first], list(first.troubles)
        for region in self._others:
            answer = self._ask(region, lambda ec2: ec2.quotes(now_s), None)
            if answer is None:
                troubles.append(
                    f"the region {region.name} does not answer ({region.trouble}): nothing is bought there, "
                    "what is held there is kept"
                )
            else:
                found.append(answer)
                troubles += answer.troubles
        offers = tuple(offer for each in found for offer in each.offers)
        full = frozenset(market for each in found for market in each.full)
        pulse = " ".join([*(each.pulse for each in found), *self.silent])
        return Quotes(offers, pulse, full, tuple(troubles))

    def price(self, market: Market, at_s: int) -> int:
        """Of a silent region the last price known; if none is, what the type costs on demand."""
        region = self._of(market)
        if region is None:
            return self._home.price(market, at_s)
        answer = self._ask(region, lambda ec2: ec2.price(market, at_s), None)
        if answer is not None:
            return answer
        last = None if region.last is None else region.last.last_price(market, at_s)
        return self._offered.by_market[market].on_demand if last is None else last

    # -- buying ---------------------------------------------------------------------------------------------------

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        """In the region of the order's zone.

        An order that a region leaves without an answer is repeated for `GIVE_UP_S` and then taken for refused, or it
        would hold up the others. What it bought all the same carries the job's tag and belongs to no order, so the
        service gives it back when it sees it.
        """
        region = self._of(order.market)
        if region is None:
            return self._seen(self._home.acquire(order), None)
        now_s = self._now_s()
        if region.trouble and order.token not in self._asked_s and now_s < region.again_s:
            raise RefusedError(f"{order.market}: the region {region.name} does not answer ({region.trouble})")
        asked_s = self._asked_s.setdefault(order.token, now_s)
        try:
            bought = self._seen(region.ec2.acquire(order), region)
        except UnknownOutcomeError as error:
            if self._now_s() - asked_s < GIVE_UP_S:
                raise
            region.failed(error, self._now_s())
            del self._asked_s[order.token]
            raise RefusedError(
                f"{order.market}: no answer for {GIVE_UP_S} s ({error}); what it bought is given back when it is seen"
            ) from None
        except RefusedError:
            del self._asked_s[order.token]
            raise
        except CloudError as error:  # as where the account may not use the region: nothing was bought
            region.failed(error, self._now_s())
            del self._asked_s[order.token]
            raise RefusedError(f"{order.market}: {error}") from None
        del self._asked_s[order.token]
        return bought

    def _seen(self, instances: tuple[Instance, ...], region: _Region | None) -> tuple[Instance, ...]:
        self._where.update((each.instance_id, region) for each in instances)
        return instances

    # -- what there is --------------------------------------------------------------------------------------------

    def held(self) -> tuple[Instance, ...]:
        """Machines of the regions that answer."""
        found = list(self._seen(self._home.held(), None))
        for region in self._others:
            found += self._seen(self._ask(region, Ec2.held, ()), region)
        return tuple(found)

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        """Of machines in regions that answer: silence is no end."""
        home, elsewhere, unknown = self._split(instance_ids)
        if not self.silent:  # nobody lists them: the home region says when that means that they are gone
            home += unknown
        fates = list(self._home.ended(tuple(home))) if home else []
        for region, ids in elsewhere.items():
            fates += self._ask(region, lambda ec2, ids=ids: ec2.ended(tuple(ids)), ())  # type: ignore[misc]
        return tuple(fates)

    def release(self, instance_ids: tuple[str, ...]) -> None:
        """Where there are machines in a region that does not answer, the home region too, raises UnknownOutcomeError
        after all others were given back."""
        home, elsewhere, unknown = self._split(instance_ids)
        left = list(unknown) if self.silent else []
        why = [f"{each.name}: {each.trouble}" for each in self._others if each.trouble] if left else []
        at_home = home if self.silent else [*home, *unknown]
        places: list[tuple[_Region | None, list[str]]] = [(None, at_home), *elsewhere.items()]
        for region, ids in places:
            try:
                (self._home if region is None else region.ec2).release(tuple(ids))
            except CloudError as error:
                left += ids
                why.append(f"{'the home region' if region is None else region.name}: {error}")
        if left:
            raise UnknownOutcomeError(f"ending machines: {', '.join(left)} ({'; '.join(why)})")

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Of the queues of the regions that answer; machines tell what their metadata service says themselves."""
        found = list(self._home.notices())
        for region in self._others:
            found += self._ask(region, Ec2.notices, ())
        return tuple(found)

    def _split(self, ids: Iterable[str]) -> tuple[list[str], dict[_Region, list[str]], list[str]]:
        """(at home, by other region, in no region that answers); a new process asks where its machines are."""
        new = tuple(each for each in ids if each not in self._where)
        if new:
            self._where.update(dict.fromkeys(self._home.listed(new)))
            for region in self._others:
                nothing: frozenset[str] = frozenset()
                found = self._ask(region, lambda ec2: ec2.listed(new), nothing)
                self._where.update(dict.fromkeys(found, region))
        home: list[str] = []
        unknown: list[str] = []
        elsewhere: dict[_Region, list[str]] = {}
        for each in ids:
            if each not in self._where:
                unknown.append(each)
            elif (there := self._where[each]) is None:
                home.append(each)
            else:
                elsewhere.setdefault(there, []).append(each)
        return home, elsewhere, unknown


def market_of(
    site: Site,
    job: str,
    offered: Offerings,
    now_s: Callable[[], int],
    aws: Clients,
    folder: Path | None = None,
) -> tuple[Attached, Ec2 | Ec2Regions]:
    """The market of a job in all regions of its stack. folder: where prices are archived, a file for each region.

    Raises CloudError where the home region has no stack, or does not answer.
    """

    def ec2(region: str, attached: Attached) -> Ec2:
        zones = site.zones_in(region)
        listings = tuple(each for each in offered.listings if each.market.zone in zones)
        archive = None if folder is None else folder / f"{region}.csv.gz"
        what = (attached.ec2, attached.place, Catalog(listings, offered.reliable), now_s)
        return Ec2(*what, attached.queue, archive, attached.look_again)

    home = attach(site, job, aws)
    market = ec2(site.region, home)
    if not site.regions:
        return home, market
    others = {name: _opened(ec2, site, name, job, aws) for name in site.regions}
    zones = {name: each.zones for name, each in site.regions.items()}
    return home, Ec2Regions(market, others, zones, offered, now_s)


def _opened(
    ec2: Callable[[str, Attached], Ec2], site: Site, region: str, job: str, aws: Clients
) -> Callable[[], Ec2]:
    return lambda: ec2(region, attach(site, job, aws, region))
