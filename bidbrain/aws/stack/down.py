"""Removing a stack until nothing of it is left. May be interrupted and repeated anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from bidbrain.aws.calls import errors, refusal
from bidbrain.aws.clients import Clients, code_of
from bidbrain.aws.ec2 import BATCH
from bidbrain.aws.site import Site
from bidbrain.aws.stack.find import find, unless_missing
from bidbrain.aws.stack.formation import POLL_S, Formation, StackError, Tell
from bidbrain.aws.stack.links import clients_of, disconnect
from bidbrain.aws.stack.names import names_of
from bidbrain.aws.stack.parts import Part, PartKind, left, teardown

DOWN_LIMIT_S = 900
INSTANCES = (PartKind.HEAD, PartKind.INSTANCE)


class Remover:
    """Removes a stack until nothing of it is left."""

    def __init__(
        self, aws: Clients, site: Site, account: str, keep_data: bool, sleep: Callable[[float], None]
    ) -> None:
        self._aws, self._site, self._account, self._keep_data = aws, site, account, keep_data
        self._sleep = sleep
        self._names = names_of(site, account)
        self._why = ""  # the stack is still there

    def down(self, tell: Tell, limit_s: float = DOWN_LIMIT_S) -> None:
        """Raises StackError if something is still there after `limit_s`, CloudError; may be called again."""
        since_s = time.monotonic()
        while found := self.found():
            going = teardown(found)
            for (kind, _), group in groupby(going, key=lambda step: (step.kind, step.region)):
                steps = list(group)
                some = [step.part for step in steps if step.part is not None]
                for step in steps:
                    tell(step)
                with errors(f"{kind} {', '.join(part.name for part in some)}"):
                    self._remove(some, tell)
            if time.monotonic() - since_s > limit_s:
                rest = ", ".join(f"{each.kind} {each.name}" for each in found)
                raise StackError(
                    f"still there after {limit_s:.0f} s: {rest}{self._why}; say `proteus aws down` again"
                )
            if not going or self._why:
                self._sleep(POLL_S)  # instances are ending, or their network interfaces

    def found(self) -> tuple[Part, ...]:
        """The parts that are left and ours, without data that shall stay."""
        return left(find(self._aws, self._site, self._account), self._keep_data)

    def _remove(self, parts: Sequence[Part], tell: Tell) -> None:
        if parts[0].kind in INSTANCES:
            ids = [part.part_id for part in parts]
            ec2 = clients_of(self._aws, self._site, parts[0].region).client("ec2")
            for start in range(0, len(ids), BATCH):
                ec2.terminate_instances(InstanceIds=ids[start : start + BATCH])
            return
        for part in parts:
            with unless_missing():
                self._remove_one(part, tell)

    def _remove_one(self, part: Part, tell: Tell) -> None:
        aws = clients_of(self._aws, self._site, part.region)
        match part.kind:
            case PartKind.STACK | PartKind.REGION:
                self._stack(aws, part.region or self._site.region, tell)
            case PartKind.PEERING:
                disconnect(self._aws, self._site, part)
            case PartKind.FLEET:
                self._fleet(aws, part)
            case PartKind.VOLUME:
                aws.client("ec2").delete_volume(VolumeId=part.part_id)
            case PartKind.ADDRESS | PartKind.TOKEN | PartKind.AUTHORITY:
                self._aws.client("ssm").delete_parameter(Name=part.name)
            case PartKind.OBJECTS:
                self._objects()
            case PartKind.BUCKET:
                self._aws.client("s3").delete_bucket(Bucket=part.part_id)
            case _:
                raise AssertionError(part)

    def _stack(self, aws: Clients, region: str, tell: Tell) -> None:
        formation = Formation(aws, replace(self._names, region=region), self._sleep)
        if (state := formation.read()) is not None:
            why = formation.remove(state, tell)
            self._why = f" ({why})" if why else ""

    def _fleet(self, aws: Clients, part: Part) -> None:
        from botocore.exceptions import ClientError

        try:
            aws.client("ec2").delete_fleets(FleetIds=[part.part_id], TerminateInstances=True)
        except ClientError as error:
            if code_of(error) != "InvalidParameterCombination":  # it has no instances any more
                raise

    def _objects(self) -> None:
        s3, names = self._aws.client("s3"), self._names
        pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=names.bucket, Prefix=names.prefix)
        for page in pages:
            for upload in page.get("Uploads", ()):
                s3.abort_multipart_upload(Bucket=names.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=names.bucket, Prefix=names.prefix):
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
            if keys:
                answer = s3.delete_objects(Bucket=names.bucket, Delete={"Objects": keys, "Quiet": True})
                for each in answer.get("Errors", ()):  # the answer as a whole is none
                    where = f"s3://{names.bucket}/{each['Key']}"
                    raise refusal(each["Code"], each.get("Message", ""), where)
