"""The template of a stack: user data, machines, policies."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bidbrain.aws.calls import core_session
from bidbrain.aws.notices import KINDS
from bidbrain.aws.site import MOST_REGIONS, Site
from bidbrain.aws.stack.names import Names, names_of
from bidbrain.aws.stack.template import (
    OPERATOR,
    REGION,
    STACK,
    operator_policy,
    region_policy,
    regions_policy,
    resource,
    role_policy,
    text,
)
from tests.bidbrain.aws.demo_stack import NAMES, SITE, THERE, WANTED, WEST, WEST_IMAGE, WIDE_WANTED

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def launch_data(name: str) -> dict[str, Any]:
    return dict(resource(WANTED, name)["LaunchTemplateData"])


def user_data(name: str) -> str:
    return base64.b64decode(launch_data(name)["UserData"]).decode()


@pytest.mark.parametrize(("name", "role"), [("HeadTemplate", "head"), ("NodeTemplate", "node")])
def test_user_data(name: str, role: str) -> None:
    text = user_data(name)
    assert text == (GOLDEN / f"aws_user_data_{role}.sh").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.index("shutdown -h +30") < text.index("pip install") < text.index("agileml.aws.boot")
    assert "ray-token" not in text and "TOKEN" not in text and "AWS_SECRET" not in text


@pytest.mark.parametrize("name", ["HeadTemplate", "NodeTemplate"])
def test_a_machine_ends_when_it_shuts_down_and_its_disk_with_it(name: str) -> None:
    data = launch_data(name)
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"] == {
        "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1
    }  # fmt: skip
    assert data["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True


def test_the_bucket_is_closed_and_stays_and_the_rule_is_that_of_the_notices() -> None:
    bucket = WANTED.template["Resources"]["Bucket"]
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    closed = resource(WANTED, "Bucket")["PublicAccessBlockConfiguration"]
    assert len(closed) == 4 and all(closed.values())
    pattern = resource(WANTED, "Rule")["EventPattern"]
    assert pattern == {"source": ["aws.ec2"], "detail-type": sorted(KINDS)}
    ingress = resource(WANTED, "GroupInside")
    assert ingress["SourceSecurityGroupId"] == ingress["GroupId"] == "Group.GroupId"
    assert "CidrIp" not in text(STACK)


@pytest.mark.parametrize("name", [STACK, REGION, OPERATOR])
def test_cloudformation_would_take_the_templates(name: str, tmp_path: Path) -> None:
    """By the rules of AWS' own linter, and below the size that goes without a bucket."""
    from cfnlint.api import lint

    assert lint(text(name)) == []
    assert len(json.dumps(WANTED.template)) <= 51_200


def test_policies_are_those_of_the_golden_file() -> None:
    told = {
        "user": operator_policy(NAMES, own_bucket=True),
        "head": role_policy(NAMES, "HeadRole", SITE.bought_types, THERE.image),
        "node": role_policy(NAMES, "NodeRole", SITE.bought_types, THERE.image),
        "queue": resource(WANTED, "QueuePolicy")["PolicyDocument"],
    }
    assert json.dumps(told, indent=1) + "\n" == (GOLDEN / "aws_policies.json").read_text()
    for role in ("head", "node"):
        assert len(json.dumps(told[role], separators=(",", ":"))) <= 10_240  # IAM's limit of inline policies
    assert len(json.dumps(told["user"], separators=(",", ":"))) <= 6_144  # of a managed one


def test_the_operator_may_do_what_cloudformation_does_in_their_name() -> None:
    """The rights that AWS' schemas name for each resource type; S3's list names what we do not use as well."""
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

    unused = {"iam:AttachRolePolicy", "iam:DetachRolePolicy"}
    unused |= {"ec2:AuthorizeSecurityGroupEgress", "ec2:RevokeSecurityGroupEgress"}
    statements = operator_policy(NAMES, own_bucket=True)["Statement"]
    allowed = {action for each in statements for action in each["Action"]}
    types = {each["Type"] for each in WANTED.template["Resources"].values()} - {"AWS::S3::Bucket"}
    for resource_type in types:
        handlers = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", resource_type).schema["handlers"]
        needed = {
            p for name in ("create", "read", "delete") for p in handlers.get(name, {}).get("permissions", ())
        }
        missing = {each for each in needed - allowed - unused if not each.startswith("ec2:Describe")}
        assert not missing, resource_type
    bucket = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", "AWS::S3::Bucket").schema["handlers"]
    named = {right for name in ("create", "read") for right in bucket[name]["permissions"]}
    assert {right for right in named if "Tag" in right} <= allowed, "of S3's list what our bucket has"


def test_the_operator_may_do_what_cloudformation_does_in_other_regions() -> None:
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

    unused = {"iam:PutUserPolicy", "iam:PutGroupPolicy", "iam:DeleteUserPolicy", "iam:DeleteGroupPolicy"}
    unused |= {"iam:GetUserPolicy", "iam:GetGroupPolicy", "ec2:AttachVpnGateway", "ec2:DetachVpnGateway"}
    unused |= {"ec2:AuthorizeSecurityGroupEgress", "ec2:RevokeSecurityGroupEgress"}
    unused |= {
        "ec2:CreateVpcEncryptionControl",
        "ec2:AssociateSubnetCidrBlock",
        "ec2:DisassociateSubnetCidrBlock",
    }
    policies = (operator_policy(NAMES, own_bucket=True), regions_policy(NAMES, (WEST,), "vpc-1"))
    allowed = {action for policy in policies for each in policy["Statement"] for action in each["Action"]}
    for resource_type in {
        each["Type"] for each in WIDE_WANTED.elsewhere[WEST].template["Resources"].values()
    }:
        handlers = PROVIDER_SCHEMA_MANAGER.get_resource_schema(WEST, resource_type).schema["handlers"]
        needed = {
            p for name in ("create", "read", "delete") for p in handlers.get(name, {}).get("permissions", ())
        }
        missing = {each for each in needed - allowed - unused if not each.startswith("ec2:Describe")}
        assert not missing, resource_type


def test_another_region_has_a_network_of_its_own_and_the_machines_of_the_home_region() -> None:
    want = WIDE_WANTED.elsewhere[WEST]
    subnets = {
        each["Properties"]["AvailabilityZone"]: each["Properties"]["CidrBlock"]
        for each in want.template["Resources"].values()
        if each["Type"] == "AWS::EC2::Subnet"
    }
    assert subnets == {"us-west-2a": "10.81.0.0/20", "us-west-2c": "10.81.16.0/20"}
    data, home = resource(want, "NodeTemplate")["LaunchTemplateData"], launch_data("NodeTemplate")
    assert data.pop("ImageId") == WEST_IMAGE and home.pop("ImageId") == THERE.image
    assert data.pop("IamInstanceProfile") == {"Name": NAMES.node} and home.pop("IamInstanceProfile")
    # Roles, bucket and parameters are those of the home region, and it says so.
    assert data == home
    assert "region=us-east-1" in base64.b64decode(data["UserData"]).decode()
    assert resource(want, "Rule")["EventPattern"] == resource(WANTED, "Rule")["EventPattern"]
    assert resource(want, "GroupInside") == resource(WANTED, "GroupInside")
    assert "CidrIp" not in text(REGION) and len(json.dumps(want.template)) <= 51_200
    assert WIDE_WANTED.template == WANTED.template


def test_policies_of_the_most_regions_fit_what_iam_takes() -> None:
    types = tuple(f"m5dn.{size}xlarge" for size in (2, 4, 8, 12, 16, 24))
    head = len(json.dumps(role_policy(NAMES, "HeadRole", types, THERE.image), separators=(",", ":")))
    west = len(json.dumps(region_policy(NAMES, "ap-southeast-2", types, THERE.image), separators=(",", ":")))
    assert head + MOST_REGIONS * west <= 10_240
    regions = ("ap-southeast-2", "ap-northeast-1", "us-gov-west-1")
    you = regions_policy(NAMES, regions, "vpc-0123456789abcdef0")
    assert len(json.dumps(you, separators=(",", ":"))) <= 6_144


def test_a_bucket_of_the_users_own_is_neither_made_nor_removed() -> None:
    sids = {each["Sid"] for each in operator_policy(NAMES, own_bucket=False)["Statement"]}
    assert "MakeBucket" not in sids and "Objects" in sids


def test_china_has_other_names_for_the_same() -> None:
    china = names_of(Site(**{**SITE.model_dump(), "region": "cn-north-1", "zones": ("cn-north-1a",)}), "1")
    policy = json.dumps(role_policy(china, "HeadRole", SITE.bought_types, THERE.image))
    assert "arn:aws-cn:iam::1:role/proteus-demo-node" in policy and "ec2.amazonaws.com.cn" in policy
    assert "arn:aws:" not in policy


def test_every_region_that_botocore_knows_has_the_names_of_its_partition() -> None:
    session = core_session()
    suffix = {each["partition"]: each["dnsSuffix"] for each in session.get_data("endpoints")["partitions"]}
    for partition in session.get_available_partitions():
        for region in session.get_available_regions("ec2", partition):
            found = Names("demo", region).pseudo_parameters
            assert found["AWS::Partition"] == partition, region
            assert found["AWS::URLSuffix"] == suffix[partition], region


def test_rights_are_bound_to_the_stack() -> None:
    """A role that may spend, end or write may do it in this stack alone."""
    head, node = (
        role_policy(NAMES, role, SITE.bought_types, THERE.image)["Statement"]
        for role in ("HeadRole", "NodeRole")
    )
    free = set()
    for statement in [*head, *node]:
        bound = "Condition" in statement or all("demo" in each for each in statement["Resource"])
        if not bound:
            free |= set(statement["Action"])
    reads = {action for action in free if action.startswith("ec2:Describe")}
    session = {
        action for action in free if action.startswith(("ssmmessages:", "ssm:UpdateInstanceInformation"))
    }
    # What a purchase uses beside the template, the instance and the group is free: those are bound themselves.
    assert free - reads - session == {"ec2:CreateFleet", "ec2:RunInstances"}
    allowed = {action for s in node for action in s["Action"]}
    assert not any(action.startswith(("ec2:", "iam:", "sqs:")) for action in allowed)
