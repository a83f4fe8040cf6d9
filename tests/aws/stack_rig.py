"""Stacks on moto, with what moto leaves out: launches that are made once per token, and callers that die.

moto makes a CloudFormation stack at once, does not say what becomes of each resource, and leaves a stack half made
when one of them fails; `formation_layer` plays that. It does not make queue policies, the bucket's public access block,
or new policies of a role that exists: tests/bidbrain/aws reads those in the template.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from bidbrain.aws.calls import ATTEMPTS
from bidbrain.aws.clients import Aws
from bidbrain.aws.limits import Limits
from bidbrain.aws.site import OtherRegion, Site
from bidbrain.aws.stack.down import Remover
from bidbrain.aws.stack.find import find
from bidbrain.aws.stack.names import TAG_STACK
from bidbrain.aws.stack.parts import Found, Step
from bidbrain.aws.stack.template import RegionImage, Surroundings, wanted
from bidbrain.aws.stack.up import Builder, Head, Package
from tests.aws.formation_layer import FormationLayer
from tests.aws.layer import IMAGE, REGION, failure

ACCOUNT = "123456789012"
READS = ("describe_", "list_", "get_", "head_", "can_")


@cache
def plain_aws(url: str) -> Aws:
    """A client takes a tenth of a second to make."""
    return Aws(REGION, url)


OTHER_REGIONS = {"us-west-2": OtherRegion(zones=("us-west-2a", "us-west-2b"))}


def surroundings(url: str) -> Surroundings:
    """Asked each time: another test may have made moto forget everything, and its network is new then."""
    ec2 = plain_aws(url).client("ec2")
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in ec2.describe_subnets()["Subnets"]}
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    image = RegionImage(IMAGE, "/dev/xvda")
    elsewhere = dict.fromkeys(("us-west-2", "eu-west-1"), image)
    return Surroundings(ACCOUNT, IMAGE, "/dev/xvda", vpc, subnets, "p1", elsewhere)


class Killed(BaseException):
    """The caller is dead from here on."""


class FusedAws:
    """Clients whose calls that change something may be the caller's last: before it is made, or before its answer."""

    def __init__(self, url: str) -> None:
        self._aws = plain_aws(url)
        self._elsewhere: dict[str, _FusedElsewhere] = {}
        self.formation = FormationLayer(self._aws.client("cloudformation"))
        self.dies_at: tuple[int, str] | None = None  # which change, and `before` or `after` it
        self.changes: list[str] = []
        self.seen: Counter[str] = Counter()
        self.not_yet: set[str] = set()  # launch templates whose instance profile EC2 does not know yet
        # A change that meets this error once: it names what is not known there yet.
        self.late: dict[str, str] = {}
        self.blind_after_launch = 0  # so many lists of instances do not show the head yet
        self.blind = 0
        self.blind_after_put = 0  # so many lists of parameters do not show one that was just made
        self.unlisted: Counter[str] = Counter()  # by parameter: lists that do not show it yet
        self._launched: dict[str, tuple[str, dict[str, Any]]] = {}

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        if service == "cloudformation":
            return _FusedClient(self, service, self.formation)
        return _FusedClient(self, service, self._aws.client(service, attempts))

    def at(self, region: str) -> _FusedElsewhere:
        """Clients of another region, by the same fuse."""
        if region not in self._elsewhere:
            self._elsewhere[region] = _FusedElsewhere(self, self._aws.at(region))
        return self._elsewhere[region]

    def change(self, name: str, call: Any, arguments: Any, request: dict[str, Any]) -> Any:
        self.changes.append(name)
        number = len(self.changes)
        if self.dies_at == (number, "before"):
            raise Killed(name)
        if (code := self.late.pop(name, None)) is not None:
            self.seen["not known yet"] += 1
            raise failure(code, "not yet", name, 400)
        try:
            if name == "ec2.run_instances":
                return self._launch(call, request)
            answer = call(*arguments, **request)
            if name == "ssm.put_parameter":
                self.unlisted[request["Name"]] = self.blind_after_put
            return answer
        finally:  # whatever the answer would have been
            if self.dies_at == (number, "after"):
                raise Killed(name)

    def _launch(self, call: Any, request: dict[str, Any]) -> Any:
        if self.not_yet:
            self.seen["profile not known"] += 1
            text = f"Value ({self.not_yet.pop()}) for parameter iamInstanceProfile.name is invalid"
            raise failure("InvalidParameterValue", text, "RunInstances", 400)
        token, asked = request["ClientToken"], json.dumps(request, sort_keys=True)
        if token in self._launched:
            before, answer = self._launched[token]
            assert before == asked, "IdempotentParameterMismatch"
            self.seen["same token"] += 1
            now = self._aws.client("ec2").describe_instances(
                InstanceIds=[answer["Instances"][0]["InstanceId"]]
            )
            (instance,) = now["Reservations"][0]["Instances"]
            if instance["State"]["Name"] == "terminated":
                self.seen["ended token"] += 1
                raise failure("IdempotentInstanceTerminated", "it has ended", "RunInstances", 400)
            return {"Instances": [instance]}
        answer = call(**request)
        self.blind = self.blind_after_launch
        self._launched[token] = (asked, answer)
        return answer


class _FusedElsewhere:
    """Another region's clients: its changes are counted with those of the home region."""

    def __init__(self, home: FusedAws, aws: Aws) -> None:
        self._home, self._aws = home, aws
        self.formation = FormationLayer(aws.client("cloudformation"), aws.client("ec2"))

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        made = self.formation if service == "cloudformation" else self._aws.client(service, attempts)
        return _FusedClient(self._home, service, made)

    def at(self, region: str) -> _FusedElsewhere:
        return self._home.at(region)


class _FusedClient:
    def __init__(self, aws: FusedAws, service: str, client: Any) -> None:
        self._aws, self._service, self._client = aws, service, client

    def __getattr__(self, name: str) -> Any:
        if name == "get_paginator":
            return self._blinded
        call = getattr(self._client, name)
        if name.startswith(READS) or not callable(call):
            return call
        return lambda *arguments, **request: self._aws.change(
            f"{self._service}.{name}", call, arguments, request
        )

    def _blinded(self, listing: str) -> Any:
        plain = self._client.get_paginator(listing)
        if listing == "describe_parameters":
            return LatePages(plain, self._aws.unlisted)
        if listing != "describe_instances" or not self._aws.blind:
            return plain
        self._aws.blind -= 1
        return NoPages()


class NoPages:
    """A list that shows nothing."""

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        return [{"Reservations": []}]


class LatePages:
    """A list of parameters without those that it does not show yet."""

    def __init__(self, plain: Any, unlisted: Counter[str]) -> None:
        self._plain, self._unlisted = plain, unlisted

    def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
        for page in self._plain.paginate(**request):
            yield {"Parameters": [each for each in page["Parameters"] if not self._unlisted[each["Name"]]]}
        for name in self._unlisted:
            self._unlisted[name] = max(0, self._unlisted[name] - 1)


class StackRig:
    """One stack of a name of its own, and what there is of it as AWS says without our code."""

    def __init__(
        self,
        url: str,
        name: str,
        package: str = "p1",
        tags: dict[str, str] | None = None,
        reliable_type: str | None = None,
        regions: dict[str, OtherRegion] | None = None,
    ) -> None:
        self.aws = FusedAws(url)
        self.plain = plain_aws(url)
        zones = ("us-east-1a", "us-east-1b")
        self.site = Site(
            name=name,
            region=REGION,
            zones=zones,
            types=("c5.xlarge",),
            reliable_type=reliable_type,
            tags=tags or {},
            regions=regions or {},
        )
        limits = Limits(site=self.site, machines=20, job_micro_usd=20_000_000)
        self.want = wanted(limits, replace(surroundings(url), package=package))
        self.package = Package("package.whl", b"a wheel", "numpy==2\n")
        self.told: list[Step] = []
        self.slept_s = 0.0

    def _sleep(self, seconds: float) -> None:
        """The caller may die while it waits, too."""
        self.slept_s += seconds
        self.aws.change("sleep", lambda: None, (), {})

    def up(self) -> Head:
        self.told.clear()
        return Builder(self.aws, self.site, self.want, self.package, self._sleep).up(self.told.append)

    def down(self, keep_data: bool = False) -> None:
        self.told.clear()
        Remover(self.aws, self.site, ACCOUNT, keep_data, self._sleep).down(self.told.append, limit_s=300)

    def found(self) -> Found:
        return find(self.plain, self.site, ACCOUNT)

    def resource(self, logical: str) -> str:
        """AWS' id of a part of the CloudFormation stack."""
        found = self.plain.client("cloudformation").describe_stack_resources(
            StackName=f"proteus-{self.site.name}"
        )
        by_name = {each.get("LogicalResourceId"): each for each in found["StackResources"]}
        return str(by_name[logical]["PhysicalResourceId"])

    def instances(self) -> list[dict[str, Any]]:
        """Machines with our tag that have not ended, of all regions."""
        what = [{"Name": f"tag:{TAG_STACK}", "Values": [self.site.name]}]
        answers = [aws.client("ec2").describe_instances(Filters=what) for aws in self._everywhere()]
        every = [each for answer in answers for r in answer["Reservations"] for each in r["Instances"]]
        return [each for each in every if each["State"]["Name"] != "terminated"]

    def end(self, machines: set[str]) -> None:
        """End machines, wherever they are."""
        for aws in self._everywhere():
            here = [{"Name": "instance-id", "Values": sorted(machines)}]
            found = aws.client("ec2").describe_instances(Filters=here)["Reservations"]
            if ids := [each["InstanceId"] for r in found for each in r["Instances"]]:
                aws.client("ec2").terminate_instances(InstanceIds=ids)

    def _everywhere(self) -> list[Aws]:
        return [self.plain, *(self.plain.at(region) for region in self.site.regions)]

    def leftovers(self) -> list[str]:
        """Everything that carries our tag or name, machines that have ended excepted; moto asked directly."""
        name = self.site.name
        left = [each["InstanceId"] for each in self.instances()]
        for region in self.site.regions:
            left += self._leftovers_in(region)
        ec2 = self.plain.client("ec2")
        by_tag = [{"Name": f"tag:{TAG_STACK}", "Values": [name]}]
        left += [each["GroupId"] for each in ec2.describe_security_groups(Filters=by_tag)["SecurityGroups"]]
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        ours = (f"proteus-{name}", f"proteus-{name}-head")
        left += [t["LaunchTemplateName"] for t in templates if t["LaunchTemplateName"] in ours]
        stacks = self.plain.client("cloudformation").describe_stacks()["Stacks"]
        left += [s["StackName"] for s in stacks if s["StackName"] == f"proteus-{name}"]
        left += [v["VolumeId"] for v in ec2.describe_volumes(Filters=by_tag)["Volumes"]]
        left += [
            f["FleetId"]
            for f in ec2.describe_fleets()["Fleets"]
            if not f["FleetState"].startswith("deleted")
            and {"Key": TAG_STACK, "Value": name} in f.get("Tags", [])
        ]
        iam = self.plain.client("iam")
        left += [
            r["RoleName"] for r in iam.list_roles()["Roles"] if r["RoleName"].startswith(f"proteus-{name}-")
        ]
        profiles = iam.list_instance_profiles()["InstanceProfiles"]
        left += [
            p["InstanceProfileName"]
            for p in profiles
            if p["InstanceProfileName"].startswith(f"proteus-{name}-")
        ]
        left += self.plain.client("sqs").list_queues(QueueNamePrefix=f"proteus-{name}").get("QueueUrls", [])
        left += [
            r["Name"] for r in self.plain.client("events").list_rules(NamePrefix=f"proteus-{name}")["Rules"]
        ]
        pages = self.plain.client("ssm").get_paginator("describe_parameters").paginate()
        parameters = [parameter["Name"] for page in pages for parameter in page["Parameters"]]
        left += [parameter for parameter in parameters if parameter.startswith(f"/proteus/{name}/")]
        buckets = self.plain.client("s3").list_buckets()["Buckets"]
        left += [b["Name"] for b in buckets if b["Name"].startswith(f"proteus-{name}-")]
        return left

    def _leftovers_in(self, region: str) -> list[str]:
        """In another region; and the peerings and the routes to them, in the home region as well."""
        name, there = self.site.name, self.plain.at(region)
        ec2, by_tag = there.client("ec2"), [{"Name": f"tag:{TAG_STACK}", "Values": [name]}]
        left = [each["VpcId"] for each in ec2.describe_vpcs(Filters=by_tag)["Vpcs"]]
        left += [each["SubnetId"] for each in ec2.describe_subnets(Filters=by_tag)["Subnets"]]
        left += [each["GroupId"] for each in ec2.describe_security_groups(Filters=by_tag)["SecurityGroups"]]
        left += [each["RouteTableId"] for each in ec2.describe_route_tables(Filters=by_tag)["RouteTables"]]
        gateways = ec2.describe_internet_gateways(Filters=by_tag)["InternetGateways"]
        left += [each["InternetGatewayId"] for each in gateways]
        templates = ec2.describe_launch_templates()["LaunchTemplates"]
        left += [t["LaunchTemplateName"] for t in templates if t["LaunchTemplateName"] == f"proteus-{name}"]
        left += there.client("sqs").list_queues(QueueNamePrefix=f"proteus-{name}").get("QueueUrls", [])
        left += [r["Name"] for r in there.client("events").list_rules(NamePrefix=f"proteus-{name}")["Rules"]]
        stacks = there.client("cloudformation").describe_stacks()["Stacks"]
        left += [s["StackName"] for s in stacks if s["StackName"] == f"proteus-{name}"]
        for each in (self.plain, there):
            client = each.client("ec2")
            peerings = client.describe_vpc_peering_connections()["VpcPeeringConnections"]
            tagged = [p for p in peerings if {"Key": TAG_STACK, "Value": name} in p.get("Tags", [])]
            left += [p["VpcPeeringConnectionId"] for p in tagged if p["Status"]["Code"] != "deleted"]
            ours = {p["VpcPeeringConnectionId"] for p in tagged}
            for table in client.describe_route_tables()["RouteTables"]:
                left += [str(r) for r in table["Routes"] if r.get("VpcPeeringConnectionId") in ours]
        return left


def moments(count: int, some: int | None, seed: int) -> list[tuple[int, str]]:
    """When to die: at every change, or at a few of them drawn by the seed."""
    every = [(number, when) for number in range(1, count + 1) for when in ("before", "after")]
    return every if some is None else sorted(random.Random(seed).sample(every, some))
