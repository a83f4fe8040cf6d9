"""A pool that refused an order is left alone for a while, for the reason that it refused for."""

from __future__ import annotations

import pytest

from bidbrain.aws.ec2 import FULL_S
from bidbrain.live.cloud import CapacityError, Order, QuotaError, RefusedError
from tests.aws.ground import AwsGround
from tests.aws.layer import Ec2Layer

pytestmark = pytest.mark.aws


@pytest.mark.parametrize("sold", [0, 2], ids=["nothing", "a part"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [("InsufficientInstanceCapacity", CapacityError), ("MaxSpotInstanceCountExceeded", QuotaError)],
)
def test_a_quota_stays_one_as_long_as_the_pool_is_left_alone(
    ec2: Ec2Layer, code: str, kind: type[RefusedError], sold: int
) -> None:
    """A lack of room counts against the pool, for the job and for others, and a quota does not."""
    ec2.problem, ec2.most = code, {"us-east-1a": sold}
    ground = AwsGround(ec2, f"{code}{sold}")
    listing = ground.setting.listings[0]
    first, second, third = (Order(f"{code}{sold}-{n}", listing.market, 4, 1, 170_000) for n in range(3))
    if sold:
        assert len(ground.cloud.acquire(first)) == sold
    else:
        with pytest.raises(kind, match=code):
            ground.cloud.acquire(first)
    with pytest.raises(RefusedError, match="refused a short while ago") as refused:
        ground.cloud.acquire(second)
    assert type(refused.value) is kind
    ground.at_s += FULL_S
    ec2.most.clear()
    assert len(ground.cloud.acquire(third)) == 4
    ground.cloud.release(tuple(each.instance_id for each in ground.cloud.held()))
