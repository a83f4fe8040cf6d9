"""A bucket of the stack's name in another account: anybody can make one, and let everybody in."""

from __future__ import annotations

from typing import Any

import pytest

from bidbrain.aws.stack.parts import ForeignError
from tests.aws.layer import failure
from tests.aws.stack_rig import StackRig

pytestmark = pytest.mark.aws


class _BucketOwners:
    """S3 as AWS has it: a call that says whose bucket it expects is refused where that is another account's."""

    def __init__(self, s3: Any, theirs: str) -> None:
        self._s3, self._theirs = s3, theirs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def get_bucket_tagging(self, **request: str) -> Any:
        if request["Bucket"] == self._theirs and "ExpectedBucketOwner" in request:
            raise failure("AccessDenied", "Access Denied", "GetBucketTagging", 403)
        return self._s3.get_bucket_tagging(**request)


def test_a_bucket_of_ours_by_name_and_tag_that_another_account_made_is_not_used(
    moto_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner would give the machines their package."""
    rig = StackRig(moto_url, "bucket-of-another")
    s3, bucket = rig.plain.client("s3"), rig.want.names.bucket
    s3.create_bucket(Bucket=bucket)
    tags = [{"Key": "proteus:stack", "Value": rig.site.name}]
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": tags})
    limits = f"proteus/{rig.site.name}/buyer/limits.json"
    s3.put_object(Bucket=bucket, Key=limits, Body=b"theirs")
    owners, client = _BucketOwners(s3, bucket), rig.aws.client
    monkeypatch.setattr(
        rig.aws, "client", lambda name, *more: owners if name == "s3" else client(name, *more)
    )
    with pytest.raises(ForeignError, match=f"bucket {bucket}: it exists and is not ours"):
        rig.up()
    rig.down()
    assert not rig.told and rig.leftovers() == [bucket], "what it has is left alone, too"
    monkeypatch.undo()  # for the end of the test it is ours
    rig.down()
    assert not rig.leftovers()
