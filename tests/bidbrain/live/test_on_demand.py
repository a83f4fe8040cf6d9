"""The scheme `on_demand` on a cloud: it holds the whole job, whatever is refused at first or dies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bidbrain.billing import Ending
from bidbrain.live.cloud import QuotaError
from bidbrain.live.journal import Decided, Ordered
from bidbrain.policy.registry import find_scheme
from bidbrain.policy.standard import AGAIN_S
from bidbrain.setting import ON_DEMAND_ZONE
from tests.bidbrain.live.lone_cloud import BEGIN_S, LoneJob

WHOLE = [ON_DEMAND_ZONE] * 4


@pytest.fixture
def job() -> LoneJob:
    job = LoneJob()
    job.plan = replace(
        job.plan, policy=find_scheme("on_demand").live(job.setting, BEGIN_S), with_reliable=False
    )
    job.restarted()
    return job


def test_it_asks_once_where_all_is_sold(job: LoneJob) -> None:
    job.after(0)
    job.after(60, times=30)
    assert job.cloud.zones() == WHOLE
    assert len(job.of(Ordered)) == 1 and len(job.of(Decided)) == 2


def test_what_is_refused_is_asked_for_again(job: LoneJob) -> None:
    job.cloud.fails[ON_DEMAND_ZONE] = QuotaError("VcpuLimitExceeded")
    job.after(0)
    job.after(AGAIN_S, times=3)
    assert not job.cloud.zones() and len(job.of(Ordered)) == 4
    del job.cloud.fails[ON_DEMAND_ZONE]
    job.after(AGAIN_S)
    assert job.cloud.zones() == WHOLE


def test_what_a_fleet_did_not_have_is_bought_later(job: LoneJob) -> None:
    job.cloud.most[ON_DEMAND_ZONE] = 3
    job.after(0)
    job.after(AGAIN_S)
    assert job.cloud.zones() == WHOLE
    assert [each.vcpus for each in job.of(Ordered)] == [4, 1]


def test_a_machine_that_dies_is_replaced(job: LoneJob) -> None:
    job.after(0)
    job.cloud.end(next(iter(job.cloud.running)), Ending.TERMINATED)
    job.after(5, times=2)
    assert job.cloud.zones() == WHOLE
