"""A stack as data: steps, their order, policies, user data, checks and costs."""

from __future__ import annotations

import base64
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.aws.site import Site
from bidbrain.aws.stack.boot import Boot, Role, boot_text
from bidbrain.aws.stack.checks import Facts, Quota, Scale, TypeFact, Unread, Verdict, checks, costs, family
from bidbrain.aws.stack.policies import head_policy, node_policy, queue_policy
from bidbrain.aws.stack.up import (
    TEARDOWN,
    Action,
    ForeignError,
    Found,
    Ground,
    Kind,
    desired,
    names_of,
    steps,
    tags_of,
    teardown,
    template_content,
)
from bidbrain.aws.stack.user_policy import user_policy

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SITE = Site(
    name="demo", region="us-east-1", zones=("us-east-1a", "us-east-1b"), types=("c5.xlarge", "m5.xlarge")
)
GROUND = Ground(
    account="123456789012",
    image="ami-0123456789abcdef0",
    root_device="/dev/xvda",
    vpc="vpc-1",
    subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
    package="abcdef0123456789",
    group_id="sg-1",
    head_ip="10.0.0.5",
)
WANTED = desired(SITE, GROUND)


def whole(resource_index: int) -> Found:
    resource = WANTED[resource_index]
    return Found(resource.kind, resource.name, f"id-{resource_index}", resource.digest)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(st.sampled_from(["missing", "torn", "old", "whole"]), min_size=len(WANTED), max_size=len(WANTED))
)
def test_each_part_gets_the_step_that_its_state_asks_for(states: list[str]) -> None:
    found = []
    for index, state in enumerate(states):
        digest = {"torn": None, "old": "0", "whole": WANTED[index].digest, "missing": ""}[state]
        if state != "missing":
            found.append(replace(whole(index), digest=digest))
    planned = steps(WANTED, found)
    assert [(step.kind, step.name) for step in planned] == [(each.kind, each.name) for each in WANTED]
    action = {"missing": Action.MAKE, "torn": Action.FINISH, "old": Action.CHANGE, "whole": Action.KEEP}
    for step, state in zip(planned, states, strict=True):
        expected = Action.KEEP if (step.kind, state) == (Kind.HEAD, "old") else action[state]
        assert step.action is expected and step.reason


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ForeignError, match="role proteus-demo-node: it exists and is not ours"):
        steps(WANTED, [replace(whole(4), is_ours=False)])
    assert not teardown([replace(whole(4), is_ours=False)], keep_data=False)


def test_a_head_that_is_ending_is_no_head() -> None:
    (index,) = [i for i, each in enumerate(WANTED) if each.kind is Kind.HEAD]
    (step,) = steps([WANTED[index]], [replace(whole(index), is_ending=True)])
    assert step.action is Action.MAKE


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from([k for k in Kind if k is not Kind.PACKAGE]), st.booleans()),
        max_size=12,
    ),
    st.booleans(),
)
def test_what_costs_money_goes_first_and_the_group_when_nothing_is_in_it(
    parts: list[tuple[Kind, bool]], keep_data: bool
) -> None:
    found = [
        Found(kind, f"{kind}-{number}", f"{number}", is_ending=ending and kind in (Kind.HEAD, Kind.MACHINE))
        for number, (kind, ending) in enumerate(parts)
    ]
    gone: list[Kind] = []
    rounds = 0
    while left := [each for each in found if not keep_data or each.kind not in (Kind.OBJECTS, Kind.BUCKET)]:
        going = teardown(left, keep_data)
        kinds = [step.kind for step in going]
        assert kinds == sorted(kinds, key=TEARDOWN.index)
        if Kind.GROUP in kinds:
            assert not any(each.kind in (Kind.HEAD, Kind.MACHINE, Kind.FLEET) for each in left)
        gone += kinds
        removed = {step.found for step in going}
        found = [each for each in found if each not in removed and not each.is_ending]
        rounds += 1
        assert rounds < 10
    assert len(found) == sum(keep_data and kind in (Kind.OBJECTS, Kind.BUCKET) for kind, _ in parts)


def test_names_fit_what_aws_allows() -> None:
    longest = Site(name="a" * 24, region="ap-southeast-2", zones=("x",), types=("t",))
    names = names_of(longest, "123456789012")
    assert len(names.bucket) <= 63 and len(names.head) <= 64 and len(names.plain) <= 80
    assert tags_of(SITE, "machine")["proteus:stack"] == "demo"
    assert tags_of(Site(**{**SITE.model_dump(), "tags": {"team": "ml"}}), "head")["team"] == "ml"


def test_a_change_of_the_config_changes_what_it_should() -> None:
    bigger = Site(**{**SITE.model_dump(), "disk_gib": 100})
    changed = [
        new.kind for old, new in zip(WANTED, desired(bigger, GROUND), strict=True) if old.digest != new.digest
    ]
    assert changed == [Kind.TEMPLATE]
    newer = desired(SITE, replace(GROUND, package="0"))
    changed = [
        new.kind
        for old, new in zip(WANTED, newer, strict=True)
        if (old.name, old.digest) != (new.name, new.digest)
    ]
    assert changed == [Kind.PACKAGE, Kind.TEMPLATE, Kind.HEAD]


# -- user data and policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_user_data(role: Role) -> None:
    boot = Boot(role, "demo", "us-east-1", "s3://b/proteus/demo/package/abc", "abc", 300)
    text = boot_text(boot)
    golden = GOLDEN / f"aws_user_data_{role}.sh"
    assert text == golden.read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert text.index("shutdown -h +30") < text.index("pip install") < text.index("agileml.aws.boot")


def test_a_template_holds_no_secret_and_ends_with_its_machine() -> None:
    data = template_content(SITE, GROUND)
    text = base64.b64decode(data["UserData"]).decode()
    assert "ray-token" not in text and "TOKEN" not in text and "AWS_SECRET" not in text
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["SecurityGroupIds"] == ["sg-1"]
    assert data["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True


def test_policies_are_those_of_the_golden_file() -> None:
    names = names_of(SITE, "123456789012")
    told = {
        "user": user_policy(names, own_bucket=True),
        "head": head_policy(names),
        "node": node_policy(names),
        "queue": queue_policy(names),
    }
    assert json.dumps(told, indent=1) + "\n" == (GOLDEN / "aws_policies.json").read_text()
    for role in ("head", "node"):
        assert len(json.dumps(told[role], separators=(",", ":"))) <= 10_240  # IAM's limit of inline policies
    assert len(json.dumps(told["user"], separators=(",", ":"))) <= 6_144  # of a managed one


def test_rights_are_bound_to_the_stack() -> None:
    """Whoever may spend, end or write may do it in this stack alone."""
    names = names_of(SITE, "123456789012")
    free = set()
    for statement in [*head_policy(names)["Statement"], *node_policy(names)["Statement"]]:
        bound = "Condition" in statement or all("demo" in each for each in statement["Resource"])
        if not bound:
            free |= set(statement["Action"])
    reads = {action for action in free if action.startswith("ec2:Describe")}
    session = {
        action for action in free if action.startswith(("ssmmessages:", "ssm:UpdateInstanceInformation"))
    }
    # What a purchase uses beside the template, the instance and the group is free: those are bound themselves.
    assert free - reads - session == {"ec2:CreateFleet", "ec2:RunInstances"}
    node = {action for s in node_policy(names)["Statement"] for action in s["Action"]}
    assert not any(action.startswith(("ec2:", "iam:", "sqs:")) for action in node)


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
        subnets=GROUND.subnets,
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
