"""The stack's CloudFormation stack: read, made, changed, removed, and waited for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Set
from typing import Any

from bidbrain.aws.clients import Clients, code_of, tag_list, tag_map
from bidbrain.aws.stack.names import OWNER, TAG_OWNER, TAG_STACK, Names
from bidbrain.aws.stack.parts import Action, PartKind, StackState, Step, kind_of
from bidbrain.aws.stack.template import Wanted
from bidbrain.live.cloud import CloudError

POLL_S = 5.0
LIMIT_S = 1800
ITSELF = "AWS::CloudFormation::Stack"
MAKES, DELETES = frozenset({"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS"}), frozenset({"DELETE_IN_PROGRESS"})
GONE = (None, "DELETE_COMPLETE")

Tell = Callable[[Step], None]


class StackError(CloudError):
    """A stack that cannot be made or removed, in one sentence."""


class Formation:
    """One CloudFormation stack. Every call may be repeated; CloudFormation goes on when its caller is gone."""

    def __init__(self, aws: Clients, names: Names, sleep: Callable[[float], None] = time.sleep) -> None:
        self._aws, self._names, self._sleep = aws, names, sleep

    @property
    def _client(self) -> Any:
        return self._aws.client("cloudformation")

    def _described(self, stack: str) -> dict[str, Any] | None:
        from botocore.exceptions import ClientError

        try:
            return dict(self._client.describe_stacks(StackName=stack)["Stacks"][0])
        except ClientError as error:
            if code_of(error) == "ValidationError":  # CloudFormation does not know this stack
                return None
            raise

    def read(self) -> StackState | None:
        """The stack as it is; None where there is none."""
        found = self._described(self._names.plain)
        if found is None:
            return None
        template = None
        if found["StackStatus"] != "REVIEW_IN_PROGRESS":  # of a change set that was never carried out
            template = self._client.get_template(StackName=found["StackId"])["TemplateBody"]
        return StackState(
            found["StackId"],
            found["StackStatus"],
            tag_map(found.get("Tags", ())).get(TAG_STACK) == self._names.stack,
            {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", ())},
            template if isinstance(template, dict) and template else {"Resources": {}},
        )

    def resources(self) -> list[tuple[str, str]]:
        """The stack's resources as they are now: (AWS' id, kind)."""
        found = self._client.describe_stack_resources(StackName=self._names.plain)["StackResources"]
        return [
            (each["PhysicalResourceId"], kind_of(each["ResourceType"]))
            for each in found
            if each.get("PhysicalResourceId")
        ]

    def make(self, want: Wanted, template: str, tell: Tell) -> None:
        """A new stack; one whose making fails is removed by CloudFormation. Raises StackError with the reason."""
        tags = {**want.tags, TAG_STACK: want.names.stack, TAG_OWNER: OWNER}
        made = self._client.create_stack(
            StackName=self._names.plain,
            TemplateBody=template,
            Parameters=_parameters(want.parameters),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            OnFailure="DELETE",
            ClientRequestToken=secrets.token_hex(16),  # botocore may have to send it twice
            Tags=tag_list(tags),
        )
        self.finish(made["StackId"], tell)

    def change(self, stack_id: str, want: Wanted, template: str, tell: Tell) -> None:
        """Another content; CloudFormation takes back a change that fails. Raises StackError with the reason."""
        before = {event["EventId"] for event in self._events(stack_id)}
        self._client.update_stack(
            StackName=stack_id,
            TemplateBody=template,
            Parameters=_parameters(want.parameters),
            Capabilities=["CAPABILITY_NAMED_IAM"],
            ClientRequestToken=secrets.token_hex(16),
        )
        self.finish(stack_id, tell, before)

    def finish(self, stack_id: str, tell: Tell, before: Set[str] = frozenset()) -> None:
        """Wait until the stack is made or changed. Raises StackError where that fails. before: events already shown."""
        status = self.wait(stack_id, tell, before)
        if status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            raise StackError(f"{PartKind.STACK} {self._names.plain}: {self._why(stack_id) or status}")

    def remove(self, state: StackState, tell: Tell) -> str | None:
        """Delete the stack; its bucket stays. Returns None, or why part of the stack is still there."""
        if state.is_busy:
            self.wait(state.stack_id, tell)
        before = {event["EventId"] for event in self._events(state.stack_id)}
        self._client.delete_stack(StackName=state.stack_id)
        status = self.wait(state.stack_id, tell, before)
        return None if status in GONE else self._why(state.stack_id, DELETES) or status

    def wait(self, stack_id: str, tell: Tell, before: Set[str] = frozenset()) -> str | None:
        """The status when nothing is in progress any more; tells of each resource that is done meanwhile."""
        waited_s = 0.0
        shown = set(before)
        while True:
            found = self._described(stack_id)
            for event in reversed(self._events(stack_id) if found else []):
                if event["EventId"] not in shown:
                    shown.add(event["EventId"])
                    _tell_of(event, tell)
            status = None if found is None else str(found["StackStatus"])
            if status is None or not status.endswith("_IN_PROGRESS"):
                return status
            if waited_s >= LIMIT_S:
                name = f"{PartKind.STACK} {self._names.plain}"
                raise StackError(f"{name}: still {status} after {LIMIT_S} s; run the same command again")
            self._sleep(POLL_S)
            waited_s += POLL_S

    def _events(self, stack_id: str, begins: Set[str] = MAKES) -> list[dict[str, Any]]:
        """Of the last operation that began so, the newest first."""
        pages = self._client.get_paginator("describe_stack_events").paginate(StackName=stack_id)
        found = []
        for event in (each for page in pages for each in page["StackEvents"]):
            found.append(event)
            if event["ResourceType"] == ITSELF and event["ResourceStatus"] in begins:
                break
        return found

    def _why(self, stack_id: str, begins: Set[str] = MAKES) -> str | None:
        """The first resource of the last operation that failed: CloudFormation cancels the others because of it."""
        failed = [
            event
            for event in self._events(stack_id, begins)
            if event["ResourceStatus"].endswith("_FAILED") and event["ResourceType"] != ITSELF
        ]
        if not failed:
            return None
        first = failed[-1]
        name = first.get("PhysicalResourceId") or first["LogicalResourceId"]
        reason = " ".join(str(first.get("ResourceStatusReason", first["ResourceStatus"])).split())
        return f"{kind_of(first['ResourceType'])} {name}: {reason}"


def _parameters(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]


DONE = {
    "CREATE_COMPLETE": (Action.MAKE, "made"),
    "UPDATE_COMPLETE": (Action.CHANGE, "changed"),
    "DELETE_COMPLETE": (Action.REMOVE, "removed"),
}


def _tell_of(event: Mapping[str, Any], tell: Tell) -> None:
    done = DONE.get(event["ResourceStatus"])
    if done is not None and event["ResourceType"] != ITSELF:
        name = event.get("PhysicalResourceId") or event["LogicalResourceId"]
        tell(Step(done[0], kind_of(event["ResourceType"]), name, f"{done[1]} by CloudFormation"))
