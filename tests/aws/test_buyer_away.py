"""The buyer and a job whose driver was away for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidbrain.aws.buyer.client import BuyerCloud
from tests.aws.buyer_rig import ORPHAN_AFTER_S, STACK, Rig, order

pytestmark = pytest.mark.aws


def test_a_job_that_was_away_hears_when_its_machines_ended_though_ec2_lists_them_no_more(
    buyer_parts: str, tmp_path: Path
) -> None:
    """EC2 forgets a machine an hour after its end. The job would count it as running until now, and could take its
    budget for spent."""
    rig = Rig(buyer_parts, tmp_path)
    rig.limit()
    with rig.serving():
        cloud = BuyerCloud(rig.path, STACK, "job")
        ids = tuple(each.instance_id for each in cloud.acquire(order("a", 2)))
        cloud.close()
        rig.wait_left()
        rig.look(ORPHAN_AFTER_S)
        ended_s = rig.at_s + 30
        rig.look(30)
    with rig.serving():  # the buyer may have begun anew as well
        rig.layer.unlisted |= set(ids)
        rig.look(8 * 3600)
        again = BuyerCloud(rig.path, STACK, "job")
        assert [each.instance_id for each in again.ended(ids)] == list(ids)
        assert all(each.at_s <= ended_s for each in again.ended(ids))
        again.close()
        rig.wait_left()
        other = BuyerCloud(rig.path, STACK, "other")
        assert not other.ended(ids), "which are none of its own"
        other.close()
