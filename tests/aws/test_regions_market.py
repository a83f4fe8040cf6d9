"""A job in two regions of EC2 as moto plays them: the cheaper one, notices, a silent region, kills."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bidbrain.accounts.ledger import EntryKind
from bidbrain.aws.calls import client
from bidbrain.aws.ec2 import Ec2, NoticeQueue, Place
from bidbrain.aws.limits import Catalog
from bidbrain.aws.notices import SqsNotices
from bidbrain.aws.regions import GIVE_UP_S, MOST_SILENT_S, Ec2Regions
from bidbrain.history.prices import Market
from bidbrain.instants import show_instant
from bidbrain.live.cloud import CloudError, Instance, Order, RefusedError, UnknownOutcomeError
from bidbrain.live.journal import Answered, Noticed, Record, Stray, Troubled
from tests.aws.ground import ZONES, AwsGround
from tests.aws.kill_campaign import KillCampaign, forget
from tests.aws.layer import Ec2Layer
from tests.aws.test_ec2 import event
from tests.bidbrain.live.makers import Memory

pytestmark = pytest.mark.aws

WEST = "us-west-2"
WEST_ZONES = ("us-west-2a", "us-west-2b")
FIRST = Market("c5.xlarge", "us-west-2a")


class TwoRegions(AwsGround):
    """A job whose second region is cheaper."""

    def __init__(
        self, home: Ec2Layer, west: Ec2Layer, job: str, queue: NoticeQueue | None = None, **size: float
    ) -> None:
        self.west, self._west_queue = west, queue
        super().__init__(home, job, zones=(*ZONES, *WEST_ZONES), **size)
        for number, listing in enumerate(self.setting.listings):
            market = listing.market
            is_west = market.zone in WEST_ZONES
            layer = west if is_west else home
            price = 0.12 if market.instance_type == "m5.xlarge" else 0.03 if is_west else 0.05
            layer.prices[(market.instance_type, market.zone)] = price + 0.002 * number

    def new_cloud(self) -> Ec2Regions:
        """As a new process sees EC2: it has not yet asked the other region."""

        def ec2(layer: Ec2Layer, zones: tuple[str, ...], queue: NoticeQueue | None) -> Ec2:
            listings = tuple(each for each in self.setting.listings if each.market.zone in zones)
            place = Place(self.job, *layer.template(), layer.subnets, {"proteus:owner": "bidbrain"})
            return Ec2(layer, place, Catalog(listings, self.setting.reliable), self.now_s, queue)

        def west() -> Ec2:
            if self.west.is_silent:
                raise UnknownOutcomeError("the stack: no answer")
            return ec2(self.west, WEST_ZONES, self._west_queue)

        home = ec2(self.layer, ZONES, None)
        return Ec2Regions(home, {WEST: west}, {WEST: WEST_ZONES}, self.setting, self.now_s)

    def alive(self) -> list[str]:
        return [each["InstanceId"] for layer in (self.layer, self.west) for each in layer.alive(self.job)]

    def silence(self, is_silent: bool = True) -> None:
        self.west.is_silent = is_silent


@pytest.fixture
def west(moto_url: str) -> Ec2Layer:
    return Ec2Layer(moto_url, region=WEST)


def grants(ground: AwsGround) -> Counter[str]:
    assert ground.service is not None
    entries = ground.service.state.ledger().entries
    return Counter(str(each.market) for each in entries if each.kind is EntryKind.GRANT)


def test_machines_are_bought_where_they_are_cheaper(ec2: Ec2Layer, west: Ec2Layer) -> None:
    ground = TwoRegions(ec2, west, "cheaper")
    west.most = {"us-west-2a": 4}
    west.full = {"us-west-2b"}
    assert ground.play(Memory()).finished
    assert grants(ground) == {
        "c5.xlarge@on-demand": 2,  # at home
        "c5.xlarge@us-west-2a": 4,
        "c5.xlarge@us-east-1a": 2,
    }
    assert not ground.alive()


def test_a_notice_of_the_other_region_reaches_the_job(ec2: Ec2Layer, west: Ec2Layer, moto_url: str) -> None:
    sqs = client("sqs", WEST, moto_url)
    url = sqs.create_queue(QueueName="notices-west")["QueueUrl"]
    ground, log = TwoRegions(ec2, west, "warned", SqsNotices(sqs, url)), Memory()
    victims: list[str] = []

    def warn() -> None:
        victims.append(sorted(each["InstanceId"] for each in west.alive("warned"))[0])
        kind = "EC2 Spot Instance Interruption Warning"
        sqs.send_message(QueueUrl=url, MessageBody=event(kind, victims[0], show_instant(ground.at_s)))

    ground.events = {
        ground.start_s + 1200: warn,
        ground.start_s + 1320: lambda: west.evict(victims[0]),
    }
    assert ground.play(log).finished
    noticed = [notice for r in log.records if isinstance(r, Noticed) for notice in r.notices]
    assert [(each.instance_id, each.deadline_s) for each in noticed] == [(victims[0], ground.start_s + 1320)]
    assert grants(ground)["c5.xlarge@us-west-2a"] == 7 and not ground.alive()


def test_a_region_that_is_silent_for_a_while(ec2: Ec2Layer, west: Ec2Layer) -> None:
    """Its machines work on, a loss at home is made good at home, and it is bought in again when it answers."""
    ground, log = TwoRegions(ec2, west, "silent", hours=1.2), Memory()
    west.most = {"us-west-2a": 3}
    west.full = {"us-west-2b"}
    start_s = ground.start_s
    ground.events = {
        start_s + 900: ground.silence,
        start_s + 1300: lambda: ec2.evict(sorted(_spot(ec2, "silent"))[0]),
        start_s + 2100: lambda: ground.silence(False),
        start_s + 2900: lambda: ec2.evict(sorted(_spot(ec2, "silent"))[0]),
    }
    assert ground.play(log).finished
    assert ground.service is not None and ground.service.state.account.evictions == 2
    assert grants(ground) == {
        "c5.xlarge@on-demand": 2,
        "c5.xlarge@us-west-2a": 4,  # three at first, one after the silence
        "c5.xlarge@us-east-1a": 4,
    }
    begun, over = (record for record in log.records if isinstance(record, Troubled))
    (said,) = begun.sentences
    assert said.startswith("the region us-west-2 does not answer (") and said.endswith("held there is kept")
    assert start_s + 900 <= begun.at_s <= start_s + 900 + 240 and over.sentences == ()
    assert start_s + 2100 <= over.at_s <= start_s + 2100 + MOST_SILENT_S + 120
    assert not ground.alive() and west.seen["silent"] > 3


def _spot(layer: Ec2Layer, job: str) -> list[str]:
    return [each["InstanceId"] for each in layer.alive(job) if each.get("InstanceLifecycle") == "spot"]


@pytest.mark.slow
def test_an_order_that_a_region_never_answers_holds_up_nothing_and_costs_nothing(
    ec2: Ec2Layer, west: Ec2Layer
) -> None:
    """EC2 has sold, and falls silent: the job goes on at home; what was bought is given back when it is seen."""
    ground, log = TwoRegions(ec2, west, "unheard", hours=1.0), Memory()
    west.lost = 1.0

    def fall_silent() -> None:
        if west.bought:
            ground.silence()

    acquire = west.create_fleet

    def sold_and_gone(**request: object) -> object:
        try:
            return acquire(**request)
        finally:
            fall_silent()

    west.create_fleet = sold_and_gone  # type: ignore[method-assign, assignment]
    ground.events = {ground.start_s + 1500: lambda: ground.silence(False)}
    assert ground.play(log).finished
    (sold,) = west.bought.values()
    assert grants(ground) == {"c5.xlarge@on-demand": 2, "c5.xlarge@us-east-1a": 6}
    refused = [r for r in log.records if isinstance(r, Answered) and f"no answer for {GIVE_UP_S} s" in r.why]
    assert len(refused) == 1 and refused[0].at_s < ground.start_s + 600
    assert sorted(r.instance.instance_id for r in log.records if isinstance(r, Stray)) == sorted(sold)
    assert not ground.alive()


def test_a_new_process_takes_silence_for_no_end(ec2: Ec2Layer, west: Ec2Layer) -> None:
    ground = TwoRegions(ec2, west, "young")
    bought = ground.cloud.acquire(Order("young-1", FIRST, 2, 1, 170_000))
    ids = tuple(each.instance_id for each in bought)
    ground.silence()
    cloud = ground.new_cloud()
    for _ in range(3):
        ground.at_s += 700  # longer than a listing may lag behind
        assert cloud.ended(ids) == () and cloud.held() == ()
        assert cloud.silent == (WEST,)
        with pytest.raises(UnknownOutcomeError, match=f"ending machines: {ids[0]}"):
            cloud.release(ids)
    assert cloud.price(FIRST, ground.at_s) == 170_000, "what it costs on demand, as no price was ever heard"
    with pytest.raises(RefusedError, match="the region us-west-2 does not answer"):
        cloud.acquire(Order("young-2", FIRST, 1, 1, 170_000))
    ground.silence(False)
    ground.at_s += MOST_SILENT_S
    assert {each.instance_id for each in cloud.held()} == set(ids) and not cloud.silent
    cloud.release(ids)
    assert not ground.alive()
    assert {each.instance_id for each in cloud.ended(ids)} == set(ids)


def test_a_silent_home_region_is_the_market_s_own_silence(ec2: Ec2Layer, west: Ec2Layer) -> None:
    ground = TwoRegions(ec2, west, "headless")
    ec2.is_silent = True
    with pytest.raises(CloudError):
        ground.cloud.quotes(ground.at_s)


def test_a_silent_home_region_keeps_no_machine_elsewhere(ec2: Ec2Layer, west: Ec2Layer) -> None:
    ground = TwoRegions(ec2, west, "away")
    here = Market("c5.xlarge", "us-east-1a")
    bought = [
        each.instance_id
        for number, market in enumerate((here, FIRST))
        for each in ground.cloud.acquire(Order(f"away-{number}", market, 1, 1, 170_000))
    ]
    ec2.is_silent = True
    with pytest.raises(UnknownOutcomeError, match=f"ending machines: {bought[0]} .the home region: "):
        ground.cloud.release(tuple(bought))
    assert ground.alive() == bought[:1]
    ec2.is_silent = False
    ground.cloud.release(tuple(bought))
    assert not ground.alive()


def campaign(url: str, folder: Path, kills: int) -> Counter[str]:
    """Jobs over two hostile regions, one of which falls silent; their services are killed at random moments."""
    made = KillCampaign(url, folder, kills, seed=7)
    number = 0
    while not made.is_over:
        forget(url)
        home, west = made.layer(number), made.layer(1000 + number, WEST)
        west.most = {"us-west-2a": 3}
        west.full = {"us-west-2b"}
        ground = TwoRegions(home, west, f"two{kills}x{number}", hours=0.5)
        ground.events = {
            ground.start_s + 600: lambda g=ground, w=west: [w.evict(m) for m in sorted(_spot(w, g.job))[:1]],
            ground.start_s + 800: ground.silence,
            ground.start_s + 1000: lambda g=ground, h=home: [h.evict(m) for m in sorted(_spot(h, g.job))[:1]],
            ground.start_s + 1400: lambda g=ground: g.silence(False),
        }
        assert made.play(ground).finished
        assert not ground.alive(), "orphans"
        told = {each.instance_id for record in made.journal(ground).records for each in _told(record)}
        bought = [m for layer in (home, west) for machines in layer.bought.values() for m in machines]
        assert len(set(bought)) == len(bought), "doubles"
        assert told == set(bought), "what was bought is in the journal, as bought or as a stray"
        made.hostile.update(home.seen + west.seen)
        number += 1
    made.say(number)
    return made.seen


def _told(record: Record) -> tuple[Instance, ...]:
    if isinstance(record, Answered):
        return record.instances
    return (record.instance,) if isinstance(record, Stray) else ()


@pytest.mark.slow
def test_three_kills_over_two_regions(moto_url: str, tmp_path: Path) -> None:
    assert sum(campaign(moto_url, tmp_path, 3).values()) == 3


@pytest.mark.slow
def test_a_hundred_kills_over_two_regions(moto_url: str, tmp_path: Path) -> None:
    assert len(campaign(moto_url, tmp_path, 100)) > 15


def test_what_the_queue_of_the_other_region_cannot_read_is_said(
    ec2: Ec2Layer, west: Ec2Layer, moto_url: str
) -> None:
    sqs = client("sqs", WEST, moto_url)
    url = sqs.create_queue(QueueName="torn-west")["QueueUrl"]
    ground = TwoRegions(ec2, west, "torn", SqsNotices(sqs, url))
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps([]))
    assert ground.cloud.notices() == ()
    (said,) = ground.cloud.quotes(ground.at_s).troubles
    assert said.startswith("the queue of notices: 1 message could not be read")
