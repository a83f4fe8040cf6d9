"""A stack in several regions on moto: `up` makes networks and peerings, `down` removes all of it, wherever both die."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from bidbrain.aws.site import OtherRegion
from bidbrain.aws.stack.attach import attach
from bidbrain.aws.stack.checks import Scale, Verdict, checks
from bidbrain.aws.stack.facts import read_facts
from bidbrain.aws.stack.formation import StackError
from bidbrain.aws.stack.names import TAG_STACK
from bidbrain.aws.stack.parts import Action, ForeignError, PartKind
from bidbrain.aws.stack.status import look
from tests.aws.layer import IMAGE
from tests.aws.stack_rig import ACCOUNT, OTHER_REGIONS, Killed, StackRig, moments

pytestmark = pytest.mark.aws

WEST = "us-west-2"
IRELAND = "eu-west-1"
MANY = {**OTHER_REGIONS, IRELAND: OtherRegion(zones=("eu-west-1a",), cidr="10.9.0.0/20")}


@pytest.fixture
def rig(moto_url: str, request: pytest.FixtureRequest) -> Iterator[StackRig]:
    rig = StackRig(moto_url, f"r{zlib.crc32(request.node.name.encode()):08x}", regions=dict(OTHER_REGIONS))
    yield rig
    rig.aws.dies_at = None
    rig.down()
    assert not rig.leftovers()


def test_what_up_makes_in_another_region(rig: StackRig) -> None:
    rig.up()
    kinds = Counter(each.kind for each in rig.found().parts)
    assert (kinds[PartKind.REGION], kinds[PartKind.PEERING]) == (1, 1)
    rig.up()
    assert {step.action for step in rig.told} == {Action.KEEP}
    there = attach(rig.site, "job", rig.plain, WEST)
    assert list(there.place.subnets) == ["us-west-2a", "us-west-2b"]
    ec2 = rig.plain.at(WEST).client("ec2")
    found = ec2.describe_subnets(SubnetIds=list(there.place.subnets.values()))["Subnets"]
    assert sorted(each["CidrBlock"] for each in found) == ["10.81.0.0/20", "10.81.16.0/20"]
    parts, machines = look(rig.plain, rig.site, ACCOUNT)
    listed = {(part.kind, part.name) for part in parts}
    assert ("peering of networks", "us-east-1 with us-west-2") in listed
    policy = rig.plain.client("iam").get_role_policy(
        RoleName=f"proteus-{rig.site.name}-head", PolicyName=f"proteus-{WEST}"
    )["PolicyDocument"]
    assert "ec2:CreateFleet" in str(policy) and "us-east-1" not in json.dumps(policy)
    assert [each.is_head for each in machines] == [True]


def test_a_machine_in_a_region_that_the_config_has_lost_is_shown(rig: StackRig) -> None:
    rig.up()
    tags = [{"ResourceType": "instance", "Tags": [{"Key": TAG_STACK, "Value": rig.site.name}]}]
    ec2 = rig.plain.at(WEST).client("ec2")
    started = ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, TagSpecifications=tags)
    _, machines = look(rig.plain, rig.site.model_copy(update={"regions": {}}), ACCOUNT)
    assert [each.instance_id for each in machines[1:]] == [started["Instances"][0]["InstanceId"]]


def test_a_notice_goes_through_the_rule_and_queue_of_its_region(rig: StackRig) -> None:
    rig.up()
    detail = json.dumps({"instance-id": "i-0abc", "instance-action": "terminate"})
    kind = "EC2 Spot Instance Interruption Warning"
    entry = {"Source": "aws.ec2", "DetailType": kind, "Detail": detail}
    rig.plain.at(WEST).client("events").put_events(Entries=[entry])
    (notice,) = attach(rig.site, "job", rig.plain, WEST).queue.notices()
    assert notice.instance_id == "i-0abc" and not attach(rig.site, "job", rig.plain).queue.notices()


@pytest.mark.slow
def test_each_network_has_a_peering_with_each(moto_url: str) -> None:
    rig = StackRig(moto_url, "mesh", regions=MANY)
    rig.up()
    found = {each.name for each in rig.found().parts if each.kind is PartKind.PEERING and each.is_current}
    assert found == {"us-east-1 with us-west-2", "us-east-1 with eu-west-1", "us-west-2 with eu-west-1"}
    fewer = StackRig(moto_url, "mesh", regions=dict(OTHER_REGIONS))
    with pytest.raises(
        ForeignError, match=r"market\.regions: found no eu-west-1, where the stack has a part"
    ):
        fewer.up()
    fewer.down()
    assert not rig.leftovers(), "the regions of the last `up` are remembered"


def test_a_network_that_overlaps_is_refused(moto_url: str) -> None:
    near = {WEST: OtherRegion(zones=("us-west-2a",), cidr="172.31.16.0/20")}
    rig = StackRig(moto_url, "near", regions=near)
    with pytest.raises(
        StackError, match=r"expected one that does not overlap with 172\.31\.0\.0/16 in us-east-1"
    ):
        rig.up()
    rig.down()
    assert not rig.leftovers()


def campaign(url: str, some: int | None) -> int:
    """`up` and `down` die before or after changes; repeated, everything is there once, then nothing."""
    quiet = StackRig(url, "quiet-regions", regions=dict(OTHER_REGIONS))
    quiet.up()
    ups = len(quiet.aws.changes)
    quiet.down()
    downs = len(quiet.aws.changes) - ups
    assert not quiet.leftovers()
    deaths = 0
    for number, (at, when) in enumerate(moments(ups + downs, some, seed=3)):
        rig = StackRig(url, f"die{number}x{some or 0}", regions=dict(OTHER_REGIONS))
        rig.aws.dies_at = (at, when)
        for work in (rig.up, rig.down):
            try:
                work()
            except Killed:
                deaths += 1
                rig.aws.dies_at = None
                work()
            if work == rig.up:
                kinds = Counter(each.kind for each in rig.found().parts)
                assert (kinds[PartKind.REGION], kinds[PartKind.PEERING], kinds[PartKind.HEAD]) == (1, 1, 1)
        assert not rig.leftovers(), (at, when)
    return deaths


@pytest.mark.slow
def test_up_and_down_die_at_two_moments(moto_url: str) -> None:
    assert campaign(moto_url, 2) == 2


@pytest.mark.slow
def test_up_and_down_die_at_many_moments(moto_url: str) -> None:
    """With None it is every moment, which takes five minutes of a core."""
    assert campaign(moto_url, 20) == 20


def test_machines_in_both_regions_are_ended_before_the_networks_go(rig: StackRig) -> None:
    rig.up()
    template = {"LaunchTemplateName": f"proteus-{rig.site.name}"}
    for region in ("", WEST):
        aws = rig.plain.at(region) if region else rig.plain
        place = attach(rig.site, "job", rig.plain, region or None).place
        aws.client("ec2").run_instances(
            LaunchTemplate=template,
            SubnetId=random.Random(0).choice(sorted(place.subnets.values())),
            MinCount=1,
            MaxCount=1,
            InstanceType="c5.xlarge",
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": "proteus:stack", "Value": rig.site.name}]}
            ],
        )
    assert len(rig.instances()) == 3
    rig.down()
    kinds = [step.kind for step in rig.told if step.kind in (PartKind.INSTANCE, *list(PartKind)[4:7])]
    assert kinds == sorted(kinds, key=list(PartKind).index)
    assert not rig.leftovers()


def test_a_region_that_the_config_lost_is_removed_though_its_group_is_in_use_for_a_while(
    rig: StackRig,
) -> None:
    """Only the limits in the bucket say that there is one: they stay until it is gone."""
    rig.up()
    whole = rig.site
    rig.site = whole.model_copy(update={"regions": {}})
    rig.aws.at(WEST).formation.clings = {"Group": "resource sg-1 has a dependent object"}
    rig.down()
    rig.site = whole
    assert [step.kind for step in rig.told].count(PartKind.REGION) == 2
    assert not rig.leftovers()


def test_a_plan_looks_at_every_region(rig: StackRig) -> None:
    """Of another region the zones, types, image, spot quota and network; what is wrong there begins with its name."""
    facts = read_facts(rig.plain, rig.site)
    there = facts.elsewhere[WEST]
    assert set(there.types) == {"c5.xlarge"} and there.subnets.keys() == {"us-west-2a", "us-west-2b"}
    assert {life for _, life in there.quotas} == {"spot"}
    scale = Scale(reliable=1, most=8, budget=None)
    told = [check for check in checks(rig.site, scale, facts) if check.text.startswith(f"{WEST}: ")]
    assert {check.what for check in told} >= {"zones", "types", "image", "networks"}
    assert not [
        check for check in told if check.what in ("zones", "networks") and check.verdict is Verdict.WRONG
    ]
    near = {WEST: OtherRegion(zones=("us-west-2x",), cidr="172.31.0.0/20")}
    wrong = rig.site.model_copy(update={"regions": near})
    said = [c.text for c in checks(wrong, scale, read_facts(rig.plain, wrong)) if c.verdict is Verdict.WRONG]
    assert any(
        text.startswith("us-west-2: market.zones: found us-west-2x, expected us-west-2") for text in said
    )
    assert any(
        "expected one that does not overlap with 172.31.0.0/16, the network of us-east-1" in t for t in said
    )


def test_a_peering_that_is_not_known_everywhere_yet_is_waited_for(rig: StackRig) -> None:
    """It was made and is not listed; the other region has not heard of it."""
    rig.aws.late = {
        "ec2.create_vpc_peering_connection": "VpcPeeringConnectionAlreadyExists",
        "ec2.accept_vpc_peering_connection": "InvalidVpcPeeringConnectionID.NotFound",
    }
    rig.up()
    assert rig.aws.seen["not known yet"] == 2 and 0 < rig.slept_s < 60
    (peering,) = (each for each in rig.found().parts if each.kind is PartKind.PEERING)
    assert peering.is_current
