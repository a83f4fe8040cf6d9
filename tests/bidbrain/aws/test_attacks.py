"""The stack's policies against attacks, by IAM's rules for Allow statements: nothing that is not allowed is done."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest

from bidbrain.aws.stack.template import (
    boundary_policy,
    operator_policy,
    region_policy,
    regions_policy,
    resource,
    role_policy,
)
from tests.bidbrain.aws.demo_stack import NAMES, SITE, THERE, WANTED, WEST, WEST_IMAGE

ACCOUNT, REGION = "123456789012", "us-east-1"
EC2 = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
IAM = f"arn:aws:iam::{ACCOUNT}"
OURS, STACK_TAG = {"proteus:stack": "demo"}, "aws:ResourceTag/proteus:stack"
TEMPLATE = f"{EC2}:launch-template/NodeTemplate"
HEAD, NODE = (role_policy(NAMES, role, SITE.bought_types, THERE.image) for role in ("HeadRole", "NodeRole"))
OPERATOR = operator_policy(NAMES, own_bucket=True)
# Of a stack in two regions: what each has beside the above.
HEAD_WEST = region_policy(NAMES, WEST, SITE.bought_types, WEST_IMAGE)
OPERATOR_WEST = regions_policy(NAMES, (WEST,), "vpc-home")
HEAD_BOTH = {"Statement": [*HEAD["Statement"], *HEAD_WEST["Statement"]]}
OPERATOR_BOTH = {"Statement": [*OPERATOR["Statement"], *OPERATOR_WEST["Statement"]]}
EC2_WEST = f"arn:aws:ec2:{WEST}:{ACCOUNT}"
BOUNDARY = f"{IAM}:policy/proteus-demo-boundary"


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _holds(condition: dict[str, dict[str, Any]], context: dict[str, str]) -> bool:
    """All operators and keys must hold; a key that the request does not carry does not."""
    for operator, keys in condition.items():
        assert operator in ("StringEquals", "StringLike", "ArnEquals"), operator
        for key, wanted in keys.items():
            found = context.get(key)
            same = fnmatch.fnmatchcase if operator != "StringEquals" else str.__eq__
            if found is None or not any(same(found, each) for each in _list(wanted)):
                return False
    return True


def allowed(policy: dict[str, Any], action: str, resource: str, **context: str) -> bool:
    """Whether a statement allows it. context: by condition key, with its signs as in `_KEYS`."""
    keys = {_KEYS[name]: value for name, value in context.items()}
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow"
        if (
            any(fnmatch.fnmatchcase(action, each) for each in _list(statement["Action"]))
            and any(fnmatch.fnmatchcase(resource, each) for each in _list(statement["Resource"]))
            and _holds(statement.get("Condition", {}), keys)
        ):
            return True
    return False


_KEYS = {
    "asked_tag": "aws:RequestTag/proteus:stack",
    "tag": STACK_TAG,
    "session_tag": "ssm:resourceTag/proteus:stack",
    "session_of": "ssm:resourceTag/aws:ssmmessages:session-id",
    "prefix": "s3:prefix",
    "creating": "ec2:CreateAction",
    "type": "ec2:InstanceType",
    "template": "ec2:LaunchTemplate",
    "service": "iam:PassedToService",
    "boundary": "iam:PermissionsBoundary",
    "region": "aws:RequestedRegion",
    "vpc": "ec2:Vpc",
}
GOOD = {"asked_tag": "demo", "type": "c5.xlarge", "template": TEMPLATE}


def buys(
    policy: dict[str, Any],
    image: str = THERE.image,
    template: str = TEMPLATE,
    region: str = REGION,
    **changed: str,
) -> bool:
    """Whether a purchase goes through: RunInstances must be allowed on everything that it uses."""
    context = GOOD | {"template": template} | changed
    ec2 = f"arn:aws:ec2:{region}:{ACCOUNT}"
    return all(
        (
            allowed(policy, "ec2:CreateFleet", f"{ec2}:fleet/f-1", asked_tag=context["asked_tag"]),
            allowed(policy, "ec2:RunInstances", f"{ec2}:instance/i-1", **context),
            allowed(policy, "ec2:RunInstances", template),
            allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{region}::image/{image}"),
            allowed(policy, "ec2:RunInstances", f"{ec2}:security-group/sg-1", tag="demo"),
            allowed(policy, "ec2:RunInstances", f"{ec2}:subnet/subnet-1"),
            allowed(policy, "iam:PassRole", f"{IAM}:role/proteus-demo-node", service="ec2.amazonaws.com"),
        )
    )


def test_the_head_buys_what_the_config_names() -> None:
    assert buys(HEAD)
    assert allowed(HEAD, "ec2:CreateTags", f"{EC2}:instance/i-1", creating="RunInstances")
    assert allowed(HEAD, "ec2:TerminateInstances", f"{EC2}:instance/i-1", tag="demo")
    assert allowed(HEAD, "sts:AssumeRole", f"{IAM}:role/proteus-demo-node")


def test_a_job_writes_its_results_and_its_risk_and_not_its_limits() -> None:
    """The driver of a job has the node's role. No role of the stack writes what the buyer holds jobs to."""
    ours = f"arn:aws:s3:::{NAMES.bucket}/proteus/demo"
    for place in ("checkpoints/a", "runs/a", "risk/job.jsonl"):
        assert allowed(NODE, "s3:PutObject", f"{ours}/{place}")
    for policy in (HEAD, NODE):
        assert allowed(policy, "s3:GetObject", f"{ours}/buyer/limits.json")
        for action in ("s3:PutObject", "s3:DeleteObject"):
            assert not allowed(policy, action, f"{ours}/buyer/limits.json")
            assert not allowed(policy, action, f"{ours}/package/abc/package.whl")


def test_a_job_lists_what_is_the_stacks_and_ends_broken_uploads() -> None:
    """S3 puts a prefix into the request to list objects alone, so no other right may ask for one."""
    bucket = f"arn:aws:s3:::{NAMES.bucket}"
    assert allowed(NODE, "s3:ListBucket", bucket, prefix="proteus/demo/checkpoints/")
    assert not allowed(NODE, "s3:ListBucket", bucket, prefix="other/")
    assert allowed(NODE, "s3:ListBucketMultipartUploads", bucket)
    assert allowed(NODE, "s3:AbortMultipartUpload", f"{bucket}/proteus/demo/checkpoints/clock-1-0/part-0")
    for policy in (HEAD, NODE, OPERATOR):
        for statement in policy["Statement"]:
            if "s3:prefix" in str(statement.get("Condition")):
                assert statement["Action"] == ["s3:ListBucket"]


def test_attack_5_the_driver_of_a_job_buys_nothing_and_becomes_no_one_who_does() -> None:
    """User code beside the driver has these rights alone: no purchase whatever it names, no end, no other role."""
    assert not buys(NODE)
    for action in ("ec2:RunInstances", "ec2:CreateFleet", "ec2:RequestSpotInstances", "ec2:CreateTags"):
        assert not allowed(NODE, action, f"{EC2}:instance/i-1", creating="RunInstances", **GOOD)
        assert not allowed(NODE, action, f"{EC2}:fleet/f-1", **GOOD)
    assert not allowed(NODE, "ec2:TerminateInstances", f"{EC2}:instance/i-1", tag="demo")
    for role in ("proteus-demo-head", "proteus-demo-node", "Admin"):
        assert not allowed(NODE, "sts:AssumeRole", f"{IAM}:role/{role}")
    trust = resource(WANTED, "NodeRole")["AssumeRolePolicyDocument"]["Statement"]
    (machine, head) = trust
    assert machine["Principal"] == {"Service": "ec2.amazonaws.com"} and "Condition" not in machine
    assert head["Condition"] == {"ArnEquals": {"aws:PrincipalArn": f"{IAM}:role/proteus-demo-head"}}
    (alone,) = resource(WANTED, "HeadRole")["AssumeRolePolicyDocument"]["Statement"]
    assert alone["Principal"] == {"Service": "ec2.amazonaws.com"}, "no process becomes the head by asking"


@pytest.mark.parametrize("policy", [HEAD, HEAD_BOTH, NODE], ids=["head", "head in two regions", "node"])
def test_attack_1_no_other_image_type_template_or_tag_is_bought(policy: dict[str, Any]) -> None:
    assert not buys(policy, image="ami-ffffffffffffffff0")
    assert not buys(policy, template=f"{EC2}:launch-template/lt-foreign")
    assert not buys(policy, type="p5.48xlarge")
    assert not buys(policy, asked_tag="other")


@pytest.mark.parametrize("policy", [HEAD_BOTH, NODE, OPERATOR_BOTH], ids=["head", "node", "operator"])
def test_attack_2_a_foreign_machine_is_neither_tagged_nor_ended(policy: dict[str, Any]) -> None:
    for ec2, region in ((EC2, REGION), (EC2_WEST, WEST), (f"arn:aws:ec2:eu-west-1:{ACCOUNT}", "eu-west-1")):
        foreign = f"{ec2}:instance/i-foreign"
        assert not allowed(policy, "ec2:CreateTags", foreign, region=region)
        assert not allowed(policy, "ec2:CreateTags", foreign, tag="other", region=region)
        assert not allowed(policy, "ec2:TerminateInstances", foreign, region=region)
        assert not allowed(policy, "ec2:TerminateInstances", foreign, tag="other", region=region)
        assert not allowed(policy, "ssm:StartSession", foreign, region=region)
        assert not allowed(policy, "ssm:StartSession", foreign, session_tag="other", region=region)


@pytest.mark.parametrize("policy", [HEAD_BOTH, NODE, OPERATOR_BOTH], ids=["head", "node", "operator"])
def test_attack_3_no_stronger_role_is_passed(policy: dict[str, Any]) -> None:
    assert not allowed(policy, "iam:PassRole", f"{IAM}:role/Admin", service="ec2.amazonaws.com")
    assert not allowed(
        policy, "iam:PassRole", f"{IAM}:role/proteus-demo-node", service="lambda.amazonaws.com"
    )
    if policy is not OPERATOR_BOTH:
        assert not allowed(
            policy, "iam:PassRole", f"{IAM}:role/proteus-demo-head", service="ec2.amazonaws.com"
        )


@pytest.mark.parametrize("policy", [HEAD_BOTH, NODE, OPERATOR_BOTH], ids=["head", "node", "operator"])
def test_attack_4_no_one_widens_the_boundary_or_acts_without_it(policy: dict[str, Any]) -> None:
    for role in ("proteus-demo-head", "proteus-demo-node", "Admin"):
        for action in ("iam:CreateRole", "iam:PutRolePolicy", "iam:PutRolePermissionsBoundary"):
            assert not allowed(policy, action, f"{IAM}:role/{role}")
            assert not allowed(policy, action, f"{IAM}:role/{role}", boundary=f"{IAM}:policy/Anything")
        assert not allowed(
            policy, "iam:DeleteRolePermissionsBoundary", f"{IAM}:role/{role}", boundary=BOUNDARY
        )
        assert not allowed(policy, "iam:AttachRolePolicy", f"{IAM}:role/{role}", boundary=BOUNDARY)
    for action in ("CreatePolicyVersion", "SetDefaultPolicyVersion", "DeletePolicy", "CreatePolicy"):
        assert not allowed(policy, f"iam:{action}", BOUNDARY)
    for action in ("PutUserPolicy", "AttachUserPolicy", "CreateAccessKey"):
        assert not allowed(policy, f"iam:{action}", f"{IAM}:user/someone")


def test_the_boundary_lets_the_roles_work_and_no_role_rule() -> None:
    boundary = boundary_policy(NAMES)
    allows = {"iam:PutRolePolicy", "iam:CreateUser", "iam:AttachRolePolicy", "sts:AssumeRole", "kms:Decrypt"}
    assert not allowed(boundary, "sts:AssumeRole", f"{IAM}:role/Admin")
    assert not any(allowed(boundary, action, f"{IAM}:role/proteus-demo-head") for action in allows)
    assert not allowed(boundary, "iam:PassRole", f"{IAM}:role/Admin")
    assert not allowed(boundary, "s3:GetObject", "arn:aws:s3:::another/secret")
    for policy in (HEAD_BOTH, NODE):
        for statement in policy["Statement"]:
            tags = {"tag": "demo", "creating": "RunInstances"}
            for action in statement["Action"]:
                assert any(allowed(boundary, action, each, **tags) for each in statement["Resource"]), action


def test_the_operator_makes_roles_within_the_boundary_and_reaches_the_stacks_machines() -> None:
    assert allowed(OPERATOR, "iam:CreateRole", f"{IAM}:role/proteus-demo-head", boundary=BOUNDARY)
    assert allowed(OPERATOR, "ssm:StartSession", f"{EC2}:instance/i-1", session_tag="demo")
    document = f"arn:aws:ssm:{REGION}::document/AWS-StartPortForwardingSession"
    assert allowed(OPERATOR, "ssm:StartSession", document)
    session, mine = f"arn:aws:ssm:{REGION}:{ACCOUNT}:session/someone-0abc", "${aws:userid}"
    assert allowed(OPERATOR, "ssmmessages:OpenDataChannel", session), "the plugin of AWS' CLI asks for it"
    for action in ("ssm:ResumeSession", "ssm:TerminateSession"):
        assert allowed(OPERATOR, action, session, session_of=mine)
        assert not allowed(OPERATOR, action, session, session_of="AIDAOTHER")


WEST_TEMPLATE = f"{EC2_WEST}:launch-template/NodeTemplate"
IN_WEST = {"image": WEST_IMAGE, "template": WEST_TEMPLATE, "region": WEST}


def test_the_head_buys_in_the_regions_of_the_stack_and_in_no_other() -> None:
    assert buys(HEAD_BOTH) and buys(HEAD_BOTH, **IN_WEST)
    assert not buys(HEAD, **IN_WEST), "without a stack there"
    assert not buys(HEAD_BOTH, **{**IN_WEST, "image": THERE.image})
    assert not buys(HEAD_BOTH, **{**IN_WEST, "template": TEMPLATE})
    ireland = {"template": WEST_TEMPLATE.replace(WEST, "eu-west-1"), "region": "eu-west-1"}
    assert not buys(HEAD_BOTH, image=WEST_IMAGE, **ireland)
    assert not buys(HEAD_BOTH, **IN_WEST, type="p5.48xlarge")
    assert not buys(HEAD_BOTH, **IN_WEST, asked_tag="other")
    assert not buys(NODE, **IN_WEST)
    for ec2, ends in ((EC2, True), (EC2_WEST, True), (EC2.replace(REGION, "eu-west-1"), False)):
        assert allowed(HEAD_BOTH, "ec2:TerminateInstances", f"{ec2}:instance/i-1", tag="demo") == ends
    queue = f"arn:aws:sqs:{WEST}:{ACCOUNT}:proteus-demo"
    assert allowed(HEAD_BOTH, "sqs:ReceiveMessage", queue) and not allowed(NODE, "sqs:ReceiveMessage", queue)
    assert allowed(boundary_policy(NAMES), "sqs:ReceiveMessage", queue)


def test_attack_6_the_operator_opens_no_foreign_network_and_reroutes_none() -> None:
    """A peering has two ends; the one that lets in is always the stack's, the one that asks is that of the head too."""
    peering = f"{EC2_WEST}:vpc-peering-connection/pcx-1"
    ask, accept = "ec2:CreateVpcPeeringConnection", "ec2:AcceptVpcPeeringConnection"
    assert allowed(OPERATOR_BOTH, accept, peering, region=WEST)
    assert allowed(OPERATOR_BOTH, accept, f"{EC2_WEST}:vpc/vpc-1", tag="demo", region=WEST)
    assert allowed(OPERATOR_BOTH, ask, f"{EC2}:vpc/vpc-home", region=REGION)
    for foreign in (f"{EC2}:vpc/vpc-other", f"{EC2_WEST}:vpc/vpc-other"):
        for action in (ask, accept):
            assert not allowed(OPERATOR_BOTH, action, foreign, region=REGION)
            assert not allowed(OPERATOR_BOTH, action, foreign, tag="other", region=WEST)
    assert not allowed(OPERATOR_BOTH, accept, f"{EC2}:vpc/vpc-home", region=REGION)
    table, home = f"{EC2}:route-table/rtb-1", f"{EC2}:vpc/vpc-home"
    assert allowed(OPERATOR_BOTH, "ec2:CreateRoute", table, vpc=home)
    for policy in (HEAD_BOTH, NODE):
        assert not any(
            allowed(policy, each, table, vpc=home) for each in ("ec2:CreateRoute", "ec2:DeleteRoute")
        )
        assert not allowed(policy, ask, f"{EC2}:vpc/vpc-home", region=REGION)
    for action in ("ec2:CreateRoute", "ec2:DeleteRoute", "ec2:ReplaceRoute"):
        assert not allowed(OPERATOR_BOTH, action, table, vpc=f"{EC2}:vpc/vpc-other")
        assert not allowed(
            OPERATOR_BOTH, action, f"{EC2_WEST}:route-table/rtb-2", vpc=f"{EC2_WEST}:vpc/vpc-other"
        )
    for action in (
        "ec2:DeleteVpc",
        "ec2:DeleteSubnet",
        "ec2:DeleteVpcPeeringConnection",
        "ec2:DeleteRouteTable",
    ):
        assert not allowed(OPERATOR_BOTH, action, f"{EC2_WEST}:vpc/vpc-other", region=WEST)
    for region in (REGION, "eu-west-1"):
        assert not allowed(
            OPERATOR_BOTH, "ec2:CreateVpc", f"arn:aws:ec2:{region}:{ACCOUNT}:vpc/*", region=region
        )
    stack = f"arn:aws:cloudformation:eu-west-1:{ACCOUNT}:stack/proteus-demo/1"
    assert not allowed(OPERATOR_BOTH, "cloudformation:CreateStack", stack, region="eu-west-1")
    assert allowed(OPERATOR_BOTH, "cloudformation:CreateStack", stack.replace("eu-west-1", WEST), region=WEST)


@pytest.mark.parametrize("policy", [HEAD_BOTH, NODE, OPERATOR_BOTH], ids=["head", "node", "operator"])
def test_attack_7_no_foreign_group_is_opened_or_closed(policy: dict[str, Any]) -> None:
    for ec2, region in ((EC2, REGION), (EC2_WEST, WEST), (f"arn:aws:ec2:eu-west-1:{ACCOUNT}", "eu-west-1")):
        group = f"{ec2}:security-group/sg-1"
        for action in ("ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress"):
            assert not allowed(policy, action, group, region=region)
            assert not allowed(policy, action, group, tag="other", region=region)
            assert allowed(policy, action, group, tag="demo", region=region) == (policy is OPERATOR_BOTH)
