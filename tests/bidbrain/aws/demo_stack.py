"""A stack named `demo`, and what it finds in its account."""

from __future__ import annotations

from dataclasses import replace

from bidbrain.aws.limits import Limits
from bidbrain.aws.site import OtherRegion, Site
from bidbrain.aws.stack.template import (
    RegionImage,
    Surroundings,
    wanted,
)

SITE = Site(
    name="demo", region="us-east-1", zones=("us-east-1a", "us-east-1b"), types=("c5.xlarge", "m5.xlarge")
)
THERE = Surroundings(
    account="123456789012",
    image="ami-0123456789abcdef0",
    root_device="/dev/xvda",
    vpc="vpc-1",
    subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
    package="abcdef0123456789",
)
LIMITS = Limits(site=SITE, machines=20, job_micro_usd=20_000_000)
WANTED = wanted(LIMITS, THERE)
WEST = "us-west-2"
WEST_IMAGE = "ami-0fedcba9876543210"
WIDE = SITE.model_copy(
    update={"regions": {WEST: OtherRegion(zones=("us-west-2a", "us-west-2c"), image=WEST_IMAGE)}}
)
WIDE_THERE = replace(THERE, elsewhere={WEST: RegionImage(WEST_IMAGE, "/dev/xvda")})
WIDE_WANTED = wanted(LIMITS.model_copy(update={"site": WIDE}), WIDE_THERE)
NAMES = WANTED.names
PACKAGE = f"{NAMES.prefix}package/{THERE.package}"
