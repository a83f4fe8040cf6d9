"""The part of a config that `proteus aws` reads: a stack's region, zones, instance types, image, and subnets."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

AMAZON_LINUX = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"

Names = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class Site(BaseModel):
    """One stack: everything that `proteus aws up` makes under one name in one region.

    name: of the stack, in all names and tags. zones: where spot machines are bought; the first one has the head and
    the reliable machines. types: of the spot machines. image: an AMI id, or resolve:ssm:PARAMETER. subnets: zone ->
    subnet id; of the default VPC where nothing is said. bucket: one that is there already; None: one of our own.
    boundary: the ARN of a permissions boundary of both roles.
    on_demand, vcpus: dollars per hour and vCPUs of types that the package's table does not know. orphan_after_s: a
    machine ends itself when the head has had no driver of the market for so many seconds. stack_budget_usd: the most
    that the machines of all jobs together may cost on one head.
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
