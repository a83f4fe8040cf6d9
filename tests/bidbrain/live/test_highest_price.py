"""A highest price below that of machines on demand, for a job that needs some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bidbrain.live.dry_run import MaxPriceError, dry_run
from bidbrain.live.guards import Guards
from tests.bidbrain.live.lone_cloud import BEGIN_S, ON_DEMAND, LoneJob, lone_setting


@pytest.mark.parametrize(
    ("scheme", "deadline", "why"),
    [
        ("expected_cost", 2.0, "close to its deadline the job buys them"),
        ("spot_2026", 2.0, "close to its deadline the job buys them"),
        ("on_demand", None, "it buys no others"),
        ("expected_cost", None, ""),
        ("elastic", 2.0, ""),
    ],
)
def test_it_is_refused_before_anything_is_bought(scheme: str, deadline: float | None, why: str) -> None:
    """Close to a deadline such an order would be left out, when it is too late for anything else."""
    job = LoneJob(setting=lone_setting(deadline=deadline))
    plan = replace(job.plan, scheme=scheme, guards=Guards(max_price=ON_DEMAND - 1))
    if why:
        with pytest.raises(MaxPriceError) as refused:
            dry_run(plan, job.cloud, BEGIN_S)
        assert str(refused.value) == (
            "max_price: found 0.169999 $, expected at least 0.170000 $, what a machine of c5.xlarge costs on demand: "
            f"{why}"
        )
        plan = replace(plan, guards=Guards(max_price=ON_DEMAND))
    assert dry_run(plan, job.cloud, BEGIN_S).purchases == ()
