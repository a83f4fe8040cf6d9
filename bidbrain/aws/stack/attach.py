"""The stack from the inside: the settings that a service on the head needs to buy machines for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients, tag_map
from bidbrain.aws.ec2 import Place
from bidbrain.aws.notices import SqsNotices
from bidbrain.aws.objects import BucketObjects
from bidbrain.aws.site import Site
from bidbrain.aws.stack.names import TAG_PART, TAG_STACK, Names, names_of, tags_of
from bidbrain.aws.tagged import Tagged, tagged
from bidbrain.live.cloud import CloudError


@dataclass(frozen=True)
class Attached:
    """The arguments of `bidbrain.aws.ec2.Ec2` that a stack knows."""

    ec2: Any
    place: Place
    queue: SqsNotices


def attach(site: Site, job: str, aws: Clients | None = None) -> Attached:
    """Machines of this job are tagged with the stack's name and the job's: jobs of other stacks may be called the same.

    Raises CloudError where `proteus aws up` has not made the stack, or these credentials may not look.
    """
    aws = aws or Aws(site.region)
    name = Names(site.name, site.region).plain
    ec2, sqs = aws.client("ec2"), aws.client("sqs")
    with errors(f"the stack {site.name}"):
        found = ec2.describe_launch_templates(Filters=[{"Name": "launch-template-name", "Values": [name]}])
        templates = [t for t in found["LaunchTemplates"] if _is_ours(t, site)]
        groups = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [name]}])
        networks = [group["VpcId"] for group in groups["SecurityGroups"] if _is_ours(group, site)]
        if not templates or not networks:
            raise CloudError(
                f"market.name: found no stack {site.name} in {site.region}, expected one that `proteus aws up` made"
            )
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        subnets = dict(site.subnets) or _default_subnets(ec2, site, networks[0])
    newest = str(templates[0]["LatestVersionNumber"])
    tags = tags_of(site, "machine")
    place = Place(f"{site.name}/{job}", templates[0]["LaunchTemplateId"], newest, subnets, tags)
    return Attached(ec2, place, SqsNotices(sqs, url))


def risk_of(site: Site, aws: Clients | None = None) -> BucketObjects:
    """The observations of pools by the stack's jobs, in its bucket. Raises CloudError."""
    aws = aws or Aws(site.region)
    with errors(f"the stack {site.name}"):
        names = names_of(site, str(aws.client("sts").get_caller_identity()["Account"]))
    return BucketObjects(aws.client("s3"), names.bucket, f"{names.prefix}risk")


def left_behind(attached: Attached, stack: str, host: str) -> list[Tagged]:
    """Machines of the stack's other jobs, for the job that holds the lock of its head: no process drives them any more.

    Their watchdogs hear the one pulse of the head and take it for that of their own job. host: where the caller runs;
    a stack with its head elsewhere may have another job there, and has none left behind. Raises CloudError.
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
        for machine in tagged(attached.ec2)
        if machine.job.startswith(f"{stack}/")
        and machine.job != attached.place.job
        and machine.state != "shutting-down"
    ]


def _is_ours(resource: Any, site: Site) -> bool:
    return tag_map(resource.get("Tags", ())).get(TAG_STACK) == site.name


def _default_subnets(ec2: Any, site: Site, vpc: str) -> dict[str, str]:
    """One of the VPC's default subnets for each zone, in the order of the config."""
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "default-for-az", "Values": ["true"]}]
    found = ec2.describe_subnets(Filters=filters)["Subnets"]
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found}
    return {zone: subnets[zone] for zone in site.zones if zone in subnets}
