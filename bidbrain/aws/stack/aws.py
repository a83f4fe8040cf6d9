"""Making the parts of a stack. Every step may be repeated, and interrupted anywhere.

What a part holds is written first and its digest last, so that an interrupted step is seen as such the next time. The
head is the one thing that must not be made twice: the token of its launch is written down (a tag of the security
group) before the launch, and used again until an instance with it was seen.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bidbrain.aws.calls import errors
from bidbrain.aws.notices import EVENT_PATTERN
from bidbrain.aws.site import Site
from bidbrain.aws.stack.find import MISSING, Clients, code_of, find, named, tag_map
from bidbrain.aws.stack.policies import head_policy, node_policy, queue_policy, trust_policy
from bidbrain.aws.stack.up import (
    TAG_LAUNCH,
    Action,
    Found,
    Ground,
    Kind,
    Resource,
    Step,
    desired,
    head_content,
    names_of,
    steps,
    tags_of,
    template_content,
)
from bidbrain.aws.template import ensure_template
from bidbrain.live.cloud import CloudError

MESSAGES_S = 3600  # a notice that nobody has read for so long is no news
PROFILE_WAIT_S = 90  # until EC2 knows a new instance profile
LAG_S = 90  # until what was made is known to all of AWS
POLL_S = 5.0
LINKED = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")

NAMED = (Kind.GROUP, Kind.HEAD)  # the content of later parts holds what these are called

Tell = Callable[[Step], None]


class StackError(CloudError):
    """A stack that cannot be made or removed, in one sentence."""


@dataclass(frozen=True)
class Package:
    """What machines install. digest: of all of it."""

    wheel: Path
    constraints: str
    digest: str


@dataclass(frozen=True)
class Head:
    """The head as it runs."""

    instance_id: str
    ip: str


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


class Builder:
    """Makes what is missing. `sleep` and the token's maker are arguments for the tests' sake."""

    def __init__(
        self, aws: Clients, site: Site, ground: Ground, package: Package, sleep: Callable[[float], None]
    ) -> None:
        self._aws, self._site, self._package, self._sleep = aws, site, package, sleep
        self.ground = ground
        self._names = names_of(site, ground.account)

    def up(self, tell: Tell) -> Head:
        """Bring everything into being. Raises CloudError, ForeignError; may be called again at any time."""
        with errors("service-linked roles"):
            self._linked_roles()
        found = self._look()
        for index in range(len(desired(self._site, self.ground))):
            found = self._bring(index, found, tell)
        assert self._named.head_id is not None
        assert self._named.head_ip is not None
        return Head(self._named.head_id, self._named.head_ip)

    def _bring(self, index: int, found: tuple[Found, ...], tell: Tell) -> tuple[Found, ...]:
        """One part into being; what was found, or is found now. What was just made may not be known everywhere yet."""
        from botocore.exceptions import ClientError

        waited_s = 0.0
        while True:
            resource = desired(self._site, self.ground)[index]
            (step,) = steps([resource], found)
            if not waited_s:
                tell(step)
            if step.action is Action.KEEP:
                return found
            with errors(f"{step.kind} {step.name}"):
                try:
                    self._make(step, resource)
                    return self._look_for(resource) if resource.kind in NAMED else found
                except ClientError as error:
                    if code_of(error) not in MISSING or waited_s >= LAG_S:
                        raise
            self._sleep(POLL_S)
            waited_s += POLL_S
            found = self._look()

    def _look_for(self, resource: Resource) -> tuple[Found, ...]:
        """What is found once this part is listed. Raises StackError if it is not for too long."""
        waited_s = 0.0
        while True:
            found = self._look()
            if any((each.kind, each.name) == (resource.kind, resource.name) for each in found):
                return found
            if waited_s >= LAG_S:
                raise StackError(f"{resource.kind} {resource.name}: made, and not listed after {LAG_S:.0f} s")
            self._sleep(POLL_S)
            waited_s += POLL_S

    def _look(self) -> tuple[Found, ...]:
        found = find(self._aws, self._site, self.ground.account)
        self._named = named(self._aws, found)
        self.ground = replace(self.ground, group_id=self._named.group_id, head_ip=self._named.head_ip)
        return found

    def _tags(self, part: str, resource: Resource | None = None) -> list[dict[str, str]]:
        return tag_list(tags_of(self._site, part, None if resource is None else resource.digest))

    def _make(self, step: Step, resource: Resource) -> None:
        {
            Kind.BUCKET: self._bucket,
            Kind.PACKAGE: self._objects,
            Kind.TOKEN: self._token,
            Kind.GROUP: self._group,
            Kind.ROLE: self._role,
            Kind.PROFILE: self._profile,
            Kind.QUEUE: self._queue,
            Kind.RULE: self._rule,
            Kind.TEMPLATE: self._template,
            Kind.HEAD: self._launch,
            Kind.ADDRESS: self._address,
        }[resource.kind](step, resource)

    def _linked_roles(self) -> None:
        """EC2's own roles for spot machines and fleets: one per account, shared by all, never removed."""
        from botocore.exceptions import ClientError

        for service in LINKED:
            try:
                self._aws.client("iam").create_service_linked_role(AWSServiceName=service)
            except ClientError as error:
                # InvalidInput: it is there. Without the right to make it, it is most likely there as well.
                if code_of(error) not in ("InvalidInput", "AccessDenied", "EntityAlreadyExists"):
                    raise

    def _bucket(self, step: Step, resource: Resource) -> None:
        from botocore.exceptions import ClientError

        s3 = self._aws.client("s3")
        where = {"LocationConstraint": self._site.region}
        more = {} if self._site.region == "us-east-1" else {"CreateBucketConfiguration": where}
        try:
            s3.create_bucket(Bucket=resource.name, **more)
        except ClientError as error:
            if code_of(error) != "BucketAlreadyOwnedByYou":
                raise
        closed = dict.fromkeys(
            ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
        )
        s3.put_public_access_block(Bucket=resource.name, PublicAccessBlockConfiguration=closed)
        s3.put_bucket_tagging(Bucket=resource.name, Tagging={"TagSet": self._tags("data", resource)})

    def _objects(self, step: Step, resource: Resource) -> None:
        s3, package = self._aws.client("s3"), self._package
        s3.upload_file(str(package.wheel), self._names.bucket, f"{resource.name}/{package.wheel.name}")
        # Last: by this object a whole package is known.
        key = f"{resource.name}/constraints.txt"
        s3.put_object(Bucket=self._names.bucket, Key=key, Body=package.constraints.encode())

    def _token(self, step: Step, resource: Resource) -> None:
        from botocore.exceptions import ClientError

        try:
            self._aws.client("ssm").put_parameter(
                Name=resource.name,
                Value=secrets.token_hex(32),
                Type="SecureString",
                Tags=self._tags("token", resource),
            )
        except ClientError as error:
            if code_of(error) != "ParameterAlreadyExists":  # somebody was faster; theirs is as good
                raise

    def _address(self, step: Step, resource: Resource) -> None:
        ssm = self._aws.client("ssm")
        value = str(resource.content["ip"])
        assert value, "the head comes before its address"
        if step.action is Action.MAKE:
            ssm.put_parameter(
                Name=resource.name, Value=value, Type="String", Tags=self._tags("address", resource)
            )
        else:
            ssm.put_parameter(Name=resource.name, Value=value, Type="String", Overwrite=True)

    def _group(self, step: Step, resource: Resource) -> None:
        from botocore.exceptions import ClientError

        ec2 = self._aws.client("ec2")
        if step.action is Action.CHANGE:
            raise StackError(
                f"security group {resource.name}: it is in another VPC; say `proteus aws down` first"
            )
        if step.found is None:
            made = ec2.create_security_group(
                GroupName=resource.name,
                Description="Proteus: everything between its machines, nothing from outside",
                VpcId=self.ground.vpc,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": self._tags("group")}],
            )
            group_id = made["GroupId"]
        else:
            group_id = step.found.resource_id
        inside = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
        try:
            ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=inside)
        except ClientError as error:
            if code_of(error) != "InvalidPermission.Duplicate":
                raise
        ec2.create_tags(Resources=[group_id], Tags=self._tags("group", resource))

    def _role(self, step: Step, resource: Resource) -> None:
        iam, name = self._aws.client("iam"), resource.name
        if step.found is None:
            iam.create_role(
                RoleName=name,
                AssumeRolePolicyDocument=json.dumps(trust_policy(self._names)),
                Description="A machine of a Proteus stack",
                Tags=self._tags("role"),
            )
        policy = (head_policy if name == self._names.head else node_policy)(self._names)
        iam.put_role_policy(RoleName=name, PolicyName="proteus", PolicyDocument=json.dumps(policy))
        iam.tag_role(RoleName=name, Tags=self._tags("role", resource))

    def _profile(self, step: Step, resource: Resource) -> None:
        iam, name = self._aws.client("iam"), resource.name
        if step.found is None:
            iam.create_instance_profile(InstanceProfileName=name, Tags=self._tags("profile", resource))
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)

    def _queue(self, step: Step, resource: Resource) -> None:
        sqs = self._aws.client("sqs")
        if step.found is None:
            url = sqs.create_queue(QueueName=resource.name, tags=tags_of(self._site, "queue"))["QueueUrl"]
        else:
            url = step.found.resource_id
        policy = json.dumps(queue_policy(self._names))
        settings = {
            "Policy": policy,
            "MessageRetentionPeriod": str(MESSAGES_S),
            "SqsManagedSseEnabled": "true",
        }
        sqs.set_queue_attributes(QueueUrl=url, Attributes=settings)
        sqs.tag_queue(QueueUrl=url, Tags=tags_of(self._site, "queue", resource.digest))

    def _rule(self, step: Step, resource: Resource) -> None:
        events = self._aws.client("events")
        pattern = json.dumps(EVENT_PATTERN)
        if step.found is None:
            tags = self._tags("rule")
            events.put_rule(Name=resource.name, EventPattern=pattern, State="ENABLED", Tags=tags)
        else:
            events.put_rule(Name=resource.name, EventPattern=pattern, State="ENABLED")
        targets = [{"Id": "queue", "Arn": self._names.queue_arn}]
        failed = events.put_targets(Rule=resource.name, Targets=targets).get("FailedEntries", ())
        if failed:
            raise StackError(f"event rule {resource.name}: {failed[0].get('ErrorMessage')}")
        events.tag_resource(ResourceARN=self._names.rule_arn, Tags=self._tags("rule", resource))

    def _template(self, step: Step, resource: Resource) -> None:
        data = template_content(self._site, self.ground)
        tags = tags_of(self._site, "template")
        ensure_template(self._aws.client("ec2"), resource.name, data, tags)

    def _launch(self, step: Step, resource: Resource) -> None:
        """The head, once. EC2 may not know a new instance profile yet: then it is asked again."""
        from botocore.exceptions import ClientError

        ec2 = self._aws.client("ec2")
        waited_s = 0.0
        while True:
            token = self._launch_token()
            tags = tag_list(
                {
                    **tags_of(self._site, "head", resource.digest),
                    TAG_LAUNCH: token,
                    "Name": self._names.head,
                }
            )
            volume = tag_list(tags_of(self._site, "head"))
            try:
                made = ec2.run_instances(
                    **head_content(self._site, self.ground),
                    ClientToken=token,
                    TagSpecifications=[
                        {"ResourceType": "instance", "Tags": tags},
                        {"ResourceType": "volume", "Tags": volume},
                    ],
                )["Instances"][0]
            except ClientError as error:
                is_profile = "nstance profile" in str(error) or "iamInstanceProfile" in str(error)
                if not is_profile or waited_s >= PROFILE_WAIT_S:
                    raise
                waited_s += POLL_S
                self._sleep(POLL_S)
                continue
            if made["State"]["Name"] not in ("terminated", "shutting-down"):
                return
            self._new_token()  # the answer to an old launch whose instance has ended

    def _launch_token(self) -> str:
        """The token of the launch that is under way, or a new one where its instance was seen and is gone."""
        ec2 = self._aws.client("ec2")
        (group,) = ec2.describe_security_groups(GroupIds=[self.ground.group_id])["SecurityGroups"]
        token = tag_map(group.get("Tags", ())).get(TAG_LAUNCH)
        if token is not None:
            what = [{"Name": f"tag:{TAG_LAUNCH}", "Values": [token]}]
            if not ec2.describe_instances(Filters=what)["Reservations"]:
                return token
        return self._new_token()

    def _new_token(self) -> str:
        token = secrets.token_hex(16)
        tags = tag_list({TAG_LAUNCH: token})
        self._aws.client("ec2").create_tags(Resources=[self.ground.group_id], Tags=tags)
        return token
