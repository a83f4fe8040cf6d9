"""Giving machines back to EC2, which takes so many at once, and ends none that somebody has protected."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from bidbrain.aws.ec2 import BATCH, Ec2, Place
from bidbrain.live.cloud import UnknownOutcomeError
from tests.bidbrain.live.lone_cloud import BEGIN_S, lone_setting

PLACE = Place("job", "lt-1", "1", {"us-east-1a": "subnet-a"}, {})


class Protected:
    """EC2's client with machines that it does not end: it ends none of those that it is asked for beside one."""

    def __init__(self, *machines: str) -> None:
        self.machines, self.ended = machines, set[str]()

    def terminate_instances(self, InstanceIds: list[str]) -> None:
        for each in self.machines:
            if each in InstanceIds:
                text = f"The instance '{each}' may not be terminated. Modify its 'disableApiTermination' attribute"
                error = {"Code": "OperationNotPermitted", "Message": text}
                raise ClientError(
                    {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 400}}, "TerminateInstances"
                )
        self.ended |= set(InstanceIds)


def test_a_machine_that_may_not_end_keeps_no_others_however_many_they_are() -> None:
    ids = tuple(f"i-{number:017x}" for number in range(2 * BATCH + 1))
    ec2 = Protected(ids[0], ids[BATCH])
    with pytest.raises(UnknownOutcomeError) as kept:
        Ec2(ec2, PLACE, lone_setting(), lambda: BEGIN_S).release(ids)
    assert ec2.ended == set(ids) - set(ec2.machines)
    assert all(each in str(kept.value) for each in ec2.machines)
