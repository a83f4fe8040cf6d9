"""An account that forbids machines of one zone: the job buys in the others."""

from __future__ import annotations

import pytest

from bidbrain.aws.ec2 import FULL_S, MOST_DENIED
from bidbrain.history.prices import Market
from bidbrain.live.cloud import CredentialsError, Order, RefusedError
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan
from bidbrain.live.journal import Opened
from bidbrain.live.service import Service
from bidbrain.policy.today import Elastic
from bidbrain.setting import ON_DEMAND_ZONE
from tests.aws.ground import AwsGround
from tests.aws.layer import Ec2Layer
from tests.bidbrain.live.makers import Memory

pytestmark = pytest.mark.aws

FORBIDDEN = "us-east-1a"


def order(number: int, zone: str = FORBIDDEN) -> Order:
    return Order(f"rights-{number}", Market("c5.xlarge", zone), 1, 1, 170_000)


def test_a_market_without_the_right_to_buy_is_left_alone_after_three_tries(ec2: Ec2Layer) -> None:
    ec2.full, ec2.problem = {FORBIDDEN}, "UnauthorizedOperation"
    cloud = AwsGround(ec2, "rights").cloud
    now_s = cloud._now_s()
    for _ in range(MOST_DENIED - 1):
        with pytest.raises(CredentialsError):
            cloud.acquire(order(1))
    assert not cloud.quotes(now_s).full and not cloud.quotes(now_s).troubles
    with pytest.raises(RefusedError, match="UnauthorizedOperation"):
        cloud.acquire(order(1))
    quotes = cloud.quotes(now_s)
    assert quotes.full == {order(1).market}
    assert quotes.troubles == (
        "AWS allows no purchase of c5.xlarge@us-east-1a: it is asked again every ten minutes",
    )
    assert not cloud.quotes(now_s + FULL_S + 1).full


def test_the_right_may_come_at_any_time(ec2: Ec2Layer) -> None:
    ground = AwsGround(ec2, "rights")
    ec2.full, ec2.problem = {FORBIDDEN}, "UnauthorizedOperation"
    for _ in range(MOST_DENIED - 1):
        with pytest.raises(CredentialsError):
            ground.cloud.acquire(order(2))
    with pytest.raises(RefusedError):
        ground.cloud.acquire(order(2))
    ground.at_s += FULL_S + 1
    ec2.full = set()
    assert ground.cloud.acquire(order(3))
    assert not ground.cloud.quotes(ground.at_s).troubles


def test_a_job_without_the_right_to_its_reliable_machines_never_goes_on_without_them(ec2: Ec2Layer) -> None:
    ec2.right_version = "none"
    cloud = AwsGround(ec2, "rights").cloud
    for _ in range(2 * MOST_DENIED):
        with pytest.raises(CredentialsError):
            cloud.acquire(order(4, ON_DEMAND_ZONE))


def test_a_job_buys_elsewhere(ec2: Ec2Layer) -> None:
    ec2.full, ec2.problem = {FORBIDDEN}, "UnauthorizedOperation"
    ground, log = AwsGround(ec2, "elsewhere"), Memory([])
    plan = JobPlan(
        "elsewhere",
        "elastic",
        ground.setting,
        Elastic(ground.setting, ground.start_s),
        ground.start_s,
        True,
        Guards(),
    )
    log.append(Opened("elsewhere", "elastic", ground.start_s, 60))
    service = Service(plan, ground.cloud, ground.engine, ground, log)
    while len({each.market.zone for each in service.state.open_instances()}) < 2:
        assert ground.at_s < ground.start_s + 600
        try:
            service.step()
            ground.at_s += 60
        except CredentialsError:  # as for ever, before
            ground.at_s += 30
            service = Service(plan, ground.cloud, ground.engine, ground, log)
    assert {each.market.zone for each in service.state.open_instances()} == {ON_DEMAND_ZONE, "us-east-1b"}
    ground.cloud.release(tuple(each.instance_id for each in service.state.open_instances()))
