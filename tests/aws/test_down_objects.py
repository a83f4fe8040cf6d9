"""Objects of a stack that S3 does not delete: it says so of each, in an answer that is no error."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bidbrain.aws.stack.parts import PartKind
from bidbrain.live.cloud import CredentialsError
from tests.aws.stack_rig import StackRig

pytestmark = pytest.mark.aws


def test_an_object_that_may_not_be_deleted_ends_down_with_its_name(moto_url: str) -> None:
    rig = StackRig(moto_url, "down-objects")
    rig.up()
    s3, bucket = rig.plain.client("s3"), rig.want.names.bucket
    kept = f"proteus/{rig.site.name}/checkpoints/one"
    s3.put_object(Bucket=bucket, Key=kept, Body=b"x")
    never = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject"}
    policy = {"Version": "2012-10-17", "Statement": [never | {"Resource": f"arn:aws:s3:::{bucket}/{kept}"}]}
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    with pytest.raises(CredentialsError, match=f"s3://{bucket}/{kept}: AWS answers AccessDenied"):
        rig.down()
    assert Counter(step.kind for step in rig.told)[PartKind.OBJECTS] == 1, "and is not asked again at once"
    s3.delete_bucket_policy(Bucket=bucket)
    rig.down()
    assert not rig.leftovers()
