"""A stack named `demo`, and what it finds in its account."""

from __future__ import annotations

from bidbrain.aws.limits import Limits
from bidbrain.aws.site import Site
from bidbrain.aws.stack.template import (
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
NAMES = WANTED.names
PACKAGE = f"{NAMES.prefix}package/{THERE.package}"
