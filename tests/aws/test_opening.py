"""How a job opens the market of its stack: by the stack's buyer, before any machine is bought, and without Ray."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agileml.config.job import from_values
from agileml.config.market import Ec2MarketConfig
from agileml.market.ec2 import open_market
from agileml.market.setup import set_up
from bidbrain.aws.buyer.client import BuyerCloud
from bidbrain.aws.objects import BucketObjects
from bidbrain.live.cloud import CloudError
from tests.aws.buyer_rig import SITE, STACK, Rig

pytestmark = pytest.mark.aws

JOB: dict[str, Any] = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 60,
    "slices": 8,
    "machines": {"reliable": 1, "max": 5},
    "address": "auto",
    "checkpoint": {"path": "s3://bucket/checkpoints", "every_s": 60},
}


@pytest.fixture
def rig(buyer_parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", buyer_parts)
    rig = Rig(buyer_parts, tmp_path)
    rig.limit()
    with rig.serving():
        yield rig


def opened(rig: Rig, most: int = 5, **market: Any) -> tuple[BuyerCloud, BucketObjects]:
    """The market of a job with the stack's own types and zones, and what else the config says."""
    site = {"region": SITE.region, "zones": SITE.zones, "types": SITE.types, "vcpus": SITE.vcpus}
    section = {"kind": "ec2", "name": STACK, **site, "policy": "elastic", "job_vcpus": 8, "job_hours": 0.1}
    whole = section | {"budget_usd": 5.0} | market
    job = from_values({**JOB, "machines": {"reliable": 1, "max": most}, "market": whole})
    assert isinstance(job.market, Ec2MarketConfig)
    return open_market(rig.path, job.market, set_up(job, "opening", "1", int(time.time())))


def test_a_job_within_the_limits_of_its_stack_drives_the_market(rig: Rig) -> None:
    cloud, risk = opened(rig)
    assert rig.buyer.driven.startswith("opening") and risk.names() == []
    cloud.close()


@pytest.mark.parametrize(
    ("limits", "most", "market", "said"),
    [
        ({"machines": 4}, 5, {}, "machines.max: found 5, expected at most 4"),
        ({}, 5, {"budget_usd": 21.0}, "market.budget_usd: found 21.000000 $, expected at most 20.000000 $"),
        ({"stack_micro_usd": 4_000_000}, 5, {}, "market.budget_usd: found 5.000000 $, expected at most 4.000000 $"),
        ({}, 5, {"types": ["c5.xlarge", "c5.2xlarge"]}, "market.types: found c5.2xlarge@us-east-1a"),
    ],
)  # fmt: skip
def test_a_job_that_asks_for_more_than_its_stack_allows_is_refused_and_lets_the_buyer_go(
    rig: Rig, limits: dict[str, Any], most: int, market: dict[str, Any], said: str
) -> None:
    """Otherwise the buyer would end all machines at the stack's budget, without a last checkpoint."""
    rig.limit(**limits)
    with pytest.raises(CloudError, match=f"^{re.escape(said)}"):
        opened(rig, most, **market)
    rig.wait_left()
