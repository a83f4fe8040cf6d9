"""The stack from the inside: the settings that a service on the head needs to buy machines for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bidbrain.aws.calls import ATTEMPTS, errors
from bidbrain.aws.clients import Aws, Clients, tag_map
from bidbrain.aws.ec2 import Place
from bidbrain.aws.notices import SqsNotices
from bidbrain.aws.objects import BucketObjects
from bidbrain.aws.site import Site
from bidbrain.aws.stack.names import TAG_PART, TAG_STACK, Names, names_of, tags_of
from bidbrain.aws.tagged import Tagged, tagged
from bidbrain.live.cloud import CloudError

ATTEMPTS_ELSEWHERE = 3  # at another region: the home region waits meanwhile


@dataclass(frozen=True)
class Attached:
    """The arguments of `bidbrain.aws.ec2.Ec2` that a stack knows. elsewhere: EC2's clients of its other regions."""

    ec2: Any
    place: Place
    queue: SqsNotices
    look_again: Callable[[], Place]
    elsewhere: Mapping[str, Any] = field(default_factory=dict)


def attach(site: Site, job: str, aws: Clients | None = None, region: str | None = None) -> Attached:
    """Machines of this job are tagged with the stack's name and the job's: jobs of other stacks may be called the same.

    region: another one of the stack, None: its home. aws: of the home region. Raises CloudError where `proteus aws up`
    has not made the stack, or these credentials may not look.
    """
    aws = aws or Aws(site.region)
    elsewhere = {name: aws.at(name).client("ec2", ATTEMPTS_ELSEWHERE) for name in site.regions}
    if region is not None:
        aws, elsewhere = aws.at(region), {}
    attempts = ATTEMPTS if region is None else ATTEMPTS_ELSEWHERE
    ec2 = aws.client("ec2", attempts)
    look = partial(_place, site, f"{site.name}/{job}", ec2, region)
    return Attached(ec2, look(), _queue(site, aws.client("sqs", attempts)), look, elsewhere)


def _queue(site: Site, sqs: Any) -> SqsNotices:
    with errors(f"the stack {site.name}"):
        url = sqs.get_queue_url(QueueName=Names(site.name, site.region).plain)["QueueUrl"]
    return SqsNotices(sqs, url)


def _place(site: Site, job: str, ec2: Any, region: str | None) -> Place:
    """The stack's template and subnets in its home region (None) or another one. Raises CloudError."""
    name = Names(site.name, site.region).plain
    with errors(f"the stack {site.name}"):
        found = ec2.describe_launch_templates(Filters=[{"Name": "launch-template-name", "Values": [name]}])
        templates = [t for t in found["LaunchTemplates"] if _is_ours(t, site)]
        groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])
        networks = [group["VpcId"] for group in groups["SecurityGroups"] if _is_ours(group, site)]
        if not templates or not networks:
            key = "market.name" if region is None else "market.regions"
            raise CloudError(
                f"{key}: found no stack {site.name} in {region or site.region}, expected one that `proteus aws up` made"
            )
        if region is None:
            named = site.subnets or default_subnets(ec2, site, networks[0])
            subnets = {zone: named[zone] for zone in site.zones if zone in named}  # the first zone goes first
        else:
            subnets = _own_subnets(ec2, networks[0], site.zones_in(region))
    newest = str(templates[0]["LatestVersionNumber"])
    return Place(job, templates[0]["LaunchTemplateId"], newest, subnets, tags_of(site, "machine"))


def risk_of(site: Site, aws: Clients | None = None) -> BucketObjects:
    """The observations of pools by the stack's jobs, in its bucket. Raises CloudError."""
    aws = aws or Aws(site.region)
    with errors(f"the stack {site.name}"):
        names = names_of(site, str(aws.client("sts").get_caller_identity()["Account"]))
    return BucketObjects(aws.client("s3"), names.bucket, f"{names.prefix}risk")


def left_behind(attached: Attached, stack: str, host: str, region: str | None = None) -> list[Tagged]:
    """Machines of the stack's other jobs, for the job that holds the lock of its head: no process drives them any more.

    Their watchdogs hear the one pulse of the head and take it for that of their own job. host: where the caller runs;
    a stack with its head elsewhere may have another job there, and has none left behind. region: of the machines,
    None: the home region. Raises CloudError.
    """
    filters = [
        {"Name": f"tag:{TAG_STACK}", "Values": [stack]},
        {"Name": f"tag:{TAG_PART}", "Values": ["head"]},
    ]
    with errors(f"the stack {stack}"):
        found = attached.ec2.describe_instances(Filters=filters)
    heads = [each.get("PrivateIpAddress") for r in found["Reservations"] for each in r["Instances"]]
    if host not in heads:
        return []
    return [
        machine
        for machine in tagged(attached.ec2 if region is None else attached.elsewhere[region])
        if machine.job.startswith(f"{stack}/")
        and machine.job != attached.place.job
        and machine.state != "shutting-down"
    ]


def _is_ours(resource: Any, site: Site) -> bool:
    return tag_map(resource.get("Tags", ())).get(TAG_STACK) == site.name


def default_subnets(ec2: Any, site: Site, vpc: str) -> dict[str, str]:
    """One of the VPC's default subnets for each zone, in the order of the config."""
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "default-for-az", "Values": ["true"]}]
    found = ec2.describe_subnets(Filters=filters)["Subnets"]
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found}
    return {zone: subnets[zone] for zone in site.zones if zone in subnets}


def _own_subnets(ec2: Any, vpc: str, zones: Sequence[str]) -> dict[str, str]:
    """The subnet that the stack made in each zone of another region."""
    found = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found}
    return {zone: subnets[zone] for zone in zones if zone in subnets}
