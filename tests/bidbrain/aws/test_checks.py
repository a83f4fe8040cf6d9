"""What is looked at before a stack is made, and what it will cost."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import (
    TABLE,
    Facts,
    Quota,
    Scale,
    TypeFact,
    Unread,
    Verdict,
    checks,
    costs,
    family,
)
from bidbrain.aws.stack.rights import role_check
from bidbrain.aws.stack.template import resource, wanted
from tests.bidbrain.aws.demo_stack import LIMITS, SITE, THERE


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


def test_an_image_must_fit_on_the_disks() -> None:
    """EC2 refuses a machine whose disk is smaller than that of its image; the head's disk follows the image."""
    assert wrong(image_gib=75) == [
        "market.disk_gib: found 40, expected at least 75, as ami-0123456789abcdef0 has"
    ]
    large = SITE.model_copy(update={"disk_gib": 100})
    assert not wrong(large, image_gib=75)
    assert facts(image_gib=75).head_gib == 75 and facts(image_gib=8).head_gib == 40
    want = wanted(LIMITS.model_copy(update={"site": large}), replace(THERE, head_gib=75))
    sizes = {
        name: resource(want, name)["LaunchTemplateData"]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
        for name in ("HeadTemplate", "NodeTemplate")
    }
    assert sizes == {"HeadTemplate": "75", "NodeTemplate": "100"}


def test_a_job_counts_with_what_aws_bills() -> None:
    """The package's table is that of us-east-1; the reliable machines of Sao Paulo cost half as much again."""
    types = dict(facts().types)
    zones, listed = types["c5.xlarge"].zones, "AWS's price list"
    dear = types | {"c5.xlarge": TypeFact(4, ("x86_64",), 262_000, listed, zones)}
    there = SITE.model_copy(update={"region": "sa-east-1"})
    assert wrong(there, types=dear) == [
        "machine type c5.xlarge: jobs count with 0.170000 $ per hour on demand, as in us-east-1, expected 0.262000 $ "
        "as AWS's price list says: set market.on_demand"
    ]
    assert not wrong(there.model_copy(update={"on_demand": {"c5.xlarge": 0.262}}), types=dear)
    spot = there.model_copy(update={"reliable_type": "m5.xlarge"})
    told = [c for c in checks(spot, SCALE, facts(types=dear)) if "jobs count with" in c.text]
    assert [each.verdict for each in told] == [Verdict.NOTE], "spot machines cost what the market says"
    cheap = types | {"c5.xlarge": TypeFact(4, ("x86_64",), 150_000, listed, zones)}
    assert not wrong(types=cheap)
    table = types | {"c5.xlarge": TypeFact(4, ("x86_64",), 170_000, TABLE, zones)}
    told = [c for c in checks(there, SCALE, facts(types=table)) if "could not be read" in c.text]
    assert [each.verdict for each in told] == [Verdict.NOTE]
    new = SITE.model_copy(update={"types": ("c99.xlarge",), "reliable_type": "m5.xlarge"})
    known = types | {"c99.xlarge": TypeFact(4, ("x86_64",), 200_000, listed, zones)}
    prices = {("c99.xlarge", "us-east-1a"): 60_000}
    (said,) = wrong(new, types=known, spot=prices)
    assert "expected its dollars per hour in market.on_demand and its vCPUs (4) in market.vcpus" in said
    both = new.model_copy(update={"on_demand": {"c99.xlarge": 0.2}, "vcpus": {"c99.xlarge": 4}})
    assert not wrong(both, types=known, spot=prices)


def test_a_quota_that_a_deadline_may_need_is_noted() -> None:
    there = {("standard", "on-demand"): Quota("L-1216C47A", "on-demand", 37)}
    scale = replace(SCALE, deadline_vcpus=31)
    (note,) = [c for c in checks(SITE, scale, facts(quotas=there)) if c.verdict is not Verdict.GOOD]
    assert note.verdict is Verdict.NOTE
    # 2 of the head, 4 and whole machines of 4.
    assert "37 vCPUs, the most that this job may use is 38" in note.text
    assert all(c.verdict is Verdict.GOOD for c in checks(SITE, SCALE, facts(quotas=there)))


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
    assert (
        "m5.large: found no on-demand price (a table), expected one in market.on_demand" in found["price"][0]
    )
    assert "market.budget_usd: found 0.200000, expected at least 0.28" in found["budget"][0]
    assert "spot prices: found none" in found["spot"][0]
    assert all("\n" not in text for texts in found.values() for text in texts)


def test_a_budget_of_all_jobs_below_that_of_one_is_said_before_the_head_costs_money() -> None:
    """Every job would be refused, as if earlier ones had spent the rest."""
    told = [wrong(SITE.model_copy(update={"stack_budget_usd": usd})) for usd in (2.99, 3.0, None)]
    assert told == [
        [
            "market.stack_budget_usd: found 2.990000, expected at least 3.000000, market.budget_usd: the stack takes "
            "no job that may cost more than all of its jobs together"
        ],
        [],
        [],
    ]


def test_the_reliable_machines_and_the_head_need_an_offer_in_the_first_zone() -> None:
    """Also where their type is one of the spot machines', which may lack it there: EC2 sells neither elsewhere."""
    first, second = SITE.zones
    for name, site in (
        ("c5.xlarge", SITE),
        ("m5.xlarge", SITE.model_copy(update={"head_type": "m5.xlarge"})),
    ):
        there = facts().types
        lacks = {zone: there | {name: replace(there[name], zones=(zone,))} for zone in (first, second)}
        assert wrong(site, types=lacks[second]) == [
            f"machine type {name}: found no offer in {first}, where the head and the reliable machines go"
        ]
        told = [c.text for c in checks(site, SCALE, facts(types=lacks[first])) if c.verdict is Verdict.NOTE]
        assert told == [f"{name} is not offered in {second}"]
    large = facts().types
    assert not wrong(types=large | {"m5.large": replace(large["m5.large"], zones=(first,))})


def test_a_role_with_more_policy_than_iam_takes_is_said_before_anything_is_made() -> None:
    """`up` would make the stacks of some regions, and fail with the next one's."""
    types = tuple(
        f"m{size}.{kind}xlarge"
        for size in ("5", "5d", "5dn", "6i", "7i")
        for kind in ("", "2", "4", "8", "12", "16", "24")
    )
    images = dict.fromkeys(("us-west-2", "eu-west-1", "us-east-2"), facts())
    for count, elsewhere, is_wrong in ((35, {}, False), (6, images, False), (35, images, True)):
        site = SITE.model_copy(update={"types": types[:count]})
        told = [check.text for check in role_check(site, facts(elsewhere=elsewhere))]
        assert bool(told) is is_wrong
    assert re.fullmatch(
        r"market\.types: found 35 with 3 other regions, expected fewer: the role proteus-demo-head would have "
        r"1\d{4} characters of policies, and IAM takes 10240",
        told[0],
    )


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


def test_what_spot_machines_cost_is_no_sum_of_the_cheapest_alone() -> None:
    """A policy buys dearer ones, too: for their size, their risk, or because others are full."""
    line = costs(SITE, SCALE, facts())[3]
    assert line.what == "up to 7 x c5.xlarge in us-east-1a, spot"
    assert line.basis == "price of now, the cheapest; 0.4900 of m5.xlarge in us-east-1b, the dearest"
    (alone,) = (
        each
        for each in costs(SITE, SCALE, facts(spot={("c5.xlarge", "us-east-1a"): 60_000}))
        if each.what == line.what
    )
    assert alone.basis == "price of now"


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
