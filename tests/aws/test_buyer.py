"""The buyer behind its socket, on a stack of moto's: what a driver may ask, and what one that means harm gets."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.core import set_initial_no_auth_action_count

from bidbrain.aws.buyer.client import BuyerCloud, credentials_from
from bidbrain.aws.buyer.credentials import main as print_credentials
from bidbrain.aws.buyer.messages import AskHeld, Failed, answer_of, line_of
from bidbrain.aws.ec2 import FULL_S
from bidbrain.aws.stack.attach import attach
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    Alert,
    CapacityError,
    CloudError,
    InstanceNotice,
    Order,
    RefusedError,
    UnknownOutcomeError,
    notice_of,
)
from bidbrain.live.job import EXIT_FINISHED
from tests.aws.buyer_rig import ORPHAN_AFTER_S, SITE, SPOT, STACK, Rig, order
from tests.aws.ground import AwsGround
from tests.aws.layer import IMAGE, REGION
from tests.aws.stack_rig import ACCOUNT
from tests.bidbrain.live.makers import Memory

pytestmark = pytest.mark.aws

LIMITED = "spot prices: AWS answers RequestLimitExceeded, Request limit exceeded"
LISTS = ("describe_spot_price_history", "describe_instances")


@pytest.fixture
def rig(buyer_parts: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(buyer_parts, tmp_path)
    rig.limit()
    yield rig
    if left := [each["InstanceId"] for each in rig.layer.alive(f"{STACK}/job")]:
        rig.layer.client.terminate_instances(InstanceIds=left)


@pytest.mark.slow
def test_a_job_buys_trains_and_ends_through_the_buyer(rig: Rig) -> None:
    """The service of a job has another market, nothing else: the answers of purchases are lost, machines are taken."""
    ground = AwsGround(rig.layer, "job")
    rig.layer.lost = 0.3
    with rig.serving():
        rig.at_s = ground.at_s
        ground.events = {ground.start_s + 900: lambda: rig.layer.evict(rig.machines()[-1])}
        advance, cloud = ground.wait, BuyerCloud(rig.path, STACK, "job")

        def wait(until_s: int, market: bool) -> None:
            advance(until_s, market)
            rig.at_s = ground.at_s

        ground.wait = wait  # type: ignore[method-assign]
        log = Memory()
        closing = ground.play(log, cloud)  # type: ignore[arg-type]
        cloud.close()
    assert (closing.code, closing.finished) == (EXIT_FINISHED, True)
    assert ground.service is not None
    assert ground.service.state.account.evictions == 1
    assert not rig.machines() and rig.layer.seen["answer lost"] > 0
    bought = [each for machines in rig.layer.bought.values() for each in machines]
    assert len(set(bought)) == len(bought) and rig.layer.seen["same token"] >= rig.layer.seen["answer lost"]


def test_limits_hold_whatever_the_driver_says(rig: Rig) -> None:
    rig.limit(machines=3, job_micro_usd=400_000, stack_micro_usd=500_000)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        assert cloud.opened.markets and SPOT in cloud.opened.markets
        assert (cloud.opened.machines, cloud.opened.micro_usd) == (3, 400_000)
        assert cloud.opened.left_micro_usd == 500_000
        for foreign in (Market("p5.48xlarge", "us-east-1a"), Market("c5.xlarge", "us-west-2a")):
            with pytest.raises(RefusedError, match="is not among what the stack may buy"):
                cloud.acquire(order("a", market=foreign))
        with pytest.raises(RefusedError, match="found 2 vCPUs per machine, expected 1"):
            cloud.acquire(Order("a", SPOT, 2, 2, 170_000))
        with pytest.raises(RefusedError, match="0 machines are there and 4 more asked for"):
            cloud.acquire(order("b", 4))
        assert len(cloud.acquire(order("c", 2))) == 2
        with pytest.raises(RefusedError, match="c was another order before"):
            cloud.acquire(order("c", 3))
        rig.look(3 * 3600)  # 2 machines at 0.06 $ for 3 h
        with pytest.raises(RefusedError, match=r"job job has cost 0.360000 .* limit is 0.400000"):
            cloud.acquire(order("d"))
        rig.look(3600)
        assert not rig.machines(), "the driver did not end them"
        assert rig.said[-1] == "ends 2 machines: job job has cost 0.480000 $, the stack's limit is 0.400000 $"
        rig.look(60)
        cloud.close()
        rig.wait_left()
        another = BuyerCloud(rig.path, STACK, "job-2")
        assert 0 < (another.opened.left_micro_usd or 0) < 20_000
        with pytest.raises(RefusedError, match=r"the stack with all its jobs has cost 0.48"):
            another.acquire(order("e"))
        another.close()


def test_an_order_that_was_refused_before_ec2_heard_of_it_is_not_sold_later(rig: Rig) -> None:
    """A pool that is full for a while answers many orders, each of which alone would be within the limits."""
    rig.limit(machines=4)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        rig.layer.most = {"us-east-1a": 1}
        first = cloud.acquire(order("x", 2))
        assert len(first) == 1
        many = [order(f"y-{number}", 3) for number in range(5)]
        for each in many:
            with pytest.raises(CapacityError, match="refused a short while ago"):
                cloud.acquire(each)
        rig.layer.most.clear()
        rig.at_s += FULL_S + 1
        for each in many:
            with pytest.raises(RefusedError, match=r"y-\d was answered before"):
                cloud.acquire(each)
        assert cloud.acquire(order("x", 2)) == first, "the same answer"
        assert len(cloud.acquire(order("z", 3))) == 3 and len(rig.machines()) == 4
        cloud.close()


def test_no_driver_fills_the_buyer_s_memory_with_what_it_keeps(rig: Rig) -> None:
    """Each order is kept, with its token of up to 4 MB; a buyer that the kernel ends holds nobody to a budget."""
    with rig.serving():
        with pytest.raises(RefusedError, match="found a job's name of 100000 characters"):
            BuyerCloud(rig.path, STACK, "j" * 100_000)
        cloud = BuyerCloud(rig.path, STACK, "job")
        for token in ("t" * 100_000, "t\nbuys for the stack", ""):
            with pytest.raises(RefusedError, match=f"found a token of {len(token)} characters"):
                cloud.acquire(order(token))
        assert not rig.layer.seen["create_fleet"] and len(cloud.acquire(order("t" * 64))) == 1
        cloud.close()


def test_one_job_at_a_time_of_its_own_stack_alone(rig: Rig) -> None:
    with rig.serving():
        first = BuyerCloud(rig.path, STACK, "job")
        with pytest.raises(RefusedError, match="the stack buyer runs job job, expected no second one"):
            BuyerCloud(rig.path, STACK, "other")
        with pytest.raises(RefusedError, match=r"market.name: found theirs, expected buyer"):
            BuyerCloud(rig.path, "theirs", "job")
        (machine,) = first.acquire(order("a"))
        foreign = rig.layer.client.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1)
        theirs = foreign["Instances"][0]["InstanceId"]
        first.release((theirs, machine.instance_id))
        assert not rig.machines(), "its own ends"
        state = rig.layer.client.describe_instances(InstanceIds=[theirs])["Reservations"][0]["Instances"][0]
        assert state["State"]["Name"] == "running", "a machine that is none of the job's does not"
        rig.layer.client.terminate_instances(InstanceIds=[theirs])
        first.close()


def test_what_no_driver_comes_back_for_is_ended(rig: Rig) -> None:
    """A driver that starts again in time finds its machines, one that does not has none left to pay for."""
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        bought = cloud.acquire(order("a", 2))
        cloud.close()
        rig.wait_left()
        rig.look(ORPHAN_AFTER_S - 10)
        again = BuyerCloud(rig.path, STACK, "job")
        assert {each.instance_id for each in again.held()} == {each.instance_id for each in bought}
        again.close()
        rig.wait_left()
        rig.look(ORPHAN_AFTER_S + 10)
        assert not rig.machines()
        assert rig.said == [f"ends 2 machines: no process has driven job job for {ORPHAN_AFTER_S + 10} s"]


@pytest.mark.parametrize("throttled", [LISTS[:1], LISTS], ids=["prices", "prices and machines"])
@pytest.mark.parametrize("is_driven", [True, False])
def test_limits_hold_while_aws_gives_no_lists(rig: Rig, throttled: tuple[str, ...], is_driven: bool) -> None:
    """At the last prices known, and for the machines that are known."""
    rig.limit(job_micro_usd=400_000)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        cloud.acquire(order("a", 2))
        if not is_driven:
            cloud.close()
            rig.wait_left()
        rig.layer.throttled_lists = set(throttled)
        rig.look(120)
        rig.look(120)
        assert len(rig.machines()) == 2
        assert f"asking for prices failed, 2 times in a row: {LIMITED}" in rig.said
        rig.look(4 * 3600)
        assert not rig.machines()
        over = "job job has cost 0.488000 $, the stack's limit is 0.400000 $"
        gone = f"no process has driven job job for {4 * 3600 + 240} s"
        assert rig.said[-1] == f"ends 2 machines: {over if is_driven else gone}"
        rig.layer.throttled_lists.clear()
        rig.look(60)
        assert rig.buyer.driven == ("job" if is_driven else "")
        cloud.close()


@pytest.mark.parametrize("is_driven", [True, False])
def test_limits_hold_where_the_archive_of_prices_is_damaged(rig: Rig, is_driven: bool) -> None:
    """As by a head that lost its power: the service of the buyer starts again, and the file is empty."""
    rig.limit(job_micro_usd=400_000)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        cloud.acquire(order("a", 2))
        cloud.close()
    (rig.folder / "state" / f"{REGION}.csv.gz").write_bytes(b"")
    with rig.serving():
        if is_driven:
            assert "move the file away" in cloud.quotes(rig.at_s).troubles[-1]
        rig.look(120)
        assert len(rig.machines()) == 2
        rig.look(4 * 3600)
        assert not rig.machines(), rig.said
        cloud.close()


def test_a_machine_without_a_price_is_found_and_costs_what_it_does_on_demand(rig: Rig) -> None:
    """Its purchase was under way when the buyer ended, and there are no prices since."""
    rig.limit(job_micro_usd=400_000)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        rig.layer.lost = 1.0
        with pytest.raises(UnknownOutcomeError):
            cloud.acquire(order("a", 2))
        cloud.close()
    rig.layer.throttled_lists = set(LISTS[:1])
    with rig.serving():
        cloud.held()
        rig.look(3600)
        rig.look(3600)
        assert not rig.machines() and "the stack's limit is 0.400000 $" in rig.said[-1]
        cloud.close()


def test_a_buyer_that_dies_buys_nothing_twice_and_forgets_nothing(rig: Rig) -> None:
    """It dies after EC2 has sold and before the driver has heard; the next one also ends what nobody asks about."""
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        rig.layer.lost = 1.0
        with pytest.raises(UnknownOutcomeError):
            cloud.acquire(order("a", 2))
        rig.layer.lost = 0.0
    cloud.close()  # the connection went with the buyer
    with rig.serving():
        (first, second) = cloud.acquire(order("a", 2))
        assert sorted(rig.machines()) == sorted([first.instance_id, second.instance_id])
        rig.layer.lost = 1.0
        with pytest.raises(UnknownOutcomeError):
            cloud.acquire(order("b"))
        cloud.close()
    assert len(rig.machines()) == 3
    with rig.serving():
        rig.look(ORPHAN_AFTER_S + 1)
        assert not rig.machines(), "the third was found by its tag"


def test_what_a_machine_says_itself_is_heard_while_the_buyer_is_gone(rig: Rig) -> None:
    """Ray knows of an interruption by the machine's own metadata service, and the machine has two minutes."""
    notice = notice_of(Alert.TERMINATE, "i-1", rig.at_s + 120)
    told: list[InstanceNotice] = []

    class Drains:
        def notices(self) -> tuple[InstanceNotice, ...]:
            return tuple(told)

    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job", Drains())
        assert cloud.notices() == ()
        cloud.close()
    with pytest.raises(UnknownOutcomeError, match="the buyer does not answer"):
        cloud.notices()
    told.append(notice)
    assert cloud.notices() == (notice,)


def test_reliable_machines_go_to_the_first_zone_in_whatever_order_subnets_are_named(rig: Rig) -> None:
    subnets = {zone: rig.layer.subnets[zone] for zone in reversed(SITE.zones)}
    place = attach(SITE.model_copy(update={"subnets": subnets}), "job", rig).place
    assert list(place.subnets) == list(SITE.zones) and place.subnets == subnets


def test_a_machine_that_is_given_back_makes_room_at_once(rig: Rig) -> None:
    """Else the next order would be refused, and count as a refusal of its pool."""
    rig.limit(machines=2)
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        first, second = (each.instance_id for each in cloud.acquire(order("a", 2)))
        cloud.release((first,))
        (third,) = cloud.acquire(order("b"))
        rig.layer.evict(second)
        assert [each.instance_id for each in cloud.ended((second,))] == [second]
        assert len(cloud.acquire(order("c"))) == 1 and third.instance_id in rig.machines()
        cloud.close()


def test_another_user_of_the_head_is_told_nothing(rig: Rig) -> None:
    """Its user is what the kernel says, so no secret is needed and none can be stolen."""
    with rig.serving(uid=os.getuid() + 1):
        with pytest.raises(CloudError, match=f"user {os.getuid()} may not ask the buyer of this stack"):
            BuyerCloud(rig.path, STACK, "job")
        with pytest.raises(SystemExit, match="may not ask the buyer of this stack"):
            print_credentials([str(rig.path)])


def test_a_machine_that_the_limits_allow_no_more_is_paid_for_and_ended_all_the_same(rig: Rig) -> None:
    """The operator takes its type away while a purchase of it is under way, and the driver does not come back."""
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        rig.layer.lost = 1.0
        with pytest.raises(UnknownOutcomeError):
            cloud.acquire(order("a"))
        cloud.close()
        rig.wait_left()
    fewer = SITE.model_copy(update={"types": ("m5.xlarge",)})
    rig.limit(site=fewer)
    with rig.serving():
        rig.look(ORPHAN_AFTER_S + 1)
        assert not rig.machines()


def purchase_line(vcpus: int, vcpus_per_machine: int, bid: int) -> bytes:
    """A purchase as code beside the driver may write it."""
    market = {"instance_type": SPOT.instance_type, "zone": SPOT.zone}
    size = {"vcpus": vcpus, "vcpus_per_machine": vcpus_per_machine, "bid": bid}
    asked = {"kind": "purchase", "order": {"token": "x", "market": market, **size}}
    return json.dumps(asked).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello\n", "found no message of the buyer's"),
        (b'{"kind": "sell"}\n', "found no message of the buyer's"),
        (b'{"kind": "purchase", "order": {"token": "x"}}\n', "order.market: Field required"),
        (b"\x80\x04cos\nsystem\n(S'true'\ntR.\n", "found no message of the buyer's"),
        (purchase_line(-40, 1, 170_000), "vcpus: found -40, expected more than 0"),
        (purchase_line(4, 0, 170_000), "vcpus_per_machine: found 0, expected more than 0"),
        (purchase_line(4, 1, 0), "bid: found 0, expected more than 0"),
        (line_of(AskHeld()), "this connection drives no job of the stack"),
    ],
    ids=["words", "unknown", "half", "pickle", "negative", "no size", "no bid", "not opened"],
)
def test_lines_that_are_no_requests_are_answered_with_a_sentence(rig: Rig, line: bytes, why: str) -> None:
    with rig.serving(), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(rig.path))
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            answer = answer_of(answers.readline())
        assert isinstance(answer, Failed) and why in answer.sentence


def test_attack_user_code_in_the_driver_buys_with_the_credentials_that_it_finds(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it would: AWS' own library, with what the head's config file gives it. IAM's evaluation is moto's."""
    with rig.serving():
        found = credentials_from(rig.path)
        print_credentials([str(rig.path)])
    printed = json.loads(capsys.readouterr().out)
    assert printed["Version"] == 1 and (printed["AccessKeyId"], printed["Expiration"]) != ("", "")
    assert found.secret not in repr(found)
    session = boto3.Session(found.key_id, found.secret, found.token, REGION)
    who = session.client("sts", endpoint_url=rig.url).get_caller_identity()["Arn"]
    assert who == f"arn:aws:sts::{ACCOUNT}:assumed-role/proteus-{STACK}-node/driver"
    ec2 = session.client("ec2", endpoint_url=rig.url)
    template = {"LaunchTemplateName": f"proteus-{STACK}", "Version": "1"}
    tries = (
        lambda: ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1),
        lambda: ec2.run_instances(LaunchTemplate=template, MinCount=1, MaxCount=1),
        lambda: ec2.create_fleet(
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1},
            Type="instant",
        ),
        lambda: session.client("iam", endpoint_url=rig.url).create_access_key(UserName="me"),
    )

    @set_initial_no_auth_action_count(0)
    def attack(index: int) -> str:
        """What moto answers where it evaluates the policies of who asks."""
        with pytest.raises(ClientError) as refused:
            tries[index]()
        return str(refused.value.response["Error"]["Code"])

    assert {attack(index) for index in range(len(tries))} <= {"UnauthorizedOperation", "AccessDenied"}
