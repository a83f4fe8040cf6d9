"""The part of a config that `proteus aws` reads: a stack's region, zones, instance types, image, and subnets."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from bidbrain.history.locations import location_of

AMAZON_LINUX = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"

Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


MOST_REGIONS = 3  # beside the home region: IAM takes 10,240 characters of policies of a role
HEAD_GIB = 40  # the disk of the head, but where the image needs a larger one
FIRST_NETWORK = 81  # 10.81.0.0/16 is that of the first other region


class OtherRegion(BaseModel):
    """Another region where spot machines are bought.

    cidr: of the network that is made there; None: 10.81.0.0/16 for the first region of a config, and so on. image: the
    AMI there, needed where `Site.image` is an id, as each region has its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    zones: Names
    cidr: str | None = None
    image: str | None = None

    @field_validator("cidr")
    @classmethod
    def _network(cls, cidr: str | None) -> str | None:
        if cidr is None:
            return None
        try:
            network = IPv4Network(cidr)
        except ValueError as error:
            raise ValueError(f"expected a network such as 10.81.0.0/16 ({error})") from None
        if not network.is_private or not 16 <= network.prefixlen <= 24:
            raise ValueError("expected a private network of /16 to /24 such as 10.81.0.0/16")
        return cidr


class Site(BaseModel):
    """One stack: everything that `proteus aws up` makes under one name.

    name: of the stack, in all names and tags. zones: where spot machines are bought; the first one has the head and
    the reliable machines. types: of the spot machines. image: an AMI id, or resolve:ssm:PARAMETER. subnets: zone ->
    subnet id; empty: those of the default VPC. bucket: one that is there already; None: one of our own.
    boundary: the ARN of a permissions boundary of both roles.
    on_demand, vcpus: dollars per hour and vCPUs of types that the package's table does not know. orphan_after_s: a
    machine ends itself when the head has had no driver of the market for so many seconds. stack_budget_usd: the most
    that the machines of all jobs together may cost on one head. region: of the head and all that is not bought.
    regions: others where spot machines are bought, too, of the same types.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "proteus"
    region: str
    zones: Names
    types: Names
    reliable_type: str | None = None
    head_type: str = "m5.large"
    image: str = AMAZON_LINUX
    subnets: dict[str, str] = {}
    bucket: str | None = None
    boundary: str | None = None
    disk_gib: Annotated[int, Field(ge=8, le=16_384)] = 40
    orphan_after_s: Annotated[int, Field(ge=30, le=86_400)] = 300
    on_demand: dict[str, Annotated[float, Field(gt=0)]] = {}
    vcpus: dict[str, Annotated[int, Field(ge=1)]] = {}
    tags: dict[str, str] = {}
    stack_budget_usd: Annotated[float, Field(gt=0)] | None = None
    regions: dict[str, OtherRegion] = {}

    @field_validator("name")
    @classmethod
    def _short_name(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,22}[a-z0-9]", name):
            raise ValueError("expected a name of 2 to 24 of a-z, 0-9 and dash, with a letter first")
        return name

    @field_validator("zones", "types")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("expected each name once")
        return names

    @field_validator("zones")
    @classmethod
    def _of_the_region(cls, zones: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        region = info.data.get("region")
        if region is None or location_of(region) is None:
            return zones  # no zones are of a region that does not exist, which has a sentence of its own
        for zone in zones:
            place = location_of(zone)
            # A kind of zone whose name says less is left to AWS.
            if place is not None and place.zone == zone and place.region != region:
                raise ValueError(f"expected zones of {region}, which {zone} of {place.region} is not")
        return zones

    @field_validator("image")
    @classmethod
    def _image(cls, image: str) -> str:
        if not re.fullmatch(r"ami-[0-9a-f]{8,17}|resolve:ssm:\S+", image):
            raise ValueError("expected an AMI id (ami-...) or resolve:ssm:PARAMETER")
        return image

    @field_validator("tags")
    @classmethod
    def _free_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        if taken := [key for key in tags if key.startswith(("proteus:", "aws:")) or key == "Name"]:
            raise ValueError(f"expected other tags than {taken[0]}, which is taken")
        return tags

    @field_validator("regions")
    @classmethod
    def _elsewhere(cls, regions: dict[str, OtherRegion], info: ValidationInfo) -> dict[str, OtherRegion]:
        home, image = info.data.get("region", ""), info.data.get("image", "")
        if len(regions) > MOST_REGIONS:
            raise ValueError(f"expected at most {MOST_REGIONS} beside {home}")
        networks: dict[str, IPv4Network] = {}
        for position, (name, each) in enumerate(regions.items()):
            if name == home:
                raise ValueError(f"expected others than {home}, which is market.region")
            for zone in each.zones:
                place = location_of(zone)
                if place is None or place.region != name or place.zone != zone:
                    raise ValueError(f"expected zones of {name} there, which {zone} is not")
            if len(set(each.zones)) != len(each.zones):
                raise ValueError(f"expected each zone of {name} once")
            if each.image is None and image.startswith("ami-"):
                raise ValueError(
                    f"expected the image of {name}, as {image} is one of {home} alone: an AMI id"
                )
            mine = IPv4Network(each.cidr or default_cidr(position))
            for other, network in networks.items():
                if mine.overlaps(network):
                    raise ValueError(
                        f"expected networks that do not overlap: {name} has {mine} and {other} {network}"
                    )
            networks[name] = mine
        return regions

    def cidr_of(self, region: str) -> IPv4Network:
        """The network of another region."""
        return IPv4Network(self.regions[region].cidr or default_cidr(list(self.regions).index(region)))

    def image_in(self, region: str) -> str:
        """The image of machines of a region: an AMI id, or resolve:ssm:PARAMETER."""
        other = self.regions.get(region)
        return self.image if other is None else other.image or self.image

    def zones_in(self, region: str) -> tuple[str, ...]:
        """Where spot machines of a region are bought."""
        return self.zones if region == self.region else self.regions[region].zones

    def part_in(self, region: str) -> Site:
        """Another region's part of the stack as a site of its own: its zones and image, no other type than those of
        spot machines."""
        there: dict[str, object] = {
            "region": region,
            "zones": self.zones_in(region),
            "image": self.image_in(region),
            "head_type": self.types[0],
            "reliable_type": None,
            "subnets": {},
            "regions": {},
        }
        return self.model_copy(update=there)

    @property
    def all_regions(self) -> tuple[str, ...]:
        """The home region, then the others."""
        return (self.region, *self.regions)

    @property
    def all_zones(self) -> tuple[str, ...]:
        """Where spot machines are bought, the home region's zones first."""
        return tuple(zone for region in self.all_regions for zone in self.zones_in(region))

    @property
    def of_reliable(self) -> str:
        """The type of the reliable machines."""
        return self.reliable_type or self.types[0]

    @field_validator("boundary")
    @classmethod
    def _arn(cls, boundary: str | None) -> str | None:
        if boundary is not None and not re.fullmatch(r"arn:[\w-]+:iam::\d{12}:policy/\S+", boundary):
            raise ValueError("expected the ARN of a policy (arn:aws:iam::ACCOUNT:policy/NAME)")
        return boundary

    @property
    def bought_types(self) -> tuple[str, ...]:
        """Every type that the head may buy, each once."""
        return tuple(dict.fromkeys((*self.types, self.of_reliable)))

    @property
    def all_types(self) -> tuple[str, ...]:
        """Every type that may be started, each once."""
        return tuple(dict.fromkeys((*self.types, self.of_reliable, self.head_type)))


def default_cidr(position: int) -> str:
    """The network of another region that has none in the config, by its position there."""
    return f"10.{FIRST_NETWORK + position}.0.0/16"
