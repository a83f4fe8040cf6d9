"""Which parts of a stack there are: found by their names and tags, each time anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Clients, code_of, tag_map
from bidbrain.aws.limits import Limits, LimitsError
from bidbrain.aws.site import Site
from bidbrain.aws.stack.formation import Formation, StackError
from bidbrain.aws.stack.links import peerings
from bidbrain.aws.stack.names import TAG_PART, TAG_STACK, Names, names_of
from bidbrain.aws.stack.parts import Found, Part, PartKind, StackState, name_in

STOPPED = ("stopping", "stopped")
ALIVE = ["pending", "running", *STOPPED, "shutting-down"]
MISSING = {
    "404",
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidVolume.NotFound",  # a disk is listed for a moment longer than its machine
    "InvalidVpcPeeringConnectionID.NotFound",
    "NoSuchBucket",
    "ParameterNotFound",
}


@contextmanager
def unless_missing() -> Iterator[None]:
    """Go on where AWS does not know the part that was asked for."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        if code_of(error) not in MISSING:
            raise


def find(aws: Clients, site: Site, account: str) -> Found:
    """Every part of the stack that there is. Raises CloudError."""
    names = names_of(site, account)
    with errors(f"looking for what the stack {site.name} has"):
        stack = Formation(aws, names).read()
    parts: list[Part] = []
    if stack is not None:
        ending = stack.status == "DELETE_IN_PROGRESS"
        parts.append(Part(PartKind.STACK, names.plain, stack.stack_id, stack.is_ours, stack.is_whole, ending))
    for look in (_objects if site.bucket else _own_bucket, _parameters, _instances):
        with errors(f"looking for what the stack {site.name} has"):
            parts += look(aws, names)
    regions = _regions(site, parts)
    elsewhere: dict[str, StackState] = {}
    for region in regions[1:]:
        there = aws.at(region)
        with errors(f"looking for what the stack {site.name} has in {region}"):
            state = Formation(there, replace(names, region=region)).read()
            if state is not None:
                elsewhere[region] = state
                ending, name = state.status == "DELETE_IN_PROGRESS", name_in(names.plain, region)
                what = (PartKind.REGION, name, state.stack_id, state.is_ours, state.is_whole, ending)
                parts.append(Part(*what, region=region))
            parts += [replace(each, region=region) for each in _instances(there, names)]
    if len(regions) > 1:
        with errors(f"looking for the peerings of the stack {site.name}"):
            parts += peerings(aws, site, regions)
    return Found(stack, tuple(parts), elsewhere)


def _regions(site: Site, parts: Iterable[Part]) -> tuple[str, ...]:
    """The home region, the others of the config, and those that the last `up` wrote into the stack's limits."""
    found = list(site.all_regions)
    for part in parts:
        if part.kind is PartKind.LIMITS:
            try:
                found += Limits.parsed(part.value, part.name).site.regions
            except LimitsError:
                continue  # of another version; `up` writes them anew
    return tuple(dict.fromkeys(found))


def _own_bucket(aws: Clients, names: Names) -> Iterator[Part]:
    """The bucket that the stack makes, and its objects.

    Anybody can guess its name, and make one of that name in an account of theirs, open to all and with our tag: the
    stack's machines would install what they put into it. Such a one is not ours, nor what it has.
    """
    s3, of_bucket = aws.client("s3"), {"Bucket": names.bucket}
    with unless_missing():
        is_mine, tags = True, _tags(s3, **of_bucket, ExpectedBucketOwner=names.account)
        if tags is None:
            is_mine, tags = False, _tags(s3, **of_bucket)
        if tags is None:
            raise StackError(
                f"bucket {names.bucket}: you may not read its tags (s3:GetBucketTagging), or another account has a "
                "bucket of that name: then take another market.name"
            )
        yield Part(
            PartKind.BUCKET, names.bucket, names.bucket, is_mine and tags.get(TAG_STACK) == names.stack
        )
        if is_mine:
            yield from _objects(aws, names)


def _tags(s3: Any, **bucket: str) -> dict[str, str] | None:
    """The tags of a bucket; None: they may not be read, or it is not of the account that is expected."""
    from botocore.exceptions import ClientError

    try:
        return tag_map(s3.get_bucket_tagging(**bucket)["TagSet"])
    except ClientError as error:
        if code_of(error) == "AccessDenied":
            return None
        if code_of(error) != "NoSuchTagSet":
            raise
        return {}


def _objects(aws: Clients, names: Names) -> Iterator[Part]:
    """Packages by folder (whole when the constraints are there, the last of it), the buyer's limits, and that there are
    objects at all."""
    packages: dict[str, bool] = {}
    count, has_limits = 0, False
    with unless_missing():
        pages = aws.client("s3").get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=names.bucket, Prefix=names.prefix):
            for entry in page.get("Contents", ()):
                count += 1
                has_limits = has_limits or entry["Key"] == names.limits
                folder, _, rest = entry["Key"].removeprefix(f"{names.prefix}package/").partition("/")
                if entry["Key"].startswith(f"{names.prefix}package/"):
                    packages[folder] = packages.get(folder, False) or rest == "constraints.txt"
    for folder, whole in packages.items():
        name = f"{names.prefix}package/{folder}"
        yield Part(PartKind.PACKAGE, name, name, is_current=whole)
    if has_limits:
        body = aws.client("s3").get_object(Bucket=names.bucket, Key=names.limits)["Body"].read()
        yield Part(PartKind.LIMITS, names.limits, names.limits, value=body.decode(errors="replace"))
    if count:
        yield Part(PartKind.OBJECTS, f"s3://{names.bucket}/{names.prefix}", names.prefix, value=str(count))


def _parameters(aws: Clients, names: Names) -> Iterator[Part]:
    ssm = aws.client("ssm")
    kinds = {
        PartKind.TOKEN: names.token,
        PartKind.AUTHORITY: names.authority,
        PartKind.ADDRESS: names.address,
    }
    what = [{"Key": "Name", "Values": list(kinds.values())}]
    pages = ssm.get_paginator("describe_parameters").paginate(ParameterFilters=what)
    there = {each["Name"] for page in pages for each in page["Parameters"]}
    for kind, name in kinds.items():
        if name not in there:
            continue
        with unless_missing():
            tags = tag_map(ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"])
            is_address = kind is PartKind.ADDRESS
            value = str(ssm.get_parameter(Name=name)["Parameter"]["Value"]) if is_address else ""
            yield Part(kind, name, name, tags.get(TAG_STACK) == names.stack, value=value)


def _instances(aws: Clients, names: Names) -> Iterator[Part]:
    ec2 = aws.client("ec2")
    by_tag = [{"Name": f"tag:{TAG_STACK}", "Values": [names.stack]}]
    template = launch_template(ec2, names.head)
    newest = None if template is None else template[1]
    for page in ec2.get_paginator("describe_instances").paginate(
        Filters=[*by_tag, {"Name": "instance-state-name", "Values": ALIVE}]
    ):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                yield _instance(instance, names, newest)
    yield from _fleets(ec2, names)
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=by_tag):
        for volume in page["Volumes"]:
            if volume["State"] == "available":  # attached ones go with their instances
                yield Part(PartKind.VOLUME, volume["VolumeId"], volume["VolumeId"])


def _instance(instance: Mapping[str, Any], names: Names, newest: str | None) -> Part:
    tags, instance_id = tag_map(instance.get("Tags", ())), instance["InstanceId"]
    state = instance["State"]["Name"]
    ending = state == "shutting-down"
    if tags.get(TAG_PART) != "head":
        return Part(PartKind.INSTANCE, instance_id, instance_id, is_ending=ending)
    current = tags.get("aws:ec2launchtemplate:version") == newest
    address = instance.get("PrivateIpAddress", "")
    return Part(
        PartKind.HEAD,
        names.head,
        instance_id,
        is_current=current,
        is_ending=ending,
        is_stopped=state in STOPPED,
        value=address,
    )


def launch_template(ec2: Any, name: str) -> tuple[str, str] | None:
    """(id, newest version) of a launch template; None where there is none."""
    with unless_missing():
        what = [{"Name": "launch-template-name", "Values": [name]}]
        for template in ec2.describe_launch_templates(Filters=what)["LaunchTemplates"]:
            return template["LaunchTemplateId"], str(template["LatestVersionNumber"])
    return None


def _fleets(ec2: Any, names: Names) -> Iterator[Part]:
    """Instant fleets are listed by id only; their tags tell the ids."""
    filters = [
        {"Name": "resource-type", "Values": ["fleet"]},
        {"Name": "key", "Values": [TAG_STACK]},
        {"Name": "value", "Values": [names.stack]},
    ]
    pages = ec2.get_paginator("describe_tags").paginate(Filters=filters)
    ids = [tag["ResourceId"] for page in pages for tag in page["Tags"]]
    for start in range(0, len(ids), 100):
        for fleet in _described(ec2, ids[start : start + 100]):
            if not fleet["FleetState"].startswith("deleted"):
                yield Part(PartKind.FLEET, fleet["FleetId"], fleet["FleetId"])


def _described(ec2: Any, ids: list[str]) -> list[dict[str, Any]]:
    """Fleets by id; the tag of one may outlive it, and EC2 answers to none of several where one is unknown."""
    from botocore.exceptions import ClientError

    try:
        return list(ec2.describe_fleets(FleetIds=ids)["Fleets"])
    except ClientError as error:
        if not code_of(error).startswith("InvalidFleetId"):
            raise
    return [] if len(ids) == 1 else [fleet for each in ids for fleet in _described(ec2, [each])]
