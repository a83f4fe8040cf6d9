"""A job on EC2 as moto plays it: fleets, capacity, throttling, notices, evictions, budget, kills."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bidbrain.accounts.ledger import EntryKind
from bidbrain.accounts.rebill import rebill
from bidbrain.aws.calls import client
from bidbrain.aws.ec2 import FULL_S, Place
from bidbrain.aws.notices import SqsNotices
from bidbrain.aws.prices import GONE_S
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    Alert,
    CapacityError,
    CredentialsError,
    Order,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Answered, HourPassed, Noticed, Troubled
from bidbrain.setting import ON_DEMAND_ZONE
from tests.aws.ground import TYPES, USD, AwsGround
from tests.aws.kill_campaign import KillCampaign, forget
from tests.aws.layer import REGION, Ec2Layer
from tests.bidbrain.live.makers import Memory

pytestmark = pytest.mark.aws


def order_of(ground: AwsGround, token: str, machines: int, market: Market | None = None) -> Order:
    listing = ground.setting.listings[0]
    return Order(token, market or listing.market, machines, 1, listing.on_demand)


def test_a_job_from_first_to_last_machine(ec2: Ec2Layer) -> None:
    ground, log = AwsGround(ec2, "plain"), Memory()
    closing = ground.play(log)
    assert closing.finished and closing.code == 0
    assert not ec2.alive("plain")
    assert ground.service is not None
    ledger = ground.service.state.ledger()
    grants = [entry for entry in ledger.entries if entry.kind is EntryKind.GRANT]
    assert Counter(str(entry.market) for entry in grants) == {
        "c5.xlarge@on-demand": 2,
        "c5.xlarge@us-east-1a": 6,  # the cheapest
    }
    assert ec2.seen["fleets"] == 2  # one for the reliable machines, one for six spot machines
    # 120 s of boot and 0.7 h; 2 reliable machines at 0.17, 6 spot ones at 0.05 $/h.
    assert ledger.micro_usd == pytest.approx((2 * 170_000 + 6 * 50_000) * (120 + 0.7 * 3600) / 3600, abs=5)
    assert rebill(ledger, ground.setting.history).lines > 0


def test_what_a_fleet_asks_for(ec2: Ec2Layer) -> None:
    ground = AwsGround(ec2, "asks")
    request = ground.cloud.fleet(order_of(ground, "asks-7", 5))
    assert request["Type"] == "instant" and request["ClientToken"] == "asks-7"
    assert request["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    (config,) = request["LaunchTemplateConfigs"]
    assert config["LaunchTemplateSpecification"]["Version"] == "1"
    assert "MaxPrice" not in config["Overrides"][0]
    low = Order("t", ground.setting.listings[0].market, 1, 1, 60_000)
    assert ground.cloud.fleet(low)["LaunchTemplateConfigs"][0]["Overrides"][0]["MaxPrice"] == "0.060000"
    machines = ground.cloud.acquire(order_of(ground, "asks-7", 5))
    assert {machine.token for machine in machines} == {"asks-7"} and len(machines) == 5
    assert set(ground.cloud.held()) == set(machines)
    assert ground.cloud.acquire(order_of(ground, "asks-7", 5)) == machines
    ground.cloud.release((*(m.instance_id for m in machines), "i-0123456789abcdef0"))
    assert not ground.cloud.held()
    fates = ground.new_cloud().ended(tuple(machine.instance_id for machine in machines))
    assert {fate.ending.value for fate in fates} == {"terminated"} and len(fates) == 5
    with pytest.raises(RefusedError, match="no subnet for zone mars-1"):
        ground.cloud.acquire(order_of(ground, "asks-8", 1, Market("c5.xlarge", "mars-1")))


def test_full_pools_are_passed_over_and_left_alone_for_a_while(ec2: Ec2Layer) -> None:
    ec2.full = {"us-east-1a"}
    ec2.most = {"us-east-1b": 4}
    ground, log = AwsGround(ec2, "full"), Memory()
    closing = ground.play(log)
    assert closing.finished
    assert not ec2.alive("full")
    answers = [r for r in log.records if isinstance(r, Answered) and r.order > 0]
    assert [len(answer.instances) for answer in answers[:4]] == [0, 4, 0, 2]
    assert "InsufficientInstanceCapacity" in answers[0].why
    ground.at_s = answers[0].at_s + FULL_S - 1
    with pytest.raises(CapacityError, match="a short while ago"):
        ground.cloud.acquire(order_of(ground, "full-late", 1))


def test_machines_are_bought_whether_or_not_they_can_be_listed(ec2: Ec2Layer) -> None:
    """A part of an order is sold, and the list that says when it was launched is throttled."""
    ec2.most, ec2.throttled_lists = {"us-east-1a": 2}, {"describe_instances"}
    ground = AwsGround(ec2, "unlisted")
    machines = ground.cloud.acquire(order_of(ground, "unlisted-1", 4))
    assert {each.launched_s for each in machines} == {ground.at_s} and len(machines) == 2
    ec2.throttled_lists.clear()
    assert {each.instance_id for each in ground.cloud.held()} == {each.instance_id for each in machines}


def test_an_order_that_may_have_been_sold_is_asked_about_in_a_full_pool_too(ec2: Ec2Layer) -> None:
    ground = AwsGround(ec2, "again")
    ec2.lost = 1.0
    with pytest.raises(UnknownOutcomeError):
        ground.cloud.acquire(order_of(ground, "again-1", 2))
    ec2.lost, ec2.full = 0.0, {"us-east-1a"}
    with pytest.raises(CapacityError, match="InsufficientInstanceCapacity"):
        ground.cloud.acquire(order_of(ground, "again-2", 1))
    assert len(ground.cloud.acquire(order_of(ground, "again-1", 2))) == 2
    with pytest.raises(CapacityError, match="refused a short while ago"):
        ground.cloud.acquire(order_of(ground, "again-3", 1))


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError", "NobodyKnows"])
def test_a_fleet_without_machines_is_the_last_word_on_its_order(ec2: Ec2Layer, code: str) -> None:
    """EC2 repeats the answer for as long as it knows the token; with a new one it sells."""
    ec2.full, ec2.problem = {"us-east-1a"}, code
    ground = AwsGround(ec2, f"last{code}")
    with pytest.raises(CapacityError, match=code):
        ground.cloud.acquire(order_of(ground, f"{code}-1", 2))
    ec2.full.clear()
    ground.at_s += FULL_S + 1
    with pytest.raises(CapacityError, match=code):
        ground.cloud.acquire(order_of(ground, f"{code}-1", 2))
    ground.at_s += FULL_S + 1
    assert len(ground.cloud.acquire(order_of(ground, f"{code}-2", 2))) == 2


def test_a_fleet_that_says_that_we_have_no_right_is_no_full_pool(ec2: Ec2Layer) -> None:
    ec2.full, ec2.problem = {"us-east-1a"}, "UnauthorizedOperation"
    ground = AwsGround(ec2, "right")
    with pytest.raises(CredentialsError):
        ground.cloud.acquire(order_of(ground, "right-1", 2))
    assert not ground.cloud.quotes(ground.at_s).full


def test_an_order_is_sold_once_when_the_rights_are_there(ec2: Ec2Layer) -> None:
    """EC2 repeats the answer to a token, so the order is asked for with other ones; a new process finds the last."""
    ec2.full, ec2.problem = {"us-east-1a"}, "UnauthorizedOperation"
    ground = AwsGround(ec2, "later")
    order = order_of(ground, "later-1", 2)
    for _ in range(2):
        with pytest.raises(CredentialsError):
            ground.cloud.acquire(order)
    ec2.full, ec2.lost = set(), 1.0
    with pytest.raises(UnknownOutcomeError):
        ground.cloud.acquire(order)
    ec2.lost, again = 0.0, ground.new_cloud()
    for _ in range(2):
        with pytest.raises(CredentialsError):
            again.acquire(order)
    machines = again.acquire(order)
    assert machines == ground.cloud.acquire(order) and {each.token for each in machines} == {"later-1"}
    assert sorted(each["InstanceId"] for each in ec2.alive("later")) == sorted(
        m.instance_id for m in machines
    )


def test_an_order_without_an_answer_is_found_after_up_made_another_template(ec2: Ec2Layer) -> None:
    """EC2 sells nothing for the same token with other words, but it may have sold before."""
    ground = AwsGround(ec2, "newer")
    first, second = order_of(ground, "newer-1", 2), order_of(ground, "newer-2", 2)
    ec2.lost = 1.0
    for order in (first, second):
        with pytest.raises(UnknownOutcomeError):
            ground.cloud.acquire(order)
    ec2.lost = 0.0
    template, version = ec2.template()
    newer = AwsGround(ec2, "newer", place=Place("newer", template, f"{version}0", ec2.subnets, {}))
    machines = newer.cloud.acquire(first)
    assert sorted(each.instance_id for each in machines) == sorted(ec2.bought["newer-1"])
    for machine in ec2.bought["newer-2"]:
        ec2.evict(machine)
    with pytest.raises(RefusedError, match="IdempotentParameterMismatch"):
        newer.cloud.acquire(second)


def test_a_pool_that_vanishes_is_said_and_left_alone_and_its_machines_stay(ec2: Ec2Layer) -> None:
    ground, log = AwsGround(ec2, "vanished", hours=1.5), Memory()
    pool, price = ("c5.xlarge", "us-east-1a"), 0.05
    ground.events = {
        ground.start_s + 600: lambda: ec2.prices.pop(pool),
        ground.start_s + 1800: lambda: ec2.evict(sorted(ground.engine.held)[0]),
        ground.start_s + 3000: lambda: ec2.prices.update({pool: price}),
    }
    assert ground.play(log).finished
    assert ground.service is not None
    ledger = ground.service.state.ledger()
    bought = Counter(str(e.market) for e in ledger.entries if e.kind is EntryKind.GRANT)
    assert bought == {"c5.xlarge@on-demand": 2, "c5.xlarge@us-east-1a": 6, "c5.xlarge@us-east-1b": 1}
    assert [e.kind for e in ledger.entries].count(EntryKind.EVICTION) == 1, (
        "the five others stayed to the end"
    )
    begun, over = (record for record in log.records if isinstance(record, Troubled))
    said = (
        "AWS has no spot price of c5.xlarge@us-east-1a: nothing is bought there, what is held there is kept"
    )
    assert (begun.sentences, over.sentences) == ((said,), ())
    assert ground.start_s + 480 + GONE_S <= begun.at_s <= ground.start_s + 1500 < over.at_s


@pytest.mark.slow
def test_a_new_process_bills_machines_of_a_pool_that_vanished_before_it(ec2: Ec2Layer) -> None:
    """It knows no price of theirs, so at the end of an hour it takes what the type costs on demand."""
    ground, log = AwsGround(ec2, "unknown", hours=1.5), Memory()

    class Renewed:
        def __getattr__(self, name: str) -> object:
            return getattr(ground.cloud, name)

    def begin_again() -> None:
        ec2.prices.pop(("c5.xlarge", "us-east-1a"))
        ground.cloud = ground.new_cloud()

    ground.events = {ground.start_s + 600: begin_again}
    assert ground.play(log, Renewed()).finished  # type: ignore[arg-type]
    hours = {record.price for record in log.records if isinstance(record, HourPassed)}
    assert hours == {TYPES["c5.xlarge"]}


@pytest.mark.slow
def test_a_market_without_any_price_is_said_and_the_job_waits(ec2: Ec2Layer) -> None:
    ground, log = AwsGround(ec2, "bare"), Memory()
    prices, ec2.prices = dict(ec2.prices), {}
    ground.events[ground.start_s + 1200] = lambda: ec2.prices.update(prices)
    assert ground.play(log).finished
    begun, over = (record for record in log.records if isinstance(record, Troubled))
    (sentence,) = begun.sentences
    assert all(str(listing.market) in sentence for listing in ground.setting.listings)
    assert over.sentences == () and over.at_s >= ground.start_s + 1200


def event(kind: str, instance_id: str, at: str) -> str:
    detail = {"instance-id": instance_id, "instance-action": "terminate"}
    return json.dumps({"id": "1", "detail-type": kind, "source": "aws.ec2", "time": at, "detail": detail})


def test_a_notice_by_queue_an_eviction_and_a_machine_instead(ec2: Ec2Layer, moto_url: str) -> None:
    from bidbrain.instants import show_instant

    sqs = client("sqs", REGION, moto_url)
    url = sqs.create_queue(QueueName="notices")["QueueUrl"]
    ground, log = AwsGround(ec2, "noticed", SqsNotices(sqs, url)), Memory()
    victims: list[str] = []

    def warn() -> None:
        victims.extend(sorted(ground.engine.held)[:2])
        kind = "EC2 Spot Instance Interruption Warning"
        for victim in victims:
            sqs.send_message(QueueUrl=url, MessageBody=event(kind, victim, show_instant(ground.at_s)))
            sqs.send_message(QueueUrl=url, MessageBody=event(kind, victim, show_instant(ground.at_s)))
        sqs.send_message(QueueUrl=url, MessageBody="no event")
        others = event(kind, "i-0123456789abcdef0", show_instant(ground.at_s))  # another one of the account
        sqs.send_message(QueueUrl=url, MessageBody=others)

    ground.events = {
        ground.start_s + 1200: warn,
        ground.start_s + 1320: lambda: [ec2.evict(victim) for victim in victims],
    }
    closing = ground.play(log)
    assert closing.finished
    assert not ec2.alive("noticed")
    noticed = [notice for r in log.records if isinstance(r, Noticed) for notice in r.notices]
    assert sorted(n.instance_id for n in noticed) == victims
    assert {(n.alert, n.deadline_s) for n in noticed} == {(Alert.TERMINATE, ground.start_s + 1320)}
    assert ground.service is not None
    ledger = ground.service.state.ledger()
    assert sum(entry.kind is EntryKind.EVICTION for entry in ledger.entries) == 2
    grants = [e for e in ledger.entries if e.kind is EntryKind.GRANT and (e.allocation or 0) >= 0]
    assert len(grants) == 8 and all(e.at_s >= ground.start_s + 1320 for e in grants[6:])
    # Taken within their first hour: free.
    evicted = {e.allocation for e in ledger.entries if e.kind is EntryKind.EVICTION}
    assert not [e for e in ledger.entries if e.allocation in evicted and e.micro_usd]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    (said,) = (sentence for r in log.records if isinstance(r, Troubled) for sentence in r.sentences)
    assert said == (
        "the queue of notices: 1 message could not be read, the last one because it is no EventBridge event "
        "(JSONDecodeError: Expecting value: line 1 column 1 (char 0)); a warning may have been among them, and comes "
        "from the machine itself, too"
    )


def test_a_reliable_machine_that_is_stopped_is_ended_and_another_bought(ec2: Ec2Layer) -> None:
    """In the console, or by AWS where its hardware is retired. It would run nothing of ours when started again."""
    ground, log = AwsGround(ec2, "stopped"), Memory()
    stopped: list[str] = []

    def stop() -> None:
        assert ground.service is not None
        held = ground.service.state.open_instances()
        stopped.extend(each.instance_id for each in held if each.market.zone == ON_DEMAND_ZONE)
        ec2.client.stop_instances(InstanceIds=stopped)

    ground.events[ground.start_s + 600] = stop
    assert ground.play(log).finished
    assert len(stopped) == 2 and not ec2.alive("stopped")
    ended = {each.instance_id: each.at_s for each in ground.cloud.ended(tuple(stopped))}
    assert ended.keys() == set(stopped)
    assert ground.service is not None
    grants = [e for e in ground.service.state.ledger().entries if e.kind is EntryKind.GRANT]
    assert sum(e.market is not None and e.market.zone == ON_DEMAND_ZONE for e in grants) == 4


def test_the_budget_ends_it(ec2: Ec2Layer) -> None:
    ground, log = AwsGround(ec2, "budget", hours=10.0), Memory()
    closing = ground.play(log, guards=Guards(budget=USD // 2))
    assert closing.code == 3 and not closing.finished
    assert ground.engine.draining
    assert not ec2.alive("budget")
    assert ground.service is not None
    assert 0.35 * USD < ground.service.state.ledger().micro_usd <= USD // 2


def test_throttling_is_retried_by_the_client(moto_url: str) -> None:
    """The first two answers are a full house; the call succeeds all the same."""
    from botocore.awsrequest import AWSResponse

    ec2 = client("ec2", REGION, moto_url)
    refused: list[str] = []

    def full(request: Any, **_: Any) -> AWSResponse | None:
        if len(refused) == 2:
            return None
        refused.append(request.url)
        error = b"<Error><Code>RequestLimitExceeded</Code><Message>m</Message></Error>"
        body = b"<Response><Errors>" + error + b"</Errors></Response>"
        raw = type("Raw", (), {"stream": lambda self, **_: iter([body]), "read": lambda self: body})()
        return AWSResponse(request.url, 503, {}, raw)

    ec2.meta.events.register("before-send.ec2.DescribeSubnets", full)
    assert ec2.describe_subnets()["Subnets"]
    assert len(refused) == 2


def test_no_credentials_is_one_sentence(
    moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsError, match="no AWS credentials were found"):
        client("ec2", REGION, moto_url)


def campaign(url: str, folder: Path, kills: int) -> Counter[str]:
    """Jobs on a hostile EC2, their services killed at random moments: no orphan, no double, all end well."""
    made = KillCampaign(url, folder, kills, seed=5)
    number = 0
    while not made.is_over:
        forget(url)
        layer = made.layer(number)
        layer.most = {"us-east-1a": 4}
        layer.full = {"us-east-1b"} if number % 2 else set()
        ground = AwsGround(layer, f"kill{kills}x{number}", hours=0.5)
        ground.events = {
            ground.start_s + at_s: lambda g=ground, a=layer: [a.evict(m) for m in sorted(g.engine.held)[:2]]
            for at_s in (600, 1300)
        }
        assert made.play(ground).finished
        assert not layer.alive(ground.job), "orphans"
        known = {
            m.instance_id
            for r in made.journal(ground).records
            if isinstance(r, Answered)
            for m in r.instances
        }
        bought = [machine for machines in layer.bought.values() for machine in machines]
        assert sorted(known) == sorted(bought), "doubles"
        assert ground.service is not None and len(layer.bought) <= ground.service.state.orders
        made.hostile.update(layer.seen)
        number += 1
    made.say(number)
    return made.seen


@pytest.mark.slow
def test_three_kills(moto_url: str, tmp_path: Path) -> None:
    assert sum(campaign(moto_url, tmp_path, 3).values()) == 3


@pytest.mark.slow
def test_a_hundred_kills(moto_url: str, tmp_path: Path) -> None:
    assert len(campaign(moto_url, tmp_path, 100)) > 15
