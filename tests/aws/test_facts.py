"""Facts that moto does not know: price list, quotas, IAM's simulator; stand-ins of those services' own answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bidbrain.aws.calls import ATTEMPTS
from bidbrain.aws.clients import Aws
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Quota, Scale, Unread, Verdict, checks
from bidbrain.aws.stack.facts import check_region, read_facts
from bidbrain.live.cloud import CloudError
from tests.aws.layer import failure
from tests.aws.stack_rig import plain_aws

pytestmark = pytest.mark.aws


class Account:
    """moto, but for three services."""

    def __init__(self, url: str, **services: Any) -> None:
        self._aws, self._services = plain_aws(url), services

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        return self._services.get(service.replace("-", "_")) or self._aws.client(service, attempts)

    def at(self, region: str) -> Aws:
        return self._aws.at(region)


class PriceList:
    def __init__(self, currency: str = "USD") -> None:
        self._currency = currency

    def get_products(self, **request: Any) -> dict[str, Any]:
        wanted = {each["Field"]: each["Value"] for each in request["Filters"]}
        assert wanted["regionCode"] == "us-east-1" and wanted["operatingSystem"] == "Linux"
        if wanted["instanceType"] != "c5.xlarge":
            return {"PriceList": []}
        dimension = {"pricePerUnit": {self._currency: "0.1700000000"}, "unit": "Hrs"}
        terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}}
        return {"PriceList": [json.dumps({"product": {}, "terms": terms})]}


class Quotas:
    def get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
        if QuotaCode == "L-34B43A08":
            raise failure("AccessDeniedException", "no", "GetServiceQuota", 400)
        return {"Quota": {"QuotaName": "Running On-Demand Standard instances", "Value": 32.0}}


class Simulator:
    """Allows everything but to make roles, and roles' actions on roles only. boundary: of the roles."""

    def __init__(self, boundary: str | None = None) -> None:
        self._of_roles = {"iam:PermissionsBoundary": [boundary]} if boundary else {}

    def get_paginator(self, name: str) -> Simulator:
        assert name == "simulate_principal_policy"
        return self

    def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
        assert request["PolicySourceArn"] == "arn:aws:sts::123456789012:user/moto"
        assert not any("*" in arn for arn in request.get("ResourceArns", ()))
        facts = {fact["ContextKeyName"]: fact["ContextKeyValues"] for fact in request["ContextEntries"]}
        if "iam:CreateRole" in request["ActionNames"]:
            assert facts == self._of_roles
        found = []
        for action in request["ActionNames"]:
            for arn in request.get("ResourceArns", ["*"]):
                right = action != "iam:CreateRole" and ("Profile" in action or "instance-profile" not in arn)
                decision = "allowed" if right else "implicitDeny"
                found.append({"EvalActionName": action, "EvalDecision": decision, "EvalResourceName": arn})
        yield {"EvaluationResults": found[:5]}
        yield {"EvaluationResults": found[5:]}


SITE = Site(
    name="facts",
    region="us-east-1",
    zones=("us-east-1a",),
    types=("c5.xlarge", "m5.xlarge"),
    on_demand={"m5.xlarge": 0.5},
)


def test_who_says_what_a_type_costs(moto_url: str) -> None:
    facts = read_facts(Account(moto_url, pricing=PriceList(), service_quotas=Quotas(), iam=Simulator()), SITE)
    told = {name: (fact.on_demand, fact.source) for name, fact in facts.types.items()}
    assert told == {
        "c5.xlarge": (170_000, "AWS's price list"),
        "m5.xlarge": (500_000, "the config"),
        "m5.large": (96_000, "the package's table (us-east-1)"),
    }
    on_demand, spot = facts.quotas[("standard", "on-demand")], facts.quotas[("standard", "spot")]
    assert on_demand == Quota("L-1216C47A", "Running On-Demand Standard instances", 32.0)
    assert isinstance(spot, Unread) and "AccessDenied" in spot.why
    assert facts.denied == ("iam:CreateRole",)
    assert not isinstance(facts.spot, Unread) and ("c5.xlarge", "us-east-1a") in facts.spot
    assert facts.types["c5.xlarge"].zones == ("us-east-1a",)
    assert facts.image_gib == 15, "of the image's root device, as moto has it"


def test_who_may_make_roles_only_within_the_boundary_is_told_to_set_it(moto_url: str) -> None:
    """IAM is asked about the roles as they would be made: without the key they have no boundary."""
    boundary = "arn:aws:iam::123456789012:policy/proteus-facts-boundary"
    sites = {None: SITE, boundary: SITE.model_copy(update={"boundary": boundary})}
    for set_, site in sites.items():
        account = Account(moto_url, pricing=PriceList(), service_quotas=Quotas(), iam=Simulator(set_))
        facts = read_facts(account, site)
        (said,) = [c.text for c in checks(site, Scale(1, 8, 3_000_000), facts) if c.what == "rights"]
        ending = "the policy below allows it" + ("" if set_ else f" with market.boundary: {boundary}")
        assert "may not do iam:CreateRole" in said and said.endswith(ending)


def test_a_price_list_in_another_currency_is_said_and_no_dollars_are_made_up(moto_url: str) -> None:
    facts = read_facts(
        Account(moto_url, pricing=PriceList("CNY"), service_quotas=Quotas(), iam=Simulator()), SITE
    )
    assert facts.types["c5.xlarge"].on_demand is None
    (said,) = [
        check.text
        for check in checks(SITE, Scale(1, 8, 3_000_000), facts)
        if check.verdict is Verdict.WRONG and check.what == "prices"
    ]
    assert said == (
        "machine type c5.xlarge: found no on-demand price (AWS's price list, which has CNY, not USD), "
        "expected one in market.on_demand"
    )
    assert facts.types["m5.xlarge"].on_demand == 500_000, "what the config says goes first"


def test_a_deprecated_image_is_judged_as_any_other(moto_url: str) -> None:
    """EC2 lists it only for those who ask for deprecated ones; its root device and disk need not be Amazon Linux's."""
    aws = Aws(SITE.region, moto_url)
    asked: list[bool] = []

    def ask(params: dict[str, Any], **_: Any) -> None:
        asked.append(params["body"].get("IncludeDeprecated") == "true")

    def answer(parsed: dict[str, Any], **_: Any) -> None:
        if not asked[-1]:
            parsed["Images"] = []

    events = aws.client("ec2").meta.events
    events.register("before-call.ec2.DescribeImages", ask)
    events.register("after-call.ec2.DescribeImages", answer)
    facts = read_facts(aws, SITE)
    assert facts.image_architecture == "x86_64" and facts.image_gib == 15


def test_subnets_that_do_not_fit(moto_url: str) -> None:
    subnets = plain_aws(moto_url).client("ec2").describe_subnets()["Subnets"]
    elsewhere = next(s["SubnetId"] for s in subnets if s["AvailabilityZone"] == "us-east-1b")
    site = Site(**{**SITE.model_dump(), "subnets": {"us-east-1a": elsewhere}})
    with pytest.raises(
        CloudError, match=r"market\.subnets: subnet-\w+ is in zone us-east-1b, expected us-east-1a"
    ):
        read_facts(plain_aws(moto_url), site)


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1"])
def test_regions_of_all_partitions_are_known(region: str) -> None:
    check_region(region)
