"""What a stack on EC2 consists of, and which steps lead there or away from it. Pure.

A stack is a list of resources in the order in which they are made. Each one has a digest of what it should hold; it
is written to the resource as its last part, so that one whose making was interrupted is known and finished. Names are
fixed by the stack's name, and all that can carry tags carries `proteus:stack`: whoever comes later finds everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bidbrain.aws.notices import EVENT_PATTERN
from bidbrain.aws.site import Site
from bidbrain.aws.stack.boot import Boot, Role, user_data
from bidbrain.aws.stack.policies import Names, head_policy, node_policy, queue_policy
from bidbrain.aws.template import OWNER, OWNER_TAG, digest_of, machine_data

TAG_STACK, TAG_DIGEST, TAG_PART, TAG_LAUNCH = (
    "proteus:stack",
    "proteus:digest",
    "proteus:part",
    "proteus:launch",
)
HEAD_DISK_GIB = 40


class Kind(StrEnum):
    """What can be part of a stack."""

    BUCKET = "bucket"
    PACKAGE = "package"
    OBJECTS = "objects"
    TOKEN = "token"
    GROUP = "security group"
    ROLE = "role"
    PROFILE = "instance profile"
    QUEUE = "queue"
    RULE = "event rule"
    TEMPLATE = "launch template"
    HEAD = "head"
    ADDRESS = "address of the head"
    MACHINE = "machine"
    FLEET = "fleet"
    VOLUME = "volume"


class Action(StrEnum):
    """What a step does."""

    MAKE = "make"
    FINISH = "finish"
    CHANGE = "change"
    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True)
class Resource:
    """A part that there should be. content: what it holds, as JSON would; its digest tells whether that changed."""

    kind: Kind
    name: str
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_of(self.content)


@dataclass(frozen=True)
class Found:
    """A part that there is. resource_id: as AWS calls it. digest: as it was written there, None: not (yet).

    is_ending: it was told to go and is still there.
    """

    kind: Kind
    name: str
    resource_id: str
    digest: str | None = None
    is_ours: bool = True
    is_ending: bool = False


@dataclass(frozen=True)
class Step:
    """One thing to do, and why."""

    action: Action
    kind: Kind
    name: str
    reason: str
    found: Found | None = None

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}: {self.reason}"


class ForeignError(ValueError):
    """A name that we need is taken by something that is not ours, in one sentence."""


@dataclass(frozen=True)
class Ground:
    """What was found out about the account and the region before anything is made.

    image: the AMI itself, where `Site.image` names a parameter. package: the digest of the wheel and its constraints.
    group_id, head_ip: None while there is none.
    """

    account: str
    image: str
    root_device: str
    vpc: str
    subnets: Mapping[str, str]
    package: str
    group_id: str | None = None
    head_ip: str | None = None


def names_of(site: Site, account: str) -> Names:
    """The fixed names of a stack's parts."""
    bucket = site.bucket or f"proteus-{site.name}-{account}-{site.region}"
    return Names(site.name, site.region, account, bucket)


def tags_of(site: Site, part: str, digest: str | None = None) -> dict[str, str]:
    """What every part of the stack carries."""
    tags = {**site.tags, TAG_STACK: site.name, OWNER_TAG: OWNER, TAG_PART: part}
    return tags if digest is None else {**tags, TAG_DIGEST: digest}


def desired(site: Site, ground: Ground) -> tuple[Resource, ...]:
    """All parts of a stack, each after those that it needs."""
    names = names_of(site, ground.account)
    made = [Resource(Kind.BUCKET, names.bucket)] if site.bucket is None else []
    return (
        *made,
        Resource(Kind.PACKAGE, f"{names.prefix}package/{ground.package}", {"package": ground.package}),
        Resource(Kind.TOKEN, names.token),
        Resource(Kind.GROUP, names.plain, {"vpc": ground.vpc, "from": "the group itself", "ports": "all"}),
        Resource(Kind.ROLE, names.node, node_policy(names)),
        Resource(Kind.PROFILE, names.node),
        Resource(Kind.ROLE, names.head, head_policy(names)),
        Resource(Kind.PROFILE, names.head),
        Resource(Kind.QUEUE, names.plain, queue_policy(names)),
        Resource(Kind.RULE, names.plain, EVENT_PATTERN),
        Resource(Kind.TEMPLATE, names.plain, template_content(site, ground)),
        Resource(Kind.HEAD, names.head, head_content(site, ground)),
        Resource(Kind.ADDRESS, names.address, {"ip": ground.head_ip or ""}),
    )


def _boot(site: Site, ground: Ground, role: Role) -> str:
    names = names_of(site, ground.account)
    package = f"s3://{names.bucket}/{names.prefix}package/{ground.package}"
    return user_data(Boot(role, site.name, site.region, package, ground.package, site.orphan_after_s))


def template_content(site: Site, ground: Ground) -> dict[str, Any]:
    """LaunchTemplateData of the machines that the service buys."""
    names = names_of(site, ground.account)
    data = machine_data(
        ground.image,
        [ground.group_id or ""],
        names.node,
        _boot(site, ground, Role.NODE),
        site.disk_gib,
        ground.root_device,
    )
    data["TagSpecifications"] = [
        {
            "ResourceType": "volume",
            "Tags": [{"Key": k, "Value": v} for k, v in sorted(tags_of(site, "machine").items())],
        }
    ]
    return data


def head_content(site: Site, ground: Ground) -> dict[str, Any]:
    """The request that starts the head, without its token and tags."""
    names = names_of(site, ground.account)
    data = machine_data(
        ground.image,
        [ground.group_id or ""],
        names.head,
        _boot(site, ground, Role.HEAD),
        HEAD_DISK_GIB,
        ground.root_device,
    )
    subnet = ground.subnets[site.zones[0]]
    return {**data, "InstanceType": site.head_type, "SubnetId": subnet, "MinCount": 1, "MaxCount": 1}


def steps(wanted: Iterable[Resource], found: Iterable[Found]) -> tuple[Step, ...]:
    """What to do about each part, in order. Raises ForeignError where a name is taken.

    A head that differs is kept: a job may run on it. `down` and `up` replace it.
    """
    there = {(each.kind, each.name): each for each in found if not each.is_ending}
    return tuple(_step(resource, there.get((resource.kind, resource.name))) for resource in wanted)


def _step(resource: Resource, found: Found | None) -> Step:
    kind, name = resource.kind, resource.name
    if found is None:
        return Step(Action.MAKE, kind, name, "it is not there")
    if not found.is_ours:
        raise ForeignError(
            f"{kind} {name}: it exists and is not ours (no tag {TAG_STACK}), take another name"
        )
    if found.digest is None:
        return Step(Action.FINISH, kind, name, "its making was interrupted", found)
    if found.digest == resource.digest:
        return Step(Action.KEEP, kind, name, "it is as it should be", found)
    if kind is Kind.HEAD:
        return Step(Action.KEEP, kind, name, "it differs, and only `down` and `up` replace a head", found)
    return Step(Action.CHANGE, kind, name, "its content has changed", found)


# Money first: no template, so that a service cannot buy; then who could buy, then what was bought.
TEARDOWN = (
    Kind.TEMPLATE,
    Kind.HEAD,
    Kind.MACHINE,
    Kind.FLEET,
    Kind.RULE,
    Kind.QUEUE,
    Kind.ADDRESS,
    Kind.TOKEN,
    Kind.PROFILE,
    Kind.ROLE,
    Kind.VOLUME,
    Kind.GROUP,
    Kind.OBJECTS,
    Kind.BUCKET,
)
DATA = (Kind.OBJECTS, Kind.BUCKET)
HAS_GROUP = (Kind.HEAD, Kind.MACHINE, Kind.FLEET)


def teardown(found: Iterable[Found], keep_data: bool) -> tuple[Step, ...]:
    """What can be removed of what there is and is ours, in order. keep_data: bucket and objects stay.

    To be asked again until nothing is there: a group goes when the last machine in it has ended, and machines may have
    been bought meanwhile.
    """
    ours = [each for each in found if each.is_ours and not (keep_data and each.kind in DATA)]
    wait = {Kind.GROUP} if any(each.kind in HAS_GROUP for each in ours) else set()
    going = [each for each in ours if each.kind in TEARDOWN and each.kind not in wait and not each.is_ending]
    going.sort(key=lambda each: (TEARDOWN.index(each.kind), each.name, each.resource_id))
    return tuple(Step(Action.REMOVE, each.kind, each.name, "it is ours", each) for each in going)
