"""Making a stack. It may be interrupted anywhere and repeated: each time the stack is looked at, and one step is taken.

The head must not be made twice. The token of its launch follows from the CloudFormation stack, the request and how many
launches have ended, so a repeated launch is the same launch to EC2.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Clients, code_of, tag_list
from bidbrain.aws.site import Site
from bidbrain.aws.stack.authority import Authority
from bidbrain.aws.stack.find import MISSING, find, launch_template
from bidbrain.aws.stack.formation import POLL_S, Formation, StackError, Tell
from bidbrain.aws.stack.links import connect
from bidbrain.aws.stack.names import tags_of
from bidbrain.aws.stack.parts import Action, Found, Part, PartKind, StackState, Step, steps, template_for
from bidbrain.aws.stack.template import Wanted

LAG_S = 90  # until what was made is known to all of AWS
LINKED = ("spot.amazonaws.com", "ec2fleet.amazonaws.com")
# EC2 says the last one of an instance profile that it does not know yet.
NOT_KNOWN_YET = {*MISSING, "InvalidParameterValue"}
ENDED = "IdempotentInstanceTerminated"


@dataclass(frozen=True)
class Package:
    """The package that machines install. wheel: the name of its file. constraints: a pip constraints file."""

    wheel: str
    content: bytes
    constraints: str


@dataclass(frozen=True)
class Head:
    """The head as it runs."""

    instance_id: str
    ip: str


class Builder:
    """Makes the missing parts. `sleep` waits for AWS."""

    def __init__(
        self, aws: Clients, site: Site, want: Wanted, package: Package, sleep: Callable[[float], None]
    ) -> None:
        self._aws, self._site, self._want, self._package, self._sleep = aws, site, want, package, sleep
        self._formation = Formation(aws, want.names, sleep)

    def up(self, tell: Tell) -> Head:
        """Bring everything into being. Raises CloudError, ForeignError; may be called again at any time."""
        with errors("service-linked roles"):
            self._linked_roles()
        shown: set[tuple[str, str, Action]] = set()
        waited_s = 0.0
        while True:
            found = find(self._aws, self._site, self._want.names.account)
            step = self._next(found, shown, tell)
            if step is None:
                head = found.of(PartKind.HEAD)
                assert head is not None
                return Head(head.part_id, head.value)
            if (step.kind, step.name, step.action) not in shown:
                shown.add((step.kind, step.name, step.action))
                tell(step)
                waited_s = 0.0
            elif waited_s >= LAG_S:
                raise StackError(f"{step.kind} {step.name}: made, and not listed after {LAG_S} s")
            else:
                self._sleep(POLL_S)
                waited_s += POLL_S
            self._try(step, found, tell, is_last=waited_s >= LAG_S)

    def _next(self, found: Found, shown: set[tuple[str, str, Action]], tell: Tell) -> Step | None:
        """The first step that changes something; parts before it that are kept are shown once."""
        for step in steps(self._want, found):
            if step.action is not Action.KEEP:
                return step
            if not any(each[:2] == (step.kind, step.name) for each in shown):
                shown.add((step.kind, step.name, step.action))
                tell(step)
        return None

    def _try(self, step: Step, found: Found, tell: Tell, *, is_last: bool) -> None:
        """Take a step; a part that AWS does not know everywhere yet is an error only the last time."""
        from botocore.exceptions import ClientError

        with errors(f"{step.kind} {step.name}"):
            try:
                self._take(step, found, tell)
            except ClientError as error:
                if code_of(error) not in NOT_KNOWN_YET or is_last:
                    raise

    def _take(self, step: Step, found: Found, tell: Tell) -> None:
        match step.kind:
            case PartKind.STACK:
                template = json.dumps(template_for(self._want, found))
                self._stack(step, self._formation, self._want, found.stack, template, tell)
            case PartKind.REGION:
                want = self._want.elsewhere[step.region]
                formation = Formation(self._aws.at(step.region), want.names, self._sleep)
                state, template = found.elsewhere.get(step.region), json.dumps(want.template)
                self._stack(step, formation, want, state, template, tell)
            case PartKind.PEERING:
                connect(self._aws, self._site, step.region, step.other_region, step.part)
            case PartKind.PACKAGE:
                self._objects(step.name)
            case PartKind.LIMITS:
                what = {"Bucket": self._want.names.bucket, "Key": self._want.names.limits}
                self._aws.client("s3").put_object(**what, Body=self._want.limits.encode())
            case PartKind.TOKEN:
                self._parameter(step.name, "token", secrets.token_hex(32), "SecureString")
            case PartKind.AUTHORITY:
                made = Authority.made(self._site.name, time.time())
                self._parameter(step.name, "authority", made.text(), "SecureString")
            case PartKind.HEAD:
                self._launch(found)
            case PartKind.ADDRESS:
                self._address(step, found.of(PartKind.HEAD))
            case _:
                raise AssertionError(step)

    def _linked_roles(self) -> None:
        """EC2's own roles for spot machines and fleets: one per account, shared by all, never removed.

        Not in the template: CloudFormation fails where an account has them already.
        """
        from botocore.exceptions import ClientError

        for service in LINKED:
            try:
                self._aws.client("iam").create_service_linked_role(AWSServiceName=service)
            except ClientError as error:
                # InvalidInput: it is there. Without the right to make it, it is most likely there as well.
                if code_of(error) not in ("InvalidInput", "AccessDenied", "EntityAlreadyExists"):
                    raise

    def _stack(
        self,
        step: Step,
        formation: Formation,
        want: Wanted,
        state: StackState | None,
        template: str,
        tell: Tell,
    ) -> None:
        """Take the step of a CloudFormation stack, in the home region or another."""
        from botocore.exceptions import ClientError

        if state is not None and state.status == "DELETE_IN_PROGRESS":
            formation.wait(state.stack_id, tell)
        elif state is not None and step.action is Action.FINISH:
            formation.finish(state.stack_id, tell)
        elif state is not None and step.action is Action.CHANGE:
            formation.change(state.stack_id, want, template, tell)
        else:
            if state is not None and (why := formation.remove(state, tell)) is not None:
                raise StackError(f"{step.kind} {step.name}: {why}; run `proteus aws down` first")
            try:
                formation.make(want, template, tell)
            except ClientError as error:
                if code_of(error) != "AlreadyExistsException":  # an answer was lost: the next look finds it
                    raise

    def _objects(self, folder: str) -> None:
        s3, package, bucket = self._aws.client("s3"), self._package, self._want.names.bucket
        s3.put_object(Bucket=bucket, Key=f"{folder}/{package.wheel}", Body=package.content)
        # Last: by this object a whole package is known.
        s3.put_object(Bucket=bucket, Key=f"{folder}/constraints.txt", Body=package.constraints.encode())

    def _parameter(self, name: str, part: str, value: str, kind: str) -> None:
        from botocore.exceptions import ClientError

        tags = tag_list(tags_of(self._site, part))
        try:
            self._aws.client("ssm").put_parameter(Name=name, Value=value, Type=kind, Tags=tags)
        except ClientError as error:
            # It is not listed yet; or another `up` was faster: its secret is as good, its address is looked at again.
            if code_of(error) != "ParameterAlreadyExists":
                raise

    def _address(self, step: Step, head: Part | None) -> None:
        assert head is not None, "the head comes before its address"
        if step.action is Action.MAKE:
            self._parameter(step.name, "address", head.value, "String")
        else:
            what = {"Name": step.name, "Value": head.value, "Type": "String"}
            self._aws.client("ssm").put_parameter(**what, Overwrite=True)

    def _launch(self, found: Found) -> None:
        """The head, once. EC2 answers a token that it has seen with the instance of then, which may be ending, or with
        `ENDED`."""
        from botocore.exceptions import ClientError

        ec2 = self._aws.client("ec2")
        template = launch_template(ec2, self._want.names.head)
        if template is None or found.stack is None:
            return  # not listed yet
        request = {
            "LaunchTemplate": {"LaunchTemplateId": template[0], "Version": template[1]},
            "SubnetId": self._want.head_subnet,
            "MinCount": 1,
            "MaxCount": 1,
        }
        for launch in count():
            content = json.dumps([found.stack.stack_id, request, launch], sort_keys=True)
            token = hashlib.sha256(content.encode()).hexdigest()
            try:
                (made,) = ec2.run_instances(**request, ClientToken=token)["Instances"]
            except ClientError as error:
                if code_of(error) == ENDED:
                    continue
                raise
            if made["State"]["Name"] not in ("terminated", "shutting-down"):
                return
