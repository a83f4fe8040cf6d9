"""Which parts of a stack there are: found by their names and tags, each time anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from bidbrain.aws.calls import ATTEMPTS, client, errors
from bidbrain.aws.site import Site
from bidbrain.aws.stack.policies import Names
from bidbrain.aws.stack.up import TAG_DIGEST, TAG_PART, TAG_STACK, Found, Kind, names_of
from bidbrain.aws.template import digest_of
from bidbrain.live.cloud import CloudError

WHOLE = digest_of({})
NO_RETRY = 1  # attempts at what one often may not ask, or a stand-in does not know
ALIVE = ["pending", "running", "stopping", "stopped", "shutting-down"]
MISSING = {
    "404",
    "InvalidGroup.NotFound",
    "InvalidLaunchTemplateName.NotFoundException",
    "NoSuchBucket",
    "NoSuchEntity",
    "NonExistentQueue",
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "ParameterNotFound",
    "ResourceNotFoundException",
}


class Clients(Protocol):
    """boto3 clients by the name of their service."""

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any: ...


class Aws:
    """Clients of one region, each made once. Raises CredentialsError where there are no credentials."""

    def __init__(self, region: str, endpoint: str | None = None) -> None:
        self._region, self._endpoint = region, endpoint
        self._made: dict[tuple[str, int], Any] = {}

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        key = (service, attempts)
        if key not in self._made:
            # The price list is served from one region for all.
            region = "us-east-1" if service == "pricing" else self._region
            self._made[key] = client(service, region, self._endpoint, attempts)
        return self._made[key]


def code_of(error: Exception) -> str:
    """The service's own error code, "" for other errors."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


@contextmanager
def unless_missing() -> Iterator[None]:
    """What is not there is no error."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        if code_of(error) not in MISSING:
            raise


def tag_map(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def _of(names: Names, kind: Kind, name: str, resource_id: str, tags: Mapping[str, str]) -> Found:
    return Found(kind, name, resource_id, tags.get(TAG_DIGEST), tags.get(TAG_STACK) == names.stack)


def find(aws: Clients, site: Site, account: str) -> tuple[Found, ...]:
    """Every part of the stack that there is. Raises CloudError."""
    names = names_of(site, account)
    looks = (_bucket, _objects, _parameters, _roles, _queue, _rule, _ec2)
    found: list[Found] = []
    for look in looks:
        with errors(f"looking for what the stack {site.name} has"):
            found += look(aws, site, names)
    return tuple(found)


@dataclass(frozen=True)
class Named:
    """What parts are called that others name: the group's id, the head's address inside; None while there is none."""

    group_id: str | None
    head_id: str | None
    head_ip: str | None


def named(aws: Clients, found: Sequence[Found]) -> Named:
    """Raises CloudError for two heads: they are not both ours to choose from."""
    groups = [each.resource_id for each in found if each.kind is Kind.GROUP and each.is_ours]
    heads = [each.resource_id for each in found if each.kind is Kind.HEAD and not each.is_ending]
    if len(heads) > 1:
        raise CloudError(f"head: found {' and '.join(heads)}, expected one; terminate the others")
    ip = None
    if heads:
        with errors("the head"):
            answer = aws.client("ec2").describe_instances(InstanceIds=heads)
            ip = answer["Reservations"][0]["Instances"][0]["PrivateIpAddress"]
    return Named(groups[0] if groups else None, heads[0] if heads else None, ip)


def _bucket(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    from botocore.exceptions import ClientError

    if site.bucket is not None:
        return
    with unless_missing():
        try:
            tags = tag_map(aws.client("s3").get_bucket_tagging(Bucket=names.bucket)["TagSet"])
        except ClientError as error:
            if code_of(error) != "NoSuchTagSet":
                raise
            tags = {
                TAG_STACK: names.stack
            }  # made, not tagged yet: nobody else takes a name with our account in it
        yield _of(names, Kind.BUCKET, names.bucket, names.bucket, tags)


def _objects(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    """Packages by folder (whole when the constraints are there, the last of it), and that there are objects at all."""
    packages: dict[str, bool] = {}
    count = 0
    with unless_missing():
        pages = aws.client("s3").get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=names.bucket, Prefix=names.prefix):
            for entry in page.get("Contents", ()):
                count += 1
                folder, _, rest = entry["Key"].removeprefix(f"{names.prefix}package/").partition("/")
                if entry["Key"].startswith(f"{names.prefix}package/"):
                    packages[folder] = packages.get(folder, False) or rest == "constraints.txt"
    for folder, whole in packages.items():
        name = f"{names.prefix}package/{folder}"
        yield Found(Kind.PACKAGE, name, name, digest_of({"package": folder}) if whole else None)
    if count:
        yield Found(Kind.OBJECTS, f"s3://{names.bucket}/{names.prefix}", str(count))


def _parameters(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    ssm = aws.client("ssm")
    for kind, name in ((Kind.TOKEN, names.token), (Kind.ADDRESS, names.address)):
        with unless_missing():
            what = [{"Key": "Name", "Values": [name]}]
            if not ssm.describe_parameters(ParameterFilters=what)["Parameters"]:
                continue
            tags = tag_map(ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=name)["TagList"])
            digest = WHOLE
            if kind is Kind.ADDRESS:
                digest = digest_of({"ip": ssm.get_parameter(Name=name)["Parameter"]["Value"]})
            yield Found(kind, name, name, digest, tags.get(TAG_STACK) == names.stack)


def _roles(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    iam = aws.client("iam")
    for name in (names.node, names.head):
        with unless_missing():
            role = iam.get_role(RoleName=name)["Role"]
            yield _of(names, Kind.ROLE, name, name, tag_map(role.get("Tags", ())))
        with unless_missing():
            profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
            tags = tag_map(profile.get("Tags", ()))
            whole = [role["RoleName"] for role in profile["Roles"]] == [name]
            ours = tags.get(TAG_STACK) == names.stack
            yield Found(Kind.PROFILE, name, name, WHOLE if whole else None, ours)


def _queue(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    sqs = aws.client("sqs")
    with unless_missing():
        url = sqs.get_queue_url(QueueName=names.plain)["QueueUrl"]
        tags = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
        yield _of(names, Kind.QUEUE, names.plain, url, tags)


def _rule(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    events = aws.client("events")
    with unless_missing():
        arn = events.describe_rule(Name=names.plain)["Arn"]
        tags = tag_map(events.list_tags_for_resource(ResourceARN=arn)["Tags"])
        yield _of(names, Kind.RULE, names.plain, arn, tags)


def _ec2(aws: Clients, site: Site, names: Names) -> Iterator[Found]:
    ec2 = aws.client("ec2")
    by_tag = [{"Name": f"tag:{TAG_STACK}", "Values": [names.stack]}]
    by_name = [{"Name": "group-name", "Values": [names.plain]}]
    for group in ec2.describe_security_groups(Filters=by_name)["SecurityGroups"]:
        yield _of(names, Kind.GROUP, names.plain, group["GroupId"], tag_map(group.get("Tags", ())))
    with unless_missing():
        what = [{"Name": "launch-template-name", "Values": [names.plain]}]
        for template in ec2.describe_launch_templates(Filters=what)["LaunchTemplates"]:
            yield _template(ec2, names, template)
    yield from _instances(ec2, names, by_tag)
    yield from _fleets(ec2, names)
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=by_tag):
        for volume in page["Volumes"]:
            if volume["State"] == "available":  # attached ones go with their machines
                yield Found(Kind.VOLUME, volume["VolumeId"], volume["VolumeId"])


def _template(ec2: Any, names: Names, template: Mapping[str, Any]) -> Found:
    template_id = template["LaunchTemplateId"]
    newest = ec2.describe_launch_template_versions(LaunchTemplateId=template_id, Versions=["$Latest"])
    digest = newest["LaunchTemplateVersions"][0].get("VersionDescription")
    ours = tag_map(template.get("Tags", ())).get(TAG_STACK) == names.stack
    return Found(Kind.TEMPLATE, names.plain, template_id, digest, ours)


def _instances(ec2: Any, names: Names, by_tag: list[dict[str, Any]]) -> Iterator[Found]:
    filters = [*by_tag, {"Name": "instance-state-name", "Values": ALIVE}]
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            for each in reservation["Instances"]:
                tags = tag_map(each.get("Tags", ()))
                ending = each["State"]["Name"] == "shutting-down"
                is_head = tags.get(TAG_PART) == "head"
                kind, name = (Kind.HEAD, names.head) if is_head else (Kind.MACHINE, each["InstanceId"])
                yield Found(kind, name, each["InstanceId"], tags.get(TAG_DIGEST), is_ending=ending)


def _fleets(ec2: Any, names: Names) -> Iterator[Found]:
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
                yield Found(Kind.FLEET, fleet["FleetId"], fleet["FleetId"])


def _described(ec2: Any, ids: list[str]) -> list[dict[str, Any]]:
    """Fleets by id; the tag of one may outlive it, and EC2 answers to none of several where one is unknown."""
    from botocore.exceptions import ClientError

    try:
        return list(ec2.describe_fleets(FleetIds=ids)["Fleets"])
    except ClientError as error:
        if not code_of(error).startswith("InvalidFleetId"):
            raise
    return [] if len(ids) == 1 else [fleet for each in ids for fleet in _described(ec2, [each])]
