"""The CloudFormation templates of a stack (`template.yaml`, `region.yaml`, `operator.yaml`) as data: read, filled in,
compared. Pure.

CloudFormation fills in the parameters itself. `resolved` does the same here for the few functions that our templates
use, so that `plan` can print the policies before anything is made.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from bidbrain.aws.clients import tag_list
from bidbrain.aws.limits import Limits
from bidbrain.aws.site import HEAD_GIB, Site
from bidbrain.aws.stack.names import Names, names_of

STACK, REGION, OPERATOR = "template.yaml", "region.yaml", "operator.yaml"
USER_DATA_LIMIT_BYTES = 16_384  # EC2's, before base64
ZONE_BITS = 4  # a network is cut in 16 parts, one for each zone
NAMING = (
    *("BucketName", "GroupName", "RoleName", "InstanceProfileName", "QueueName", "Name"),
    "LaunchTemplateName",
)


@dataclass(frozen=True)
class RegionImage:
    """The image of machines in another region: an AMI id of that region, and the AMI's root device."""

    image: str
    root_device: str


@dataclass(frozen=True)
class Surroundings:
    """The account and the region that a stack is made in.

    image: an AMI id, also where `Site.image` names a parameter. subnets: zone -> subnet id. package: digest of the
    wheel and its constraints. elsewhere: the images of the other regions. head_gib: the disk of the head.
    """

    account: str
    image: str
    root_device: str
    vpc: str
    subnets: Mapping[str, str]
    package: str
    elsewhere: Mapping[str, RegionImage] = field(default_factory=dict)
    head_gib: int = HEAD_GIB


@dataclass(frozen=True)
class Wanted:
    """The stack that there should be: a template, the values of its parameters, tags, the subnet of the head, and the
    limits of its buyer as their object holds them. elsewhere: its parts in other regions, without head and limits."""

    names: Names
    template: Mapping[str, Any]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    head_subnet: str = ""
    limits: str = ""
    elsewhere: Mapping[str, Wanted] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The digest of the package."""
        return self.parameters["Package"]


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with CloudFormation's short forms: `!Sub text` is {"Fn::Sub": text}.

    Parsed in C where PyYAML has that: ten times as fast.
    """


def _short_form(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
        if name == "GetAtt":
            value = value.split(".", 1)
    else:
        assert isinstance(node, yaml.SequenceNode)
        value = loader.construct_sequence(node, deep=True)
    return {name if name == "Ref" else f"Fn::{name}": value}


_Loader.add_multi_constructor("!", _short_form)


@cache
def text(name: str) -> str:
    """A template as it lies in the package."""
    return files(__package__).joinpath(name).read_text()


def load(name: str) -> dict[str, Any]:
    """A template as data, short forms spelled out."""
    return dict(yaml.load(text(name), _Loader))


def wanted(limits: Limits, there: Surroundings) -> Wanted:
    """The stack that the site of these limits asks for."""
    site = limits.site
    names = names_of(site, there.account)
    template = _tagged(load(STACK), tag_list(site.tags))
    parameters = {
        "Name": site.name,
        "BucketName": names.bucket,
        "Vpc": there.vpc,
        "Image": there.image,
        "RootDevice": there.root_device,
        "HeadType": site.head_type,
        "HeadDiskGiB": str(there.head_gib),
        "DiskGiB": str(site.disk_gib),
        "Package": there.package,
        "OrphanAfter": str(site.orphan_after_s),
        "Types": ",".join(site.bought_types),
        "Boundary": site.boundary or "none",
    }
    if site.bucket is not None:
        template = without_bucket(template)
    elsewhere = {name: _wanted_in(name, site, names, there) for name in site.regions}
    head_subnet = there.subnets[site.zones[0]]
    return Wanted(names, template, parameters, site.tags, head_subnet, limits.text(), elsewhere)


def _wanted_in(region: str, site: Site, names: Names, there: Surroundings) -> Wanted:
    """The stack in another region."""
    image = there.elsewhere[region]
    parameters = {
        "Name": site.name,
        "Home": site.region,
        "BucketName": names.bucket,
        "Cidr": str(site.cidr_of(region)),
        "Image": image.image,
        "RootDevice": image.root_device,
        "DiskGiB": str(site.disk_gib),
        "Package": there.package,
        "OrphanAfter": str(site.orphan_after_s),
        "Types": ",".join(site.bought_types),
    }
    template = _tagged(region_template(site, region), tag_list(site.tags))
    return Wanted(replace(names, region=region), template, parameters, site.tags)


def region_template(site: Site, region: str) -> dict[str, Any]:
    """The template of another region, with a subnet for each zone, and the script of the home region's template."""
    whole = load(REGION)
    zoned = {name: whole["Resources"].pop(name) for name in ("Subnet", "SubnetRoutes")}
    parts = site.cidr_of(region).subnets(prefixlen_diff=ZONE_BITS)
    for zone, part in zip(site.zones_in(region), parts, strict=False):
        suffix = "".join(word.capitalize() for word in zone.split("-"))
        values = {"Zone": zone, "ZoneCidr": str(part)}
        for name, each in zoned.items():
            text = _with_refs(each, values | {"Subnet": {"Ref": f"Subnet{suffix}"}})
            whole["Resources"][f"{name}{suffix}"] = text
    parameters = {
        name: each for name, each in whole["Parameters"].items() if name not in ("Zone", "ZoneCidr")
    }
    return {**whole, "Parameters": parameters, "Mappings": load(STACK)["Mappings"]}


def _with_refs(node: Any, values: Mapping[str, Any]) -> Any:
    """A part of a template with the values of some references in it."""
    if isinstance(node, list):
        return [_with_refs(each, values) for each in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1 and node.get("Ref") in values:
        return values[node["Ref"]]
    return {key: _with_refs(value, values) for key, value in node.items()}


def without_bucket(template: Mapping[str, Any]) -> dict[str, Any]:
    """The template for a bucket that is there already and that CloudFormation shall not make."""
    resources = {name: value for name, value in template["Resources"].items() if name != "Bucket"}
    return {**template, "Resources": resources}


def _tagged(node: Any, tags: list[dict[str, str]]) -> Any:
    """The template with more tags wherever it has some."""
    if isinstance(node, dict):
        return {
            key: [*value, *tags] if key == "Tags" else _tagged(value, tags) for key, value in node.items()
        }
    return [_tagged(each, tags) for each in node] if isinstance(node, list) else node


def resolved(node: Any, values: Mapping[str, str], mappings: Mapping[str, Any] | None = None) -> Any:
    """A part of a template with the values of parameters in it; a reference to a resource gives the resource's name."""
    if isinstance(node, list):
        return [resolved(each, values, mappings) for each in node]
    if not isinstance(node, dict):
        return node
    match list(node.items()):
        case [("Ref", name)]:
            return values.get(name, name)
        case [("Fn::Sub", str(form))]:
            return re.sub(r"\$\{([\w:]+)\}", lambda found: values.get(found[1], found[1]), form)
        case [("Fn::GetAtt", [name, attribute])]:
            return f"{name}.{attribute}"
        case [("Fn::Split", [between, whole])]:
            return resolved(whole, values, mappings).split(between)
        case [("Fn::Join", [between, parts])]:
            return between.join(resolved(parts, values, mappings))
        case [("Fn::FindInMap", [name, first, second])]:
            return (mappings or {})[name][first][second]
        case [("Fn::Base64", inner)]:
            data = resolved(inner, values, mappings).encode()
            assert len(data) <= USER_DATA_LIMIT_BYTES
            return base64.b64encode(data).decode()
    return {key: resolved(value, values, mappings) for key, value in node.items()}


def resource(want: Wanted, name: str) -> Any:
    """The properties of one resource of a stack, with all values in it."""
    values = {**want.names.pseudo_parameters, **want.parameters}
    return resolved(want.template["Resources"][name]["Properties"], values, want.template["Mappings"])


def listed(template: Mapping[str, Any], want: Wanted) -> list[tuple[str, str]]:
    """(type, name) of each resource of a template; those that AWS names have their name in the template."""
    found = []
    for logical, each in template["Resources"].items():
        properties = resource(want, logical)
        name = next((properties[key] for key in NAMING if key in properties), logical)
        found.append((each["Type"], name))
    return found


def operator_policy(names: Names, own_bucket: bool) -> dict[str, Any]:
    """The rights of the person who runs `proteus aws`. own_bucket: the stack makes its bucket itself."""
    values = {**names.pseudo_parameters, "Name": names.stack, "BucketName": names.bucket}
    policy = resolved(load(OPERATOR)["Resources"]["Operator"]["Properties"]["PolicyDocument"], values)
    kept = [each for each in policy["Statement"] if own_bucket or each["Sid"] != "MakeBucket"]
    return {**policy, "Statement": kept}


def boundary_policy(names: Names) -> dict[str, Any]:
    """The most that the stack's roles may ever do, where a permissions boundary is set."""
    values = {**names.pseudo_parameters, "Name": names.stack, "BucketName": names.bucket}
    return dict(resolved(load(OPERATOR)["Resources"]["Boundary"]["Properties"]["PolicyDocument"], values))


def role_policy(names: Names, role: str, types: Sequence[str], image: str) -> dict[str, Any]:
    """The rights of a machine. role: `HeadRole` or `NodeRole`; types, image: what the head may buy."""
    values = {**names.pseudo_parameters, "Name": names.stack, "BucketName": names.bucket}
    values |= {"Types": ",".join(types), "Image": image}
    (policy,) = load(STACK)["Resources"][role]["Properties"]["Policies"]
    return dict(resolved(policy["PolicyDocument"], values))


def region_policy(names: Names, region: str, types: Sequence[str], image: str) -> dict[str, Any]:
    """The policy of the head's role for another region. names: of the home region; image: the AMI there."""
    there = replace(names, region=region)
    values = {**there.pseudo_parameters, "Name": names.stack, "Types": ",".join(types), "Image": image}
    return dict(resolved(load(REGION)["Resources"]["HeadHere"]["Properties"]["PolicyDocument"], values))


def regions_policy(names: Names, regions: Sequence[str], vpc: str) -> dict[str, Any]:
    """The policy of the person who runs `proteus aws`, beside `operator_policy`, where there are other regions.

    names, vpc: of the home region.
    """
    values = {**names.pseudo_parameters, "Name": names.stack, "Vpc": vpc, "Regions": ",".join(regions)}
    values["AllRegions"] = ",".join([names.region, *regions])
    return dict(
        resolved(load(OPERATOR)["Resources"]["OperatorElsewhere"]["Properties"]["PolicyDocument"], values)
    )
