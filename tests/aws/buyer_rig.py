"""A stack of moto's with a buyer behind its socket, whose time and limits a test sets."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bidbrain.aws.buyer.__main__ import node_credentials
from bidbrain.aws.buyer.buyer import Buyer, BuyerPlace
from bidbrain.aws.buyer.server import BuyerServer
from bidbrain.aws.calls import ATTEMPTS
from bidbrain.aws.clients import Aws, tag_list
from bidbrain.aws.limits import Limits
from bidbrain.aws.site import Site
from bidbrain.aws.stack.names import TAG_STACK, names_of
from bidbrain.aws.stack.template import role_policy
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Order
from bidbrain.live.unix_clock import UnixClock
from tests.aws.layer import IMAGE, REGION, Ec2Layer
from tests.aws.stack_rig import ACCOUNT, plain_aws

STACK, ORPHAN_AFTER_S = "buyer", 300
SITE = Site(
    name=STACK,
    region=REGION,
    zones=("us-east-1a", "us-east-1b"),
    types=("c5.xlarge", "m5.xlarge"),
    vcpus={"c5.xlarge": 1, "m5.xlarge": 1},  # as on `AwsGround`
)
SPOT = Market("c5.xlarge", "us-east-1a")


class Rig:
    """A stack with a buyer, whose time is `at_s`."""

    def __init__(self, moto_url: str, folder: Path) -> None:
        self.url, self.folder = moto_url, folder
        self.layer = Ec2Layer(moto_url)
        self.at_s = int(time.time()) + 600
        self.names = names_of(SITE, ACCOUNT)
        self.path = folder / "socket"
        self.said: list[str] = []
        self.buyer: Buyer
        for kind in SITE.types:
            for zone in SITE.zones:
                self.layer.prices[(kind, zone)] = 0.06

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        """As `Clients`: EC2 is moto's with what moto leaves out."""
        return self.layer if service == "ec2" else plain_aws(self.url).client(service, attempts)

    def at(self, region: str) -> Aws:
        return plain_aws(self.url).at(region)

    def limit(self, **changes: Any) -> None:
        """What `up` writes."""
        limits = Limits(site=SITE, machines=8, job_micro_usd=20_000_000).model_copy(update=changes)
        s3 = plain_aws(self.url).client("s3")
        s3.put_object(Bucket=self.names.bucket, Key=self.names.limits, Body=limits.text().encode())

    @contextmanager
    def serving(self, uid: int | None = None) -> Iterator[None]:
        """A buyer, as the service manager starts it: again and again on the same folder."""
        place = BuyerPlace(self.names, "10.9.9.9", self.folder / "state", ORPHAN_AFTER_S)
        clock = UnixClock(lambda: float(self.at_s), lambda: float(self.at_s))
        self.buyer = Buyer(place, self, clock, self.said.append)
        asked = os.getuid() if uid is None else uid
        give = lambda: node_credentials(plain_aws(self.url), self.names)  # noqa: E731
        with BuyerServer(self.path, asked, self.buyer, give) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            yield
            server.shutdown()
            thread.join()

    def look(self, seconds: int) -> None:
        """So much later the buyer looks around."""
        self.at_s += seconds
        self.buyer.look()

    def wait_left(self) -> None:
        """Until the buyer has seen that its driver's connection ended."""
        until_s = time.monotonic() + 10
        while self.buyer.driven:
            assert time.monotonic() < until_s
            time.sleep(0.001)

    def machines(self) -> list[str]:
        return [each["InstanceId"] for each in self.layer.alive(f"{STACK}/job")]


def order(token: str, count: int = 1, market: Market = SPOT) -> Order:
    return Order(token, market, count, 1, 170_000)


def has_parts(url: str) -> bool:
    """Whether moto still has what `make_parts` made."""
    buckets = plain_aws(url).client("s3").list_buckets()["Buckets"]
    return names_of(SITE, ACCOUNT).bucket in {each["Name"] for each in buckets}


def make_parts(url: str) -> None:
    """The parts of a stack that its buyer uses."""
    aws, names = plain_aws(url), names_of(SITE, ACCOUNT)
    ec2, tags = aws.client("ec2"), tag_list({TAG_STACK: STACK})
    ec2.create_launch_template(
        LaunchTemplateName=names.plain,
        LaunchTemplateData={"ImageId": IMAGE},
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
    )
    ec2.create_security_group(
        GroupName=names.plain,
        Description="-",
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )
    aws.client("sqs").create_queue(QueueName=names.plain)
    aws.client("s3").create_bucket(Bucket=names.bucket)
    iam = aws.client("iam")
    iam.create_role(RoleName=names.node, AssumeRolePolicyDocument="{}")
    policy = json.dumps(role_policy(names, "NodeRole", SITE.bought_types, IMAGE))
    iam.put_role_policy(RoleName=names.node, PolicyName="proteus", PolicyDocument=policy)
