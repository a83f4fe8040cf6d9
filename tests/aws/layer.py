"""EC2 by moto's server, with what moto leaves out: tokens that count, full pools, throttling, evictions, prices."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

import botocore.loaders
import botocore.session
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from moto import backends
from moto.core import responses
from moto.moto_server.werkzeug_app import MotoRequestHandler
from moto.server import ThreadedMotoServer

from bidbrain.aws.answers import TAG_JOB
from bidbrain.aws.calls import client

REGION = "us-east-1"
IMAGE = "ami-12c6146b"  # one that moto knows
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
}


@contextmanager
def moto_server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request is too much
    # By HTTP 1.0 each call makes a connection, and the server a thread for it: a millisecond more.
    MotoRequestHandler.protocol_version = "HTTP/1.1"
    _ask_once()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _ask_once() -> None:
    """What moto looks up again for every request, and what does not change, is looked up once.

    It makes session after session to ask for regions, and each would read botocore's descriptions again. For every
    request it lists its own folder and the methods of the class that answers, which took 0.8 ms of 4.
    """
    botocore.session.create_loader = cache(botocore.loaders.create_loader)
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    responses.method_names_from_class = cache(responses.method_names_from_class)


def forget_ended() -> None:
    """moto keeps instances that have ended for ever, and every listing goes through them and their tags."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import ec2_backends

    for ec2 in ec2_backends[DEFAULT_ACCOUNT_ID].values():
        for number, reservation in list(ec2.reservations.items()):
            if all(instance.state == "terminated" for instance in reservation.instances):
                del ec2.reservations[number]
                for instance in reservation.instances:
                    ec2.tags.pop(instance.id, None)


class Ec2Layer:
    """A boto3 EC2 client; calls that are not named here go through as they are."""

    def __init__(self, url: str, seed: int = 0, region: str = REGION) -> None:
        self.client = client("ec2", region, url)
        self.rng = random.Random(seed)
        self.throttled = 0.0  # share of purchases that are refused before they are made
        self.lost = 0.0  # share whose answer never comes
        self.full: set[str] = set()  # zones without capacity
        self.problem = "InsufficientInstanceCapacity"  # what a fleet says of one
        self.right_version: str | None = None  # of the template, whose image alone may be bought
        self.throttled_lists: set[str] = set()  # lists that are refused, by their name in boto3
        self.most: dict[str, int] = {}  # zone -> machines that a fleet gets at most
        self.prices: dict[tuple[str, str], float] = {}  # (type, zone) -> $/h
        self.is_silent = False  # no call is answered
        self.ends_unanswered = False  # machines end, and the answer never comes
        self.unlisted: set[str] = set()  # machines that were just bought: no call knows them yet
        self.seen = Counter[str]()
        self.bought: dict[str, list[str]] = {}  # token -> machines
        self._answers: dict[str, tuple[str, dict[str, Any]]] = {}
        self._evicted: set[str] = set()
        self._zones = {
            s["SubnetId"]: s["AvailabilityZone"] for s in self.client.describe_subnets()["Subnets"]
        }

    def __getattr__(self, name: str) -> Any:
        self._answer()
        self.seen[name] += 1
        return getattr(self.client, name)

    def _answer(self) -> None:
        if self.is_silent:
            self.seen["silent"] += 1
            raise EndpointConnectionError(endpoint_url="ec2")

    @property
    def subnets(self) -> dict[str, str]:
        return {zone: subnet for subnet, zone in sorted(self._zones.items(), key=lambda pair: pair[1])}

    def template(self) -> tuple[str, str]:
        """(id, version) of a launch template."""
        name = "proteus-test"
        what = [{"Name": "launch-template-name", "Values": [name]}]
        if found := self.client.describe_launch_templates(Filters=what)["LaunchTemplates"]:
            return str(found[0]["LaunchTemplateId"]), "1"
        made = self.client.create_launch_template(
            LaunchTemplateName=name, LaunchTemplateData={"ImageId": IMAGE}
        )
        return str(made["LaunchTemplate"]["LaunchTemplateId"]), "1"

    def create_fleet(self, **request: Any) -> dict[str, Any]:
        token = request["ClientToken"]
        assert len(token) <= 64 and token.isascii()
        self._answer()
        if self.rng.random() < self.throttled:
            self.seen["throttled"] += 1
            raise failure("RequestLimitExceeded", "Request limit exceeded.", "CreateFleet", 400)
        asked = json.dumps(request, sort_keys=True)
        if token in self._answers:
            before, answer = self._answers[token]
            if before != asked:
                raise failure(
                    "IdempotentParameterMismatch", "same token, other parameters", "CreateFleet", 400
                )
            self.seen["same token"] += 1
            return answer
        answer = self._buy(request)
        self._answers[token] = (asked, answer)
        self.bought[token] = [each for group in answer["Instances"] for each in group["InstanceIds"]]
        if self.rng.random() < self.lost:
            self.seen["answer lost"] += 1
            raise ReadTimeoutError(endpoint_url="ec2")
        return answer

    def _buy(self, request: dict[str, Any]) -> dict[str, Any]:
        capacity = request["TargetCapacitySpecification"]
        (override,) = request["LaunchTemplateConfigs"][0]["Overrides"]
        zone = self._zones[override["SubnetId"]]
        problem = {
            "ErrorCode": self.problem,
            "ErrorMessage": f"There is no Spot capacity available that matches your request in {zone}.",
        }
        version = request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["Version"]
        if self.right_version not in (None, version):
            self.seen["without rights"] += 1
            text = "You are not authorized to perform this operation."
            denied = {"ErrorCode": "UnauthorizedOperation", "ErrorMessage": text}
            return {"FleetId": "fleet-0", "Instances": [], "Errors": [denied]}
        wanted = capacity["TotalTargetCapacity"]
        count = min(wanted, self.most.get(zone, wanted))
        if capacity["DefaultTargetCapacityType"] == "spot" and (zone in self.full or count == 0):
            self.seen["no capacity"] += 1
            return {"FleetId": "fleet-0", "Instances": [], "Errors": [problem]}
        self.seen["fleets"] += 1
        key = "SpotTargetCapacity" if capacity["SpotTargetCapacity"] else "OnDemandTargetCapacity"
        smaller = {**capacity, "TotalTargetCapacity": count, key: count}
        answer = self.client.create_fleet(**{**request, "TargetCapacitySpecification": smaller})
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        self.seen["partial"] += count < wanted
        return {**answer, "Errors": [problem] if count < wanted else []}

    def terminate_instances(self, InstanceIds: list[str]) -> Any:
        self._answer()
        if new := self.unlisted & set(InstanceIds):
            text = f"The instance IDs '{', '.join(sorted(new))}' do not exist"
            raise failure("InvalidInstanceID.NotFound", text, "TerminateInstances", 400)
        answer = self.client.terminate_instances(InstanceIds=InstanceIds)
        if self.ends_unanswered:
            raise ReadTimeoutError(endpoint_url="ec2")
        return answer

    def evict(self, machine_id: str) -> None:
        """Take a machine as the market does."""
        self._evicted.add(machine_id)  # before anyone can see that it ended
        self.client.terminate_instances(InstanceIds=[machine_id])

    def alive(self, job: str) -> list[dict[str, Any]]:
        """Machines of a job, asked of moto without our own code."""
        found = self.client.describe_instances(Filters=[{"Name": f"tag:{TAG_JOB}", "Values": [job]}])
        instances = [each for r in found["Reservations"] for each in r["Instances"]]
        return [each for each in instances if each["State"]["Name"] not in ("terminated", "shutting-down")]

    def get_paginator(self, name: str) -> Any:
        self._answer()
        if name in self.throttled_lists:
            self.seen["throttled lists"] += 1
            raise failure("RequestLimitExceeded", "Request limit exceeded.", name, 400)
        return _Pages(self, name)


class _Pages:
    def __init__(self, layer: Ec2Layer, name: str) -> None:
        self._layer, self._name = layer, name

    def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
        if self._name == "describe_spot_price_history":
            rows = [
                {
                    "Timestamp": datetime.fromtimestamp(request["StartTime"].timestamp(), UTC),
                    "InstanceType": kind,
                    "AvailabilityZone": zone,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{price:.6f}",
                }
                for (kind, zone), price in sorted(self._layer.prices.items())
                if kind in request["InstanceTypes"]
            ]
            half = len(rows) // 2
            yield {"SpotPriceHistory": rows[:half]}
            yield {"SpotPriceHistory": rows[half:]}
            return
        for page in self._layer.client.get_paginator(self._name).paginate(**request):
            for reservation in page.get("Reservations", ()):
                reservation["Instances"] = [
                    each
                    for each in reservation["Instances"]
                    if each["InstanceId"] not in self._layer.unlisted
                ]
                for each in reservation["Instances"]:
                    if each["InstanceId"] in self._layer._evicted:
                        each["StateReason"] = {
                            "Code": "Server.SpotInstanceTermination",
                            "Message": "capacity",
                        }
                        each["StateTransitionReason"] = "Server.SpotInstanceTermination"
            yield page


def failure(code: str, message: str, call: str, status: int) -> ClientError:
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, call)  # type: ignore[arg-type]
