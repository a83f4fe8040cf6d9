"""The commands `proteus aws ...`: plan a config's stack, make it, look at it, remove it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.aws.wheel import Wheel, build_wheel
from agileml.config.job import JobConfig
from agileml.config.market import Ec2MarketConfig
from agileml.config.text import ConfigError
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.limits import Limits
from bidbrain.aws.site import Site
from bidbrain.aws.stack.checks import Check, Cost, Facts, Scale, Verdict, checks, costs
from bidbrain.aws.stack.down import Remover
from bidbrain.aws.stack.facts import check_region, read_facts
from bidbrain.aws.stack.find import find
from bidbrain.aws.stack.names import Names, names_of
from bidbrain.aws.stack.parts import Step, planned
from bidbrain.aws.stack.rights import role_check
from bidbrain.aws.stack.status import ListedPart, Running, look
from bidbrain.aws.stack.template import (
    RegionImage,
    Surroundings,
    Wanted,
    operator_policy,
    region_policy,
    regions_policy,
    role_policy,
    wanted,
)
from bidbrain.aws.stack.up import Builder, Head, Package
from bidbrain.money import micro_usd

DASHBOARD_PORT = 8265


@dataclass(frozen=True)
class StackPlan:
    """The report of `plan`."""

    facts: Facts
    checks: tuple[Check, ...]
    steps: tuple[Step, ...]
    costs: tuple[Cost, ...]
    policies: Mapping[str, Any]

    @property
    def wrong(self) -> Check | None:
        """The first thing that must be put right before anything is made."""
        return next((check for check in self.checks if check.verdict is Verdict.WRONG), None)

    def as_json(self) -> str:
        """The whole report, for programs."""
        return json.dumps(
            {
                "account": self.facts.account,
                "identity": self.facts.identity,
                "checks": [vars(check) for check in self.checks],
                "steps": [
                    {"action": step.action, "kind": step.kind, "name": step.name, "reason": step.reason}
                    for step in self.steps
                ],
                "costs_micro_usd_per_h": [vars(cost) for cost in self.costs],
                "policies": self.policies,
            },
            indent=2,
        )


def site_of(config: JobConfig) -> tuple[Site, Scale]:
    """The stack that a config names. Raises ConfigError unless its market is EC2."""
    market = config.market
    if not isinstance(market, Ec2MarketConfig):
        found = "no market" if market is None else market.kind
        raise ConfigError(f"found {found}, expected ec2", key=("market", "kind"))
    site = Site(**{name: getattr(market, name) for name in Site.model_fields})
    budget = None if market.budget_usd is None else micro_usd(market.budget_usd)
    at_deadline = 0 if market.deadline is None else math.ceil(market.cap * market.job_vcpus)
    return site, Scale(config.machines.reliable, config.machines.max, budget, at_deadline)


def limits_of(site: Site, scale: Scale) -> Limits:
    """The limits that the buyer enforces for the jobs of a stack."""
    assert scale.budget is not None, "a config with a cloud has a budget"
    stack = None if site.stack_budget_usd is None else micro_usd(site.stack_budget_usd)
    return Limits(site=site, machines=scale.most, job_micro_usd=scale.budget, stack_micro_usd=stack)


def policies_elsewhere(site: Site, names: Names, vpc: str, images: Mapping[str, str]) -> dict[str, Any]:
    """The policies for the other regions of a stack, by who has them. vpc: of the head; images: by region."""
    if not site.regions:
        return {}
    you = "the person who runs proteus aws, in the other regions"
    found = {you: regions_policy(names, tuple(site.regions), vpc)}
    for region, image in images.items():
        found[f"role {names.head} in {region}"] = region_policy(names, region, site.bought_types, image)
    return found


def connect(site: Site) -> Aws:
    """Clients for the site's region. Raises CloudError for a region that does not exist."""
    check_region(site.region)
    for region in site.regions:
        check_region(region, "market.regions")
    return Aws(site.region)


class Stack:
    """One config's stack. `sleep` waits for AWS."""

    def __init__(self, config: JobConfig, aws: Clients, sleep: Callable[[float], None] = time.sleep) -> None:
        self.site, self.scale = site_of(config)
        self._config = config
        self.aws, self._sleep = aws, sleep

    def look(self, wheel: Wheel) -> StackPlan:
        """Report what there is, what `up` would make and its cost; make nothing. Raises CloudError, ForeignError."""
        facts = read_facts(self.aws, self.site)
        found = find(self.aws, self.site, facts.account)
        checked = (
            *checks(self.site, self.scale, facts),
            *role_check(self.site, facts),
            *self._places(facts),
        )
        steps: tuple[Step, ...] = ()
        if not any(check.verdict is Verdict.WRONG for check in checked):
            steps = tuple(planned(self._wanted(facts, wheel), found))
        names = names_of(self.site, facts.account)
        policies = {
            "the person who runs proteus aws": operator_policy(names, self.site.bucket is None),
            f"role {names.head}": role_policy(names, "HeadRole", self.site.bought_types, facts.image),
            f"role {names.node}": role_policy(names, "NodeRole", self.site.bought_types, facts.image),
        }
        images = {region: there.image for region, there in facts.elsewhere.items()}
        policies |= policies_elsewhere(self.site, names, facts.vpc, images)
        return StackPlan(facts, checked, steps, costs(self.site, self.scale, facts), policies)

    def _places(self, facts: Facts) -> Iterator[Check]:
        """Machines may write and read below the stack's own prefix only."""
        names = names_of(self.site, facts.account)
        ours = f"s3://{names.bucket}/{names.prefix}"
        checkpoint = self._config.checkpoint
        outside = [path for path in _addresses(self._config.data) if not path.startswith(ours)]
        if checkpoint is not None and not f"{checkpoint.path}/".startswith(f"{ours}checkpoints/"):
            found = f"checkpoint.path: found {checkpoint.path}"
            text = f"{found}, expected {ours}checkpoints: no machine may write elsewhere"
            yield Check("places", Verdict.WRONG, text)
        elif outside:
            text = f"data.path: found {outside[0]}, expected an object below {ours}: no machine may read elsewhere"
            yield Check("places", Verdict.WRONG, text)
        else:
            yield Check("places", Verdict.GOOD, f"everything is below {ours}")

    def _wanted(self, facts: Facts, wheel: Wheel) -> Wanted:
        there = Surroundings(
            *(facts.account, facts.image, facts.root_device, facts.vpc, facts.subnets, wheel.digest),
            {name: RegionImage(each.image, each.root_device) for name, each in facts.elsewhere.items()},
            facts.head_gib,
        )
        return wanted(limits_of(self.site, self.scale), there)

    def up(self, report: StackPlan, wheel: Wheel, tell: Callable[[Step], None]) -> Head:
        """Make what is missing, and keep the cluster's token for this user. Raises CloudError, ForeignError."""
        package = Package(wheel.name, wheel.content, wheel.constraints)
        want = self._wanted(report.facts, wheel)
        head = Builder(self.aws, self.site, want, package, self._sleep).up(tell)
        self.keep_token(report.facts.account)
        return head

    def down(self, account: str, keep_data: bool) -> Remover:
        """The remover of this stack."""
        return Remover(self.aws, self.site, account, keep_data, self._sleep)

    def account(self) -> str:
        """The number of the account. Raises CloudError."""
        with errors("credentials"):
            return str(self.aws.client("sts").get_caller_identity()["Account"])

    def status(self) -> tuple[tuple[ListedPart, ...], tuple[Running, ...]]:
        """Its parts, without instances and objects, and its instances that run now. Raises CloudError."""
        return look(self.aws, self.site, self.account())

    # -- the token ----------------------------------------------------------------------------------------------

    @property
    def token_file(self) -> Path:
        """The file of mode 0600 with this user's copy of the cluster's token."""
        return Path.home() / ".proteus" / "aws" / f"{self.site.region}-{self.site.name}.token"

    def keep_token(self, account: str) -> None:
        """Write the cluster's token where only this user reads it. Raises CloudError."""
        name = names_of(self.site, account).token
        with errors(f"the token {name}"):
            answer = self.aws.client("ssm").get_parameter(Name=name, WithDecryption=True)
        self.token_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = self.token_file.with_suffix(".part")
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(answer["Parameter"]["Value"])
        written.replace(self.token_file)

    def forget_token(self) -> None:
        self.token_file.unlink(missing_ok=True)

    def how_to_reach(self, instance_id: str) -> str:
        """Commands for a laptop: the forwarded dashboard and job port, the token, a job."""
        ports = json.dumps({"portNumber": [str(DASHBOARD_PORT)], "localPortNumber": [str(DASHBOARD_PORT)]})
        return "\n".join(
            [
                f"aws ssm start-session --region {self.site.region} --target {instance_id} \\",
                f"    --document-name AWS-StartPortForwardingSession --parameters '{ports}'",
                f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={self.token_file}",
                f"proteus submit CONFIG --address http://127.0.0.1:{DASHBOARD_PORT}",
            ]
        )


__all__ = ["Stack", "StackPlan", "build_wheel", "connect", "site_of"]


def _addresses(data: Mapping[str, Any]) -> Iterator[str]:
    """The addresses in S3 that a section `data` names."""
    for key in ("path", "test"):
        found = data.get(key)
        for path in found if isinstance(found, list) else [found]:
            if isinstance(path, str) and path.startswith("s3://"):
                yield path
