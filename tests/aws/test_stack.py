"""`up` and `down` on moto: made once, found again, interrupted anywhere, nothing left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bidbrain.aws.stack.attach import attach
from bidbrain.aws.stack.up import Action, ForeignError, Kind
from bidbrain.live.cloud import CloudError
from tests.aws.stack_rig import Killed, StackRig, moments

pytestmark = pytest.mark.aws

ONE_OF_EACH = Counter(
    {
        Kind.BUCKET: 1,
        Kind.PACKAGE: 1,
        Kind.OBJECTS: 1,
        Kind.TOKEN: 1,
        Kind.ADDRESS: 1,
        Kind.ROLE: 2,
        Kind.PROFILE: 2,
        Kind.QUEUE: 1,
        Kind.RULE: 1,
        Kind.GROUP: 1,
        Kind.TEMPLATE: 1,
        Kind.HEAD: 1,
    }
)


@pytest.fixture
def rig(moto_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StackRig]:
    rig = StackRig(moto_url, f"s{abs(hash(request.node.name)) % 10**8}", tmp_path)
    yield rig
    rig.aws.at = None
    rig.down()
    assert not rig.leftovers()


def is_whole(rig: StackRig) -> None:
    """One of everything, and nothing left to do."""
    assert Counter(each.kind for each in rig.found()) == ONE_OF_EACH
    rig.up()
    assert {step.action for step in rig.told} == {Action.KEEP}
    assert len(rig.instances()) == 1


def test_what_up_makes(rig: StackRig) -> None:
    head = rig.up()
    assert {step.action for step in rig.told} == {Action.MAKE}
    is_whole(rig)
    (instance,) = rig.instances()
    assert (instance["InstanceId"], instance["PrivateIpAddress"]) == (head.instance_id, head.ip)
    ec2, ssm = rig.plain.client("ec2"), rig.plain.client("ssm")
    name = rig.site.name

    (group,) = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [f"proteus-{name}"]}])[
        "SecurityGroups"
    ]
    (rule,) = group["IpPermissions"]  # nothing from outside
    assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]] and not rule[
        "IpRanges"
    ]

    token = ssm.get_parameter(Name=f"/proteus/{name}/ray-token", WithDecryption=True)["Parameter"]
    assert token["Type"] == "SecureString" and len(token["Value"]) == 64
    assert ssm.get_parameter(Name=f"/proteus/{name}/head")["Parameter"]["Value"] == head.ip

    template = ec2.describe_launch_template_versions(
        LaunchTemplateName=f"proteus-{name}", Versions=["$Latest"]
    )
    data = template["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["SecurityGroupIds"] == [group["GroupId"]]
    assert data["IamInstanceProfile"]["Name"] == f"proteus-{name}-node"
    everything = json.dumps([data, instance], default=str)
    assert token["Value"] not in everything

    s3 = rig.plain.client("s3")
    bucket = f"proteus-{name}-123456789012-us-east-1"
    assert all(s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"].values())
    iam = rig.plain.client("iam")
    assert iam.get_role_policy(RoleName=f"proteus-{name}-head", PolicyName="proteus")["PolicyDocument"]


def test_a_notice_goes_through_rule_and_queue_to_the_service(rig: StackRig) -> None:
    rig.up()
    attached = attach(rig.site, "job", rig.plain)
    assert attached.place.job == f"{rig.site.name}/job" and list(attached.place.subnets) == list(
        rig.site.zones
    )
    detail = json.dumps({"instance-id": "i-0abc", "instance-action": "terminate"})
    kinds = ("EC2 Spot Instance Interruption Warning", "EC2 Instance State-change Notification")
    rig.plain.client("events").put_events(
        Entries=[{"Source": "aws.ec2", "DetailType": kind, "Detail": detail} for kind in kinds]
    )
    (notice,) = attached.queue.notices()
    assert notice.instance_id == "i-0abc"


def test_without_a_stack_a_service_is_told_to_make_one(rig: StackRig) -> None:
    with pytest.raises(CloudError, match=r"market\.name: found no stack \w+ in us-east-1, expected one"):
        attach(rig.site, "job", rig.plain)


def test_a_changed_package_changes_what_depends_on_it(moto_url: str, rig: StackRig, tmp_path: Path) -> None:
    rig.up()
    newer = StackRig(moto_url, rig.site.name, tmp_path, package="p2")
    newer.up()
    done = {step.kind: step.action for step in newer.told if step.action is not Action.KEEP}
    assert done == {Kind.PACKAGE: Action.MAKE, Kind.TEMPLATE: Action.CHANGE}
    assert any(step.kind is Kind.HEAD and "differs" in step.reason for step in newer.told)


def test_a_head_that_ended_is_started_anew_and_nodes_are_told(rig: StackRig) -> None:
    first = rig.up()
    rig.plain.client("ec2").terminate_instances(InstanceIds=[first.instance_id])
    second = rig.up()
    assert second.instance_id != first.instance_id
    assert {s.kind for s in rig.told if s.action is not Action.KEEP} == {Kind.HEAD, Kind.ADDRESS}
    is_whole(rig)


def test_ec2_may_not_know_a_new_profile_yet(rig: StackRig) -> None:
    rig.aws.not_yet = {f"proteus-{rig.site.name}-head"}
    rig.up()
    assert rig.aws.seen["profile not known"] == 1 and rig.slept_s == 5
    is_whole(rig)


def test_what_was_just_made_may_not_be_known_everywhere(rig: StackRig) -> None:
    rig.aws.late = {
        "ec2.authorize_security_group_ingress": "InvalidGroup.NotFound",
        "iam.add_role_to_instance_profile": "NoSuchEntity",
        "iam.put_role_policy": "NoSuchEntity",
    }
    rig.aws.blind_after_launch = 4  # the head is listed late as well
    rig.up()
    assert rig.aws.seen["not known yet"] == 3 and not rig.aws.blind and rig.slept_s == (3 + 4) * 5
    is_whole(rig)


def test_somebody_elses_role_is_left_alone(rig: StackRig) -> None:
    iam, name = rig.plain.client("iam"), f"proteus-{rig.site.name}-node"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    with pytest.raises(ForeignError, match=f"role {name}: it exists and is not ours"):
        rig.up()
    rig.down()
    assert rig.leftovers() == [name]
    iam.delete_role(RoleName=name)


def test_down_ends_machines_fleets_and_volumes_that_a_service_left(rig: StackRig) -> None:
    rig.up()
    place = attach(rig.site, "job", rig.plain).place
    ec2 = rig.plain.client("ec2")
    tags = [{"Key": key, "Value": value} for key, value in place.tags.items()]
    ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": place.template_id, "Version": "1"},
                "Overrides": [{"InstanceType": "c5.xlarge", "SubnetId": place.subnets["us-east-1a"]}],
            }
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "on-demand"},
        OnDemandOptions={"AllocationStrategy": "lowest-price"},
        TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("fleet", "instance")],
    )
    ec2.create_volume(
        AvailabilityZone="us-east-1a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    assert len(rig.instances()) == 4
    rig.down()
    order = [step.kind for step in rig.told]
    assert order[:5] == [Kind.TEMPLATE, Kind.HEAD, Kind.MACHINE, Kind.MACHINE, Kind.MACHINE]
    assert {Kind.FLEET, Kind.VOLUME} <= set(order)
    assert not rig.leftovers()


def test_data_can_be_kept(rig: StackRig) -> None:
    rig.up()
    key = f"proteus/{rig.site.name}/checkpoints/one"
    bucket = f"proteus-{rig.site.name}-123456789012-us-east-1"
    rig.plain.client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")
    rig.down(keep_data=True)
    assert rig.leftovers() == [bucket]
    assert rig.plain.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read() == b"x"
    rig.up()  # and used again
    is_whole_with_more = Counter(each.kind for each in rig.found())
    assert is_whole_with_more == ONE_OF_EACH


def interrupted(url: str, folder: Path, some: int | None) -> None:
    """`up`, and then `down`, of a new stack each time, dead at a change, then repeated."""
    trial = StackRig(url, "trial", folder)
    trial.up()
    made = len(trial.aws.changes)
    trial.down()
    removed = len(trial.aws.changes) - made
    where: Counter[str] = Counter()
    for number, at in enumerate(moments(made, some, 1)):
        rig = StackRig(url, f"up{number}", folder)
        rig.aws.at = at
        with pytest.raises(Killed) as killed:
            rig.up()
        where[f"{at[1]} {killed.value}"] += 1
        rig.aws.at = None
        if number % 2:  # half of them are removed half made
            rig.up()
            is_whole(rig)
        rig.down()
        assert not rig.leftovers(), at
    for number, at in enumerate(moments(removed, some, 2)):
        rig = StackRig(url, f"down{number}", folder)
        rig.up()
        rig.aws.at = (len(rig.aws.changes) + at[0], at[1])
        with pytest.raises(Killed) as killed:
            rig.down()
        where[f"{at[1]} {killed.value}"] += 1
        rig.aws.at = None
        if number % 2:  # half of them are made again
            rig.up()
            is_whole(rig)
        rig.down()
        assert not rig.leftovers(), at
    print(
        f"{sum(where.values())} interruptions at {len(where)} kinds of moment of {made} + {removed} changes"
    )


def test_interrupted_at_some_changes_and_repeated(moto_url: str, tmp_path: Path) -> None:
    interrupted(moto_url, tmp_path, 2)


@pytest.mark.slow
def test_interrupted_at_every_change_and_repeated(moto_url: str, tmp_path: Path) -> None:
    interrupted(moto_url, tmp_path, None)
