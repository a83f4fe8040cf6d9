"""A stack as data: steps, their order, policies, user data, checks and costs."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.aws.notices import KINDS
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Facts, Quota, Scale, TypeFact, Unread, Verdict, checks, costs, family
from bidbrain.aws.stack.names import names_of, tags_of
from bidbrain.aws.stack.parts import (
    DATA,
    REMOVAL,
    Action,
    ForeignError,
    Found,
    Part,
    PartKind,
    StackState,
    left,
    planned,
    steps,
    teardown,
    template_for,
)
from bidbrain.aws.stack.template import (
    OPERATOR,
    STACK,
    Surroundings,
    operator_policy,
    resource,
    role_policy,
    text,
    wanted,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SITE = Site(
    name="demo", region="us-east-1", zones=("us-east-1a", "us-east-1b"), types=("c5.xlarge", "m5.xlarge")
)
THERE = Surroundings(
    account="123456789012",
    image="ami-0123456789abcdef0",
    root_device="/dev/xvda",
    vpc="vpc-1",
    subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
    package="abcdef0123456789",
)
WANTED = wanted(SITE, THERE)
NAMES = WANTED.names
PACKAGE = f"{NAMES.prefix}package/{THERE.package}"
RUNNING = (PartKind.HEAD, PartKind.INSTANCE, PartKind.FLEET)


def stack_of(status: str = "CREATE_COMPLETE", **changes: Any) -> StackState:
    state = StackState("stack/1", status, True, WANTED.parameters, WANTED.template)
    return replace(state, **changes)


WHOLE = Found(
    stack_of(),
    (
        Part(PartKind.STACK, NAMES.plain, "stack/1"),
        Part(PartKind.BUCKET, NAMES.bucket, NAMES.bucket),
        Part(PartKind.PACKAGE, PACKAGE, PACKAGE),
        Part(PartKind.TOKEN, NAMES.token, NAMES.token),
        Part(PartKind.HEAD, NAMES.head, "i-1", value="10.0.0.5"),
        Part(PartKind.ADDRESS, NAMES.address, NAMES.address, value="10.0.0.5"),
    ),
)


def with_part(kind: PartKind, **changes: Any) -> Found:
    parts = tuple(replace(part, **changes) if part.kind is kind else part for part in WHOLE.parts)
    return replace(WHOLE, parts=parts)


def without(*kinds: PartKind) -> Found:
    stack = None if PartKind.STACK in kinds else WHOLE.stack
    return Found(stack, tuple(part for part in WHOLE.parts if part.kind not in kinds))


def actions(found: Found) -> dict[str, Action]:
    planned = steps(WANTED, found)
    assert all(step.reason for step in planned)
    return {step.kind: step.action for step in planned if step.action is not Action.KEEP}


def test_a_whole_stack_is_kept() -> None:
    assert not actions(WHOLE) and len(steps(WANTED, WHOLE)) == 5


@pytest.mark.parametrize(
    ("found", "todo"),
    [
        (without(PartKind.TOKEN), {PartKind.TOKEN: Action.MAKE}),
        (without(PartKind.PACKAGE), {PartKind.PACKAGE: Action.MAKE}),
        (without(PartKind.ADDRESS), {PartKind.ADDRESS: Action.MAKE}),
        (without(PartKind.STACK), {PartKind.STACK: Action.MAKE}),
        (with_part(PartKind.PACKAGE, is_current=False), {PartKind.PACKAGE: Action.FINISH}),
        (with_part(PartKind.ADDRESS, value="10.0.0.4"), {PartKind.ADDRESS: Action.CHANGE}),
        (with_part(PartKind.HEAD, is_current=False), {}),
        (with_part(PartKind.HEAD, is_ending=True), {PartKind.HEAD: Action.MAKE, PartKind.ADDRESS: Action.CHANGE}),
        (replace(WHOLE, stack=stack_of("UPDATE_IN_PROGRESS")), {PartKind.STACK: Action.FINISH}),
        (replace(WHOLE, stack=stack_of("ROLLBACK_COMPLETE")), {PartKind.STACK: Action.MAKE}),
        (replace(WHOLE, stack=stack_of("UPDATE_ROLLBACK_COMPLETE")), {}),
        (replace(WHOLE, stack=stack_of(parameters={})), {PartKind.STACK: Action.CHANGE}),
        (replace(WHOLE, stack=stack_of(template={"Resources": {}})), {PartKind.STACK: Action.CHANGE}),
    ],
)  # fmt: skip
def test_each_part_gets_the_step_that_its_state_asks_for(found: Found, todo: dict[str, Action]) -> None:
    assert actions(found) == todo


def test_the_package_is_there_before_machines_can_be_bought_that_want_it() -> None:
    """In a bucket of the stack's own that is not there yet it can only come second."""
    newer = wanted(SITE, replace(THERE, package="0"))
    order = [step.kind for step in steps(newer, WHOLE)]
    assert order.index(PartKind.PACKAGE) < order.index(PartKind.STACK)
    assert [step.kind for step in steps(newer, Found(None, ()))][:2] == [PartKind.STACK, PartKind.PACKAGE]
    theirs = wanted(Site(**{**SITE.model_dump(), "bucket": "mine"}), THERE)
    assert steps(theirs, Found(None, ()))[0].kind is PartKind.PACKAGE


def test_a_name_that_is_taken_is_refused() -> None:
    foreign = with_part(PartKind.TOKEN, is_ours=False)
    with pytest.raises(ForeignError, match="token /proteus/demo/ray-token: it exists and is not ours"):
        steps(WANTED, foreign)
    assert PartKind.TOKEN not in {part.kind for part in left(foreign, keep_data=False)}


def test_two_heads_are_refused_and_both_removed() -> None:
    second = Part(PartKind.HEAD, NAMES.head, "i-2")
    found = replace(WHOLE, parts=(*WHOLE.parts, second))
    with pytest.raises(ForeignError, match="head: found i-1 and i-2, expected one"):
        steps(WANTED, found)
    assert [step.kind for step in teardown(left(found, keep_data=False))] == [PartKind.HEAD] * 2


def test_a_bucket_that_an_earlier_stack_left_is_used_and_not_made() -> None:
    kept = Found(None, tuple(part for part in WHOLE.parts if part.kind is PartKind.BUCKET))
    assert "Bucket" not in template_for(WANTED, kept)["Resources"]
    assert "Bucket" in template_for(WANTED, WHOLE)["Resources"], "it is CloudFormation's"
    assert "Bucket" in template_for(WANTED, Found(None, ()))["Resources"]
    told = {(step.kind, step.name) for step in planned(WANTED, Found(None, ()))}
    assert {("bucket", NAMES.bucket), ("role", NAMES.head), ("queue", NAMES.plain)} <= told


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from([k for k in PartKind if k is not PartKind.PACKAGE]), st.booleans()),
        max_size=12,
    ),
    st.booleans(),
)
def test_what_costs_money_goes_first_and_the_rest_when_no_machine_is_left(
    parts: list[tuple[PartKind, bool]], keep_data: bool
) -> None:
    can_end = (PartKind.HEAD, PartKind.INSTANCE, PartKind.STACK)
    found = [
        Part(kind, f"{kind}-{number}", f"{number}", is_ending=ending and kind in can_end)
        for number, (kind, ending) in enumerate(parts)
    ]
    rounds = 0
    while rest := left(Found(None, tuple(found)), keep_data):
        going = teardown(rest)
        kinds = [PartKind(step.kind) for step in going]
        assert kinds == sorted(kinds, key=REMOVAL.index)
        if {PartKind.STACK, *DATA} & set(kinds):
            assert not any(each.kind in RUNNING for each in rest)
        removed = {step.part for step in going}
        found = [each for each in found if each not in removed and not each.is_ending]
        rounds += 1
        assert rounds < 10
    assert len(found) == sum(keep_data and kind in DATA for kind, _ in parts)


def test_names_fit_what_aws_allows() -> None:
    longest = Site(name="a" * 24, region="ap-southeast-2", zones=("x",), types=("t",))
    names = names_of(longest, "123456789012")
    assert len(names.bucket) <= 63 and len(names.head) <= 64 and len(names.plain) <= 80
    assert tags_of(SITE, "machine")["proteus:stack"] == "demo"
    assert tags_of(Site(**{**SITE.model_dump(), "tags": {"team": "ml"}}), "head")["team"] == "ml"


def test_a_change_of_the_config_changes_what_it_should() -> None:
    def differ(site: Site, there: Surroundings) -> set[str]:
        new = wanted(site, there)
        return {
            name for name in WANTED.template["Resources"] if resource(WANTED, name) != resource(new, name)
        }

    assert differ(Site(**{**SITE.model_dump(), "disk_gib": 100}), THERE) == {"NodeTemplate"}
    assert differ(SITE, replace(THERE, package="0")) == {"NodeTemplate", "HeadTemplate"}


# -- the template: user data and policies ---------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", [STACK, OPERATOR])
def test_cloudformation_would_take_the_templates(name: str, tmp_path: Path) -> None:
    """By the rules of AWS' own linter, and below the size that goes without a bucket."""
    from cfnlint.api import lint

    assert lint(text(name)) == []
    assert len(json.dumps(WANTED.template)) <= 51_200


def test_policies_are_those_of_the_golden_file() -> None:
    told = {
        "user": operator_policy(NAMES, own_bucket=True),
        "head": role_policy(NAMES, "HeadRole"),
        "node": role_policy(NAMES, "NodeRole"),
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


def test_a_bucket_of_the_users_own_is_neither_made_nor_removed() -> None:
    sids = {each["Sid"] for each in operator_policy(NAMES, own_bucket=False)["Statement"]}
    assert "MakeBucket" not in sids and "Objects" in sids


def test_china_has_other_names_for_the_same() -> None:
    china = names_of(Site(**{**SITE.model_dump(), "region": "cn-north-1"}), "1")
    policy = json.dumps(role_policy(china, "HeadRole"))
    assert "arn:aws-cn:iam::1:role/proteus-demo-node" in policy and "ec2.amazonaws.com.cn" in policy
    assert "arn:aws:" not in policy


def test_rights_are_bound_to_the_stack() -> None:
    """A role that may spend, end or write may do it in this stack alone."""
    head, node = (role_policy(NAMES, role)["Statement"] for role in ("HeadRole", "NodeRole"))
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


# -- checks and costs ---------------------------------------------------------------------------------------------


def facts(**changes: object) -> Facts:
    zones = ("us-east-1a", "us-east-1b")
    types = {
        name: TypeFact(vcpus, ("x86_64",), price, "a table", zones)
        for name, vcpus, price in (
            ("c5.xlarge", 4, 170_000),
            ("m5.xlarge", 4, 192_000),
            ("m5.large", 2, 96_000),
        )
    }
    plain = Facts(
        account="123456789012",
        identity="arn:aws:iam::123456789012:user/me",
        all_zones=zones,
        types=types,
        image="ami-0123456789abcdef0",
        image_architecture="x86_64",
        root_device="/dev/xvda",
        vpc="vpc-1",
        subnets=THERE.subnets,
        spot={("c5.xlarge", "us-east-1a"): 60_000, ("m5.xlarge", "us-east-1b"): 70_000},
        quotas={
            ("standard", "on-demand"): Quota("L-1216C47A", "on-demand", 64),
            ("standard", "spot"): Quota("L-34B43A08", "spot", 64),
        },
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


SCALE = Scale(1, 8, 3_000_000)


def wrong(site: Site = SITE, scale: Scale = SCALE, **changes: object) -> list[str]:
    return [check.text for check in checks(site, scale, facts(**changes)) if check.verdict is Verdict.WRONG]


def test_a_good_account_has_nothing_wrong() -> None:
    assert not wrong()
    assert all(c.verdict is Verdict.GOOD for c in checks(SITE, SCALE, facts()))


def test_what_is_wrong_is_one_sentence() -> None:
    zero = {("standard", "spot"): Quota("L-34B43A08", "spot", 0)}
    small = {("standard", "on-demand"): Quota("L-1216C47A", "on-demand", 5)}
    arm = facts().types | {"m5.xlarge": replace(facts().types["m5.xlarge"], architectures=("arm64",))}
    found = {
        "quota": wrong(quotas=zero),
        "reliable": wrong(quotas=small),
        "zone": wrong(Site(**{**SITE.model_dump(), "zones": ("us-east-1z",)})),
        "subnet": wrong(subnets={"us-east-1a": "subnet-a"}),
        "arm": wrong(types=arm),
        "price": wrong(
            types=facts().types | {"m5.large": replace(facts().types["m5.large"], on_demand=None)}
        ),
        "budget": wrong(scale=Scale(1, 8, 200_000)),
        "spot": wrong(spot={}),
    }
    assert "quota L-34B43A08 (spot): found 0 vCPUs, expected at least 4" in found["quota"][0]
    assert "found 5 vCPUs, expected at least 6 for the head and the reliable machines" in found["reliable"][0]
    assert "market.zones: found us-east-1z, expected us-east-1" in found["zone"][0]
    assert "market.subnets: found none for zone us-east-1b" in found["subnet"][0]
    assert "is built for x86_64, expected arm64 as m5.xlarge has" in found["arm"][0]
    assert "m5.large: found no on-demand price, expected one in market.on_demand" in found["price"][0]
    assert "market.budget_usd: found 0.200000, expected at least 0.28" in found["budget"][0]
    assert "spot prices: found none" in found["spot"][0]
    assert all("\n" not in text for texts in found.values() for text in texts)


def test_what_cannot_be_read_is_not_checked_and_goes_on() -> None:
    unread = {("standard", "spot"): Unread("no right")}
    told = list(checks(SITE, SCALE, facts(quotas=unread, spot=Unread("no right"), denied=Unread("none"))))
    assert [c.what for c in told if c.verdict is Verdict.UNREAD] == ["quotas", "prices", "rights"]
    assert not any(c.verdict is Verdict.WRONG for c in told)
    denied = list(checks(SITE, SCALE, facts(denied=("ec2:RunInstances",))))
    assert next(c.text for c in denied if c.verdict is Verdict.NOTE).startswith(
        "arn:aws:iam::123456789012:user/me may not"
    )


def test_costs_add_up() -> None:
    lines = costs(SITE, SCALE, facts())
    sure = sum(line.per_h or 0 for line in lines if line.is_sure)
    # The head, one c5.xlarge, two disks of 40 GiB for an hour of 730 a month, two addresses.
    assert sure == 96_000 + 170_000 + 2 * round(1e6 * 40 * 0.08 / 730) + 2 * 5_000
    assert lines[3].per_h == 7 * 60_000


@pytest.mark.parametrize(
    ("name", "group"),
    [("c5.xlarge", "standard"), ("m7i.large", "standard"), ("t3.micro", "standard"), ("g5.xlarge", "g"),
     ("p3.2xlarge", "p"), ("inf1.xlarge", "inf"), ("trn1.2xlarge", "trn"), ("vt1.3xlarge", "g")],
)  # fmt: skip
def test_families_of_quotas(name: str, group: str) -> None:
    assert family(name) == group


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "Demo"),
        ("name", "a"),
        ("zones", ()),
        ("types", ("a", "a")),
        ("image", "ubuntu"),
        ("tags", {"aws:x": "y"}),
    ],
)
def test_a_site_is_checked(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        Site(**{**SITE.model_dump(), key: value})
