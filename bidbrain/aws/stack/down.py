"""Removing a stack until nothing of it is left. May be interrupted and repeated anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from bidbrain.aws.calls import errors
from bidbrain.aws.ec2 import BATCH
from bidbrain.aws.site import Site
from bidbrain.aws.stack.aws import POLL_S, StackError, Tell
from bidbrain.aws.stack.find import Clients, code_of, find, unless_missing
from bidbrain.aws.stack.up import Found, Kind, Step, names_of, teardown

DOWN_LIMIT_S = 900
INSTANCES = (Kind.HEAD, Kind.MACHINE)


class Wrecker:
    """Removes a stack until nothing of it is left."""

    def __init__(
        self, aws: Clients, site: Site, account: str, keep_data: bool, sleep: Callable[[float], None]
    ) -> None:
        self._aws, self._site, self._account, self._keep_data = aws, site, account, keep_data
        self._sleep = sleep
        self._names = names_of(site, account)

    def down(self, tell: Tell, limit_s: float = DOWN_LIMIT_S) -> None:
        """Raises StackError if something is still there after `limit_s`, CloudError; may be called again."""
        since_s = time.monotonic()
        while found := self.found():
            going = teardown(found, self._keep_data)
            for kind, group in groupby(going, key=lambda step: step.kind):
                some = tuple(group)
                for step in some:
                    tell(step)
                with errors(f"{kind} {', '.join(step.name for step in some)}"):
                    self._remove(kind, some)
            if time.monotonic() - since_s > limit_s:
                left = ", ".join(f"{each.kind} {each.name}" for each in found)
                raise StackError(f"still there after {limit_s:.0f} s: {left}; say `proteus aws down` again")
            if not going:
                self._sleep(POLL_S)  # machines are ending

    def found(self) -> tuple[Found, ...]:
        """What is left and ours, without what shall stay."""
        found = find(self._aws, self._site, self._account)
        stays = (Kind.OBJECTS, Kind.BUCKET) if self._keep_data else ()
        return tuple(e for e in found if e.is_ours and e.kind is not Kind.PACKAGE and e.kind not in stays)

    def _remove(self, kind: Kind, some: Sequence[Step]) -> None:
        parts = [step.found for step in some if step.found is not None]
        if kind in INSTANCES:
            self._instances([found.resource_id for found in parts])
            return
        remove = {
            Kind.TEMPLATE: self._template,
            Kind.FLEET: self._fleet,
            Kind.RULE: self._rule,
            Kind.QUEUE: self._queue,
            Kind.ADDRESS: self._parameter,
            Kind.TOKEN: self._parameter,
            Kind.PROFILE: self._profile,
            Kind.ROLE: self._role,
            Kind.VOLUME: self._volume,
            Kind.GROUP: self._group,
            Kind.OBJECTS: self._objects,
            Kind.BUCKET: self._bucket,
        }[kind]
        for found in parts:
            with unless_missing():
                remove(found)

    def _instances(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), BATCH):
            self._aws.client("ec2").terminate_instances(InstanceIds=list(ids[start : start + BATCH]))

    def _template(self, found: Found) -> None:
        self._aws.client("ec2").delete_launch_template(LaunchTemplateId=found.resource_id)

    def _fleet(self, found: Found) -> None:
        from botocore.exceptions import ClientError

        try:
            self._aws.client("ec2").delete_fleets(FleetIds=[found.resource_id], TerminateInstances=True)
        except ClientError as error:
            if code_of(error) != "InvalidParameterCombination":  # it has no machines any more
                raise

    def _rule(self, found: Found) -> None:
        events = self._aws.client("events")
        events.remove_targets(Rule=found.name, Ids=["queue"])
        events.delete_rule(Name=found.name)

    def _queue(self, found: Found) -> None:
        self._aws.client("sqs").delete_queue(QueueUrl=found.resource_id)

    def _parameter(self, found: Found) -> None:
        self._aws.client("ssm").delete_parameter(Name=found.name)

    def _profile(self, found: Found) -> None:
        iam = self._aws.client("iam")
        there = iam.get_instance_profile(InstanceProfileName=found.name)["InstanceProfile"]
        for role in there["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=found.name, RoleName=role["RoleName"])
        iam.delete_instance_profile(InstanceProfileName=found.name)

    def _role(self, found: Found) -> None:
        iam = self._aws.client("iam")
        with unless_missing():
            iam.delete_role_policy(RoleName=found.name, PolicyName="proteus")
        iam.delete_role(RoleName=found.name)

    def _volume(self, found: Found) -> None:
        self._aws.client("ec2").delete_volume(VolumeId=found.resource_id)

    def _group(self, found: Found) -> None:
        from botocore.exceptions import ClientError

        try:
            self._aws.client("ec2").delete_security_group(GroupId=found.resource_id)
        except ClientError as error:
            if code_of(error) != "DependencyViolation":  # an interface of a machine that has just ended
                raise
            self._sleep(POLL_S)

    def _objects(self, found: Found) -> None:
        s3, names = self._aws.client("s3"), self._names
        pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=names.bucket, Prefix=names.prefix)
        for page in pages:
            for upload in page.get("Uploads", ()):
                s3.abort_multipart_upload(Bucket=names.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=names.bucket, Prefix=names.prefix):
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
            if keys:
                s3.delete_objects(Bucket=names.bucket, Delete={"Objects": keys, "Quiet": True})

    def _bucket(self, found: Found) -> None:
        self._aws.client("s3").delete_bucket(Bucket=found.resource_id)
