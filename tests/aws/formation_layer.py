"""CloudFormation by moto, with what moto leaves out: time that passes, events of resources, and failed makings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from botocore.exceptions import ClientError

STACK = "AWS::CloudFormation::Stack"


class FormationLayer:
    """A boto3 CloudFormation client; calls that are not named here go through as they are."""

    def __init__(self, client: Any, ec2: Any = None) -> None:
        """ec2: a client of the region, where stacks have networks."""
        self._client, self._ec2 = client, ec2
        self.looks = 0  # so many looks at a stack show its last change in progress
        self.fails: dict[str, str] = {}  # logical id -> why making or changing the resource fails, once
        self.clings: dict[str, str] = {}  # logical id -> why deleting the resource fails, once
        self._left: dict[str, tuple[int, str]] = {}  # stack -> (looks, what is in progress)
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._status: dict[str, str] = {}  # of stacks whose last change failed
        self._number = count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _told(self, stack: str, kind: str, logical: str, status: str, why: str = "") -> None:
        event = {
            "EventId": f"event-{next(self._number)}",
            "StackId": stack,
            "LogicalResourceId": logical,
            "PhysicalResourceId": logical.lower(),
            "ResourceType": kind,
            "ResourceStatus": status,
            "ResourceStatusReason": why,
        }
        self._events.setdefault(stack, []).insert(0, event)

    def create_stack(self, **request: Any) -> dict[str, Any]:
        """A stack that fails is deleted, as OnFailure says."""
        assert request["OnFailure"] == "DELETE"
        stack = f"arn:aws:cloudformation:us-east-1:1:stack/{request['StackName']}/failed-{next(self._number)}"
        why, logical = "", next(iter(self.fails), "Unknown")
        try:
            if logical in self.fails:
                why = self.fails.pop(logical)
            else:
                stack = str(self._client.create_stack(**request)["StackId"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "AlreadyExistsException":
                raise
            why = str(error.response["Error"]["Message"])
            self._client.delete_stack(StackName=request["StackName"])
        self._began(stack, "CREATE", request, why, logical)
        if why:
            self._status[stack] = "DELETE_COMPLETE"
        return {"StackId": stack}

    def _began(self, stack: str, verb: str, request: dict[str, Any], why: str, logical: str) -> None:
        self._told(stack, STACK, request["StackName"], f"{verb}_IN_PROGRESS", "User Initiated")
        for name, resource in json.loads(request["TemplateBody"])["Resources"].items():
            failed = why and (name == logical or logical == "Unknown")
            if failed:
                self._told(stack, resource["Type"], name, f"{verb}_FAILED", why)
                self._told(stack, "AWS::SQS::Queue", "Queue", f"{verb}_FAILED", "Resource creation cancelled")
                break
            self._told(stack, resource["Type"], name, f"{verb}_COMPLETE")
        self._left[stack] = (self.looks, f"{verb}_IN_PROGRESS")

    def update_stack(self, **request: Any) -> dict[str, Any]:
        """A change that fails is taken back."""
        stack = request["StackName"]
        self._check_idle(stack)
        logical = next(iter(self.fails), "Unknown")
        why = self.fails.pop(logical, "")
        if not why:
            self._client.update_stack(**request)
            self._status.pop(stack, None)
        else:
            self._status[stack] = "UPDATE_ROLLBACK_COMPLETE"
        self._began(stack, "UPDATE", request, why, logical)
        return {"StackId": stack}

    def delete_stack(self, **request: Any) -> dict[str, Any]:
        stack = request["StackName"]
        if self._left.get(stack, (0, ""))[1].startswith("UPDATE"):
            self._check_idle(stack)
        self._told(stack, STACK, stack, "DELETE_IN_PROGRESS", "User Initiated")
        if self.clings:
            logical, why = self.clings.popitem()
            self._told(stack, "AWS::EC2::SecurityGroup", logical, "DELETE_FAILED", why)
            self._status[stack] = "DELETE_FAILED"
        else:
            if self._ec2 is not None:
                self._delete_network(stack)
            self._client.delete_stack(**request)
            self._status[stack] = "DELETE_COMPLETE"
        self._left[stack] = (self.looks, "DELETE_IN_PROGRESS")
        return {}

    def _delete_network(self, stack: str) -> None:
        """moto leaves route tables and gateways, and then cannot delete their network."""
        found = self._client.describe_stack_resources(StackName=stack)["StackResources"]
        ids = {each.get("ResourceType"): each.get("PhysicalResourceId", "") for each in found}
        table, gateway = ids["AWS::EC2::RouteTable"], ids["AWS::EC2::InternetGateway"]
        for each in self._ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Associations"]:
            self._ec2.disassociate_route_table(AssociationId=each["RouteTableAssociationId"])
        self._ec2.delete_route_table(RouteTableId=table)
        self._ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=ids["AWS::EC2::VPC"])
        self._ec2.delete_internet_gateway(InternetGatewayId=gateway)

    def _check_idle(self, stack: str) -> None:
        if self._left.get(stack, (0, ""))[0]:
            error = {"Code": "ValidationError", "Message": "Stack is in progress and can not be updated"}
            raise ClientError({"Error": error}, "UpdateStack")  # type: ignore[typeddict-item]

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if StackName in self._status and self._status[StackName] == "DELETE_COMPLETE":
            found = {"StackId": StackName, "StackStatus": "DELETE_COMPLETE"}
        else:
            found = dict(self._client.describe_stacks(StackName=StackName)["Stacks"][0])
        stack = found["StackId"]
        found["StackStatus"] = self._status.get(stack, found["StackStatus"])
        looks, status = self._left.get(stack, (0, ""))
        if looks:
            self._left[stack] = (looks - 1, status)
            found["StackStatus"] = status
        return {"Stacks": [found]}

    def get_paginator(self, name: str) -> Any:
        assert name == "describe_stack_events"
        return _EventPages(self._events)


class _EventPages:
    """The newest event first, two to a page."""

    def __init__(self, events: dict[str, list[dict[str, Any]]]) -> None:
        self._events = events

    def paginate(self, StackName: str) -> Iterator[dict[str, Any]]:
        found = self._events.get(StackName, [])
        for start in range(0, len(found), 2):
            yield {"StackEvents": found[start : start + 2]}
