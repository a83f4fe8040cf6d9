"""The instances of a stack that run now, read from their own tags, and its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bidbrain.aws.answers import TAG_JOB, TAG_MARKET
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Clients, tag_map
from bidbrain.aws.site import Site
from bidbrain.aws.stack.find import find
from bidbrain.aws.stack.formation import Formation
from bidbrain.aws.stack.links import clients_of
from bidbrain.aws.stack.names import TAG_PART, TAG_STACK, names_of
from bidbrain.aws.stack.parts import Found, PartKind, name_in


@dataclass(frozen=True)
class Running:
    """An instance that runs. job: of the stack's jobs, "" for the head. launched_s: Unix time."""

    instance_id: str
    instance_type: str
    zone: str
    state: str
    is_head: bool
    is_spot: bool
    job: str
    market: str
    launched_s: int


def running(aws: Clients, site: Site, regions: Iterable[str]) -> tuple[Running, ...]:
    """Every instance of the stack in these regions that has not ended, the head first. Raises CloudError."""
    filters = [
        {"Name": f"tag:{TAG_STACK}", "Values": [site.name]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    found = []
    with errors("listing machines"):
        for region in regions:
            ec2 = clients_of(aws, site, region).client("ec2")
            for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
                for reservation in page["Reservations"]:
                    found += [_running(each) for each in reservation["Instances"]]
    return tuple(sorted(found, key=lambda each: (not each.is_head, each.launched_s, each.instance_id)))


def _running(instance: Mapping[str, Any]) -> Running:
    tags = tag_map(instance.get("Tags", ()))
    return Running(
        instance_id=instance["InstanceId"],
        instance_type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        state=instance["State"]["Name"],
        is_head=tags.get(TAG_PART) == "head",
        is_spot=instance.get("InstanceLifecycle") == "spot",
        job=tags.get(TAG_JOB, "").partition("/")[2],
        market=tags.get(TAG_MARKET, ""),
        launched_s=int(instance["LaunchTime"].timestamp()),
    )


@dataclass(frozen=True)
class ListedPart:
    """A part of a stack for people. is_whole: it was made to its end."""

    kind: str
    name: str
    is_whole: bool


def look(aws: Clients, site: Site, account: str) -> tuple[tuple[ListedPart, ...], tuple[Running, ...]]:
    """The parts of a stack, and its instances, also in a region that the config has lost. Raises CloudError."""
    found = find(aws, site, account)
    regions = dict.fromkeys((*site.all_regions, *(each.region for each in found.parts if each.region)))
    return _listed(aws, site, account, found), running(aws, site, regions)


def _listed(aws: Clients, site: Site, account: str, found: Found) -> tuple[ListedPart, ...]:
    """The parts of a stack without its instances and objects."""
    hidden = (PartKind.INSTANCE, PartKind.FLEET, PartKind.OBJECTS, PartKind.VOLUME)
    listed = [
        ListedPart(part.kind, part.name, part.is_current or part.kind is PartKind.HEAD)
        for part in found.parts
        if part.is_ours and part.kind not in hidden
    ]
    if found.stack is not None and found.stack.is_ours:
        with errors("the parts of the CloudFormation stack"):
            made = Formation(aws, names_of(site, account)).resources()
        seen = {(each.kind, each.name) for each in listed}
        listed += [ListedPart(kind, name, True) for name, kind in made if (kind, name) not in seen]
    for region, state in found.elsewhere.items():
        if state.is_ours:
            with errors(f"the parts of the CloudFormation stack in {region}"):
                there = replace(names_of(site, account), region=region)
                made = Formation(aws.at(region), there).resources()
            listed += [ListedPart(kind, name_in(name, region), True) for name, kind in made]
    return tuple(listed)


def hours(instance: Running, now: datetime | None = None) -> float:
    """Hours since its launch."""
    return max(0.0, ((now or datetime.now(UTC)).timestamp() - instance.launched_s) / 3600)


def still_tagged(aws: Clients, site: Site) -> tuple[str, ...] | None:
    """ARNs that AWS' tagging service lists for the stack, machines and fleets (which keep their tags for a while after
    their end) left out. None: it may not be asked. It lags: only EC2, S3 and so on themselves are the proof."""
    from bidbrain.live.cloud import CloudError

    found: list[str] = []
    try:
        with errors("the tagging service"):
            for region in site.all_regions:
                service = clients_of(aws, site, region).client("resourcegroupstaggingapi", 1)
                pages = service.get_paginator("get_resources").paginate(
                    TagFilters=[{"Key": TAG_STACK, "Values": [site.name]}]
                )
                found += [each["ResourceARN"] for page in pages for each in page["ResourceTagMappingList"]]
    except CloudError:
        return None
    gone = (":instance/", ":fleet/", ":volume/", ":spot-instances-request/", ":network-interface/")
    return tuple(arn for arn in found if not any(kind in arn for kind in gone))


def terminated(aws: Clients, site: Site) -> int:
    """Instances that have ended and are still listed (for about an hour)."""
    filters = [
        {"Name": f"tag:{TAG_STACK}", "Values": [site.name]},
        {"Name": "instance-state-name", "Values": ["terminated"]},
    ]
    with errors("listing machines"):
        return sum(
            len(each["Instances"])
            for region in site.all_regions
            for page in clients_of(aws, site, region)
            .client("ec2")
            .get_paginator("describe_instances")
            .paginate(Filters=filters)
            for each in page["Reservations"]
        )
