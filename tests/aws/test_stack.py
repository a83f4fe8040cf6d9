"""`up` and `down` on moto: made once, found again, interrupted anywhere, nothing left."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from bidbrain.aws.stack.attach import attach
from bidbrain.aws.stack.authority import Authority
from bidbrain.aws.stack.parts import Action, ForeignError, PartKind
from bidbrain.aws.stack.status import look
from bidbrain.live.cloud import CloudError
from tests.aws.stack_rig import ACCOUNT, Killed, StackRig, moments

pytestmark = pytest.mark.aws

ONE_OF_EACH = Counter(
    {
        PartKind.STACK: 1,
        PartKind.BUCKET: 1,
        PartKind.PACKAGE: 1,
        PartKind.LIMITS: 1,
        PartKind.OBJECTS: 1,
        PartKind.TOKEN: 1,
        PartKind.AUTHORITY: 1,
        PartKind.ADDRESS: 1,
        PartKind.HEAD: 1,
    }
)


@pytest.fixture
def rig(moto_url: str, request: pytest.FixtureRequest) -> Iterator[StackRig]:
    rig = StackRig(moto_url, f"s{zlib.crc32(request.node.name.encode()):08x}")
    yield rig
    rig.aws.dies_at = None
    rig.down()
    assert not rig.leftovers()


def is_whole(rig: StackRig) -> None:
    """One of everything, and nothing left to do."""
    assert Counter(each.kind for each in rig.found().parts) == ONE_OF_EACH
    rig.up()
    assert {step.action for step in rig.told} == {Action.KEEP}
    assert len(rig.instances()) == 1


def done(rig: StackRig) -> dict[str, Action]:
    """What the last `up` did to the parts that are not CloudFormation's."""
    kinds = set(PartKind) - {PartKind.BUCKET}
    return {s.kind: s.action for s in rig.told if s.kind in kinds and s.action is not Action.KEEP}


def test_what_up_makes(rig: StackRig) -> None:
    head = rig.up()
    assert {step.action for step in rig.told} == {Action.MAKE}
    is_whole(rig)
    (instance,) = rig.instances()
    assert (instance["InstanceId"], instance["PrivateIpAddress"]) == (head.instance_id, head.ip)
    ec2, ssm = rig.plain.client("ec2"), rig.plain.client("ssm")
    name = rig.site.name

    (group,) = ec2.describe_security_groups(GroupIds=[rig.resource("Group")])["SecurityGroups"]
    (rule,) = group["IpPermissions"]  # nothing from outside
    assert [pair["GroupId"] for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]]
    assert not rule["IpRanges"] and instance["SecurityGroups"][0]["GroupId"] == group["GroupId"]

    token = ssm.get_parameter(Name=f"/proteus/{name}/ray-token", WithDecryption=True)["Parameter"]
    assert token["Type"] == "SecureString" and len(token["Value"]) == 64
    authority = ssm.get_parameter(Name=f"/proteus/{name}/ray-authority", WithDecryption=True)["Parameter"]
    assert authority["Type"] == "SecureString" and Authority.parsed(authority["Value"])
    assert ssm.get_parameter(Name=f"/proteus/{name}/head")["Parameter"]["Value"] == head.ip

    for logical, role in (("NodeTemplate", "node"), ("HeadTemplate", "head")):
        versions = ec2.describe_launch_template_versions(
            LaunchTemplateId=rig.resource(logical), Versions=["$Latest"]
        )
        data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert data["SecurityGroupIds"] == [group["GroupId"]]
        assert data["IamInstanceProfile"]["Name"] == f"proteus-{name}-{role}"
        assert token["Value"] not in json.dumps([data, instance], default=str)
    policy = rig.plain.client("iam").get_role_policy(RoleName=f"proteus-{name}-head", PolicyName="proteus")
    assert "ec2:CreateFleet" in str(policy["PolicyDocument"])


def test_everything_carries_the_tags_of_the_stack_and_of_its_owner(rig: StackRig, moto_url: str) -> None:
    """Instance profiles have none: CloudFormation gives them no tags."""
    tagged = StackRig(moto_url, rig.site.name, tags={"team": "ml"})
    tagged.up()
    ec2, name = rig.plain.client("ec2"), rig.site.name
    queue = rig.plain.client("sqs").get_queue_url(QueueName=f"proteus-{name}")["QueueUrl"]
    wanted = {"proteus:stack": name, "team": "ml"}.items()
    assert wanted <= rig.plain.client("sqs").list_queue_tags(QueueUrl=queue)["Tags"].items()
    ids = [rig.resource(each) for each in ("Group", "NodeTemplate", "HeadTemplate")]
    ids.append(rig.instances()[0]["InstanceId"])
    for resource in ids:
        found = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [resource]}])["Tags"]
        assert wanted <= {tag["Key"]: tag["Value"] for tag in found}.items(), resource
    role = rig.plain.client("iam").get_role(RoleName=f"proteus-{name}-head")["Role"]
    assert wanted <= {tag["Key"]: tag["Value"] for tag in role["Tags"]}.items()
    bucket = rig.plain.client("s3").get_bucket_tagging(Bucket=tagged.want.names.bucket)["TagSet"]
    assert wanted <= {tag["Key"]: tag["Value"] for tag in bucket}.items()


def test_people_see_every_part(rig: StackRig) -> None:
    rig.up()
    kinds = {part.kind for part in look(rig.plain, rig.site, ACCOUNT)[0]}
    assert {"head", "bucket", "role", "queue", "rule", "security group", "launch template"} <= kinds


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


def test_a_changed_package_changes_what_depends_on_it(moto_url: str, rig: StackRig) -> None:
    """New machines get it, and it is in the bucket before they can; the head stays."""
    rig.up()
    newer = StackRig(moto_url, rig.site.name, package="p2")
    newer.up()
    assert list(done(newer).items()) == [(PartKind.PACKAGE, Action.MAKE), (PartKind.STACK, Action.CHANGE)]
    assert any(step.kind is PartKind.HEAD and "differs" in step.reason for step in newer.told)
    assert "(Package)" in next(step.reason for step in newer.told if step.kind is PartKind.STACK)
    versions = rig.plain.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=rig.resource("NodeTemplate"), Versions=["$Latest"]
    )
    assert versions["LaunchTemplateVersions"][0]["VersionDescription"] == "p2"


def test_a_head_that_ended_is_started_anew_and_nodes_are_told(rig: StackRig) -> None:
    first = rig.up()
    rig.plain.client("ec2").terminate_instances(InstanceIds=[first.instance_id])
    second = rig.up()
    assert second.instance_id != first.instance_id
    assert set(done(rig)) == {PartKind.HEAD, PartKind.ADDRESS}
    rig.plain.client("ec2").terminate_instances(InstanceIds=[second.instance_id])
    third = rig.up()
    assert third.instance_id not in (first.instance_id, second.instance_id)
    assert [each["InstanceId"] for each in rig.instances()] == [third.instance_id]
    assert rig.aws.seen["ended token"] == 1 + 2, "EC2 remembers the launches of those that have ended"
    is_whole(rig)


def test_a_head_that_was_stopped_is_none_that_is_starting(rig: StackRig) -> None:
    """Until somebody has ended it, for there may be results on its disk."""
    head = rig.up()
    rig.plain.client("ec2").stop_instances(InstanceIds=[head.instance_id])
    with pytest.raises(ForeignError, match=f"^head {head.instance_id}: it is stopped"):
        rig.up()
    rig.plain.client("ec2").terminate_instances(InstanceIds=[head.instance_id])
    assert rig.up().instance_id != head.instance_id
    is_whole(rig)


def test_ec2_may_not_know_a_new_profile_yet(rig: StackRig) -> None:
    rig.aws.not_yet = {f"proteus-{rig.site.name}-head"}
    rig.up()
    assert rig.aws.seen["profile not known"] == 1 and rig.slept_s == 5
    is_whole(rig)


def test_what_was_just_made_may_not_be_known_everywhere(rig: StackRig) -> None:
    rig.aws.late = {"s3.put_object": "NoSuchBucket"}
    rig.aws.blind_after_launch = 4  # the head is listed late as well
    rig.up()
    assert rig.aws.seen["not known yet"] == 1 and not rig.aws.blind and rig.slept_s == (1 + 4) * 5
    assert rig.aws.seen["same token"] == 4
    is_whole(rig)


def test_parameters_may_be_listed_late(rig: StackRig) -> None:
    """Token, authority and address: a list that lags behind is no reason to end."""
    rig.aws.blind_after_put = 2
    rig.up()
    assert rig.slept_s == 3 * 2 * 5
    is_whole(rig)


def test_somebody_elses_role_is_left_alone(rig: StackRig) -> None:
    iam, name = rig.plain.client("iam"), f"proteus-{rig.site.name}-node"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    with pytest.raises(CloudError, match=f"CloudFormation stack .*: .*{name} already exists"):
        rig.up()
    rig.down()
    assert rig.leftovers() == [name]
    iam.delete_role(RoleName=name)


def test_somebody_elses_token_is_left_alone(rig: StackRig) -> None:
    ssm, name = rig.plain.client("ssm"), f"/proteus/{rig.site.name}/ray-token"
    ssm.put_parameter(Name=name, Value="theirs", Type="SecureString")
    with pytest.raises(ForeignError, match=f"token {name}: it exists and is not ours"):
        rig.up()
    assert rig.leftovers() == [name]
    ssm.delete_parameter(Name=name)


@pytest.mark.slow
def test_every_cluster_has_an_authority_of_its_own(rig: StackRig) -> None:
    """A stack that is made again believes no certificate of the one before; one that is repeated keeps its own."""
    ssm, name = rig.plain.client("ssm"), f"/proteus/{rig.site.name}/ray-authority"

    def made() -> str:
        rig.up()
        return str(ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])

    first = made()
    assert made() == first
    rig.down()
    assert made() != first


# -- what CloudFormation does ---------------------------------------------------------------------------------------


def test_a_making_that_fails_is_one_sentence_and_can_be_repeated(rig: StackRig) -> None:
    """The first resource that failed says why, not those that were cancelled for its sake; CloudFormation cleans up."""
    rig.aws.formation.fails = {"HeadRole": "User is not authorized\nto perform: iam:CreateRole"}
    rig.aws.formation.looks = 2
    said = r"role headrole: User is not authorized to perform: iam:CreateRole$"
    with pytest.raises(CloudError, match=said):
        rig.up()
    assert not rig.instances() and rig.found().stack is None
    rig.up()
    is_whole(rig)


def test_a_change_that_fails_is_taken_back_and_can_be_repeated(moto_url: str, rig: StackRig) -> None:
    rig.up()
    newer = StackRig(moto_url, rig.site.name, package="p2")
    newer.aws.formation.fails = {"NodeTemplate": "You have reached the limit of versions"}
    with pytest.raises(CloudError, match="launch template nodetemplate: You have reached the limit"):
        newer.up()
    assert len(rig.instances()) == 1
    newer.up()
    assert done(newer) == {PartKind.STACK: Action.CHANGE}
    newer.up()
    assert not done(newer)


def test_an_up_that_was_interrupted_waits_for_what_it_began(rig: StackRig) -> None:
    rig.aws.formation.looks = 3
    rig.aws.dies_at = (3, "after")
    with pytest.raises(Killed, match="create_stack"):
        rig.up()
    rig.aws.dies_at = None
    rig.up()
    assert rig.aws.changes.count("cloudformation.create_stack") == 1
    assert rig.told[0].action is Action.FINISH and rig.slept_s
    is_whole(rig)


def test_a_group_that_is_in_use_for_a_while_goes_later(rig: StackRig) -> None:
    """Network interfaces are detached some time after their machines have ended."""
    rig.up()
    rig.aws.formation.clings = {"Group": "resource sg-1 has a dependent object"}
    rig.down()
    assert [s.kind for s in rig.told].count(PartKind.STACK) == 2 and rig.slept_s
    assert not rig.leftovers()


def test_a_stack_that_is_not_ours_is_left_alone(rig: StackRig) -> None:
    client, name = rig.plain.client("cloudformation"), f"proteus-{rig.site.name}"
    queue = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}}
    client.create_stack(StackName=name, TemplateBody=json.dumps(queue))
    with pytest.raises(ForeignError, match=f"CloudFormation stack {name}: it exists and is not ours"):
        rig.up()
    rig.down()
    assert name in rig.leftovers()
    client.delete_stack(StackName=name)


# -- down -----------------------------------------------------------------------------------------------------------


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
    assert order[:4] == [PartKind.HEAD, *[PartKind.INSTANCE] * 3]
    assert order.index(PartKind.FLEET) < order.index(PartKind.VOLUME) < order.index(PartKind.STACK)
    assert not rig.leftovers()


def test_down_goes_on_where_a_disk_went_with_its_machine_meanwhile(rig: StackRig) -> None:
    rig.up()
    tagged = [{"ResourceType": "volume", "Tags": [{"Key": "proteus:stack", "Value": rig.site.name}]}]
    rig.plain.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tagged)
    rig.aws.late = {"ec2.delete_volume": "InvalidVolume.NotFound"}
    rig.down()
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
    is_whole(rig)
    assert rig.found().stack is not None
    assert "Bucket" not in rig.found().stack.template["Resources"], "it is not CloudFormation's any more"


def interrupted(url: str, some: int | None) -> None:
    """`up`, and then `down`, of a new stack each time, dead at a change or while it waits, then repeated."""

    def new(name: str) -> StackRig:
        rig = StackRig(url, name)
        rig.aws.formation.looks = 1
        return rig

    trial = new("trial")
    trial.up()
    made = len(trial.aws.changes)
    trial.down()
    removed = len(trial.aws.changes) - made
    where: Counter[str] = Counter()
    for number, at in enumerate(moments(made, some, 1)):
        rig = new(f"up{number}")
        rig.aws.dies_at = at
        with pytest.raises(Killed) as killed:
            rig.up()
        where[f"{at[1]} {killed.value}"] += 1
        rig.aws.dies_at = None
        if number % 2:  # half of them are removed half made
            rig.up()
            is_whole(rig)
        rig.down()
        assert not rig.leftovers(), at
    for number, at in enumerate(moments(removed, some, 2)):
        rig = new(f"down{number}")
        rig.up()
        rig.aws.dies_at = (len(rig.aws.changes) + at[0], at[1])
        with pytest.raises(Killed) as killed:
            rig.down()
        where[f"{at[1]} {killed.value}"] += 1
        rig.aws.dies_at = None
        if number % 2:  # half of them are made again
            rig.up()
            is_whole(rig)
        rig.down()
        assert not rig.leftovers(), at
    print(
        f"{sum(where.values())} interruptions at {len(where)} kinds of moment of {made} + {removed} changes"
    )


@pytest.mark.slow
def test_interrupted_at_some_changes_and_repeated(moto_url: str) -> None:
    interrupted(moto_url, 2)


@pytest.mark.slow
def test_interrupted_at_every_change_and_repeated(moto_url: str) -> None:
    interrupted(moto_url, None)
