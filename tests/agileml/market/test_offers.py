"""What a config offers against what the stack may buy."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from agileml.market.ec2 import check_limits, check_offers
from bidbrain.aws.buyer.messages import JobOpened
from bidbrain.history.prices import History, Market
from bidbrain.instants import Interval
from bidbrain.live.cloud import CloudError
from bidbrain.live.guards import Guards
from bidbrain.setting import Listing, Reliable, Setting, Workload

HERE, THERE = Market("c5.xlarge", "us-east-1a"), Market("m5.2xlarge", "us-east-1a")
RELIABLE = Reliable("c5.xlarge", 4, 170_000, 4)
SETTING = Setting(
    Workload(8, 1.0),
    (Listing(HERE, 170_000, 4), Listing(THERE, 384_000, 8)),
    History({}, 1),
    Interval(0, 1),
    RELIABLE,
    680_000,
)
MAY = JobOpened((HERE, THERE, RELIABLE.market), (4, 8, 4))


def test_the_stack_may_buy_all_that_the_config_offers_in_the_size_that_it_says() -> None:
    check_offers(SETTING, MAY)
    with pytest.raises(CloudError, match=r"^market\.types: found m5\.2xlarge@us-east-1a, expected one of"):
        check_offers(SETTING, JobOpened((HERE, RELIABLE.market), (4, 4)))
    said = "market.vcpus: found 8 for m5.2xlarge, expected 16, as the stack's config said at the last `proteus aws up`"
    with pytest.raises(CloudError, match=f"^{re.escape(said)}$"):
        check_offers(SETTING, replace(MAY, vcpus=(4, 16, 4)))
    larger = replace(SETTING, reliable=replace(RELIABLE, vcpus_per_machine=2))
    with pytest.raises(CloudError, match=r"found 2 for c5\.xlarge, expected 4"):
        check_offers(larger, MAY)


def test_a_job_asks_for_no_more_machines_and_money_than_the_stack_allows() -> None:
    """At the stack's budget the buyer ends all machines at once; the job knows its own budget alone."""
    may = replace(MAY, machines=8, micro_usd=3_000_000)
    check_limits(Guards(3_000_000, max_machines=8), may)
    check_limits(Guards(9_000_000, max_machines=99), MAY)  # an earlier buyer does not say its limits
    since = "as the stack's config said at the last `proteus aws up`: say it again with this config"
    said = f"machines.max: found 16, expected at most 8, {since}"
    with pytest.raises(CloudError, match=f"^{re.escape(said)}$"):
        check_limits(Guards(3_000_000, max_machines=16), may)
    said = f"market.budget_usd: found 10.000000 $, expected at most 3.000000 $, {since}"
    with pytest.raises(CloudError, match=f"^{re.escape(said)}$"):
        check_limits(Guards(10_000_000, max_machines=8), may)
    check_limits(Guards(3_000_000, max_machines=8), replace(may, left_micro_usd=3_000_000))
    said = "market.budget_usd: found 3.000000 $, expected at most 2.500000 $, which earlier jobs have left"
    with pytest.raises(CloudError, match=f"^{re.escape(said)}"):
        check_limits(Guards(3_000_000, max_machines=8), replace(may, left_micro_usd=2_500_000))
