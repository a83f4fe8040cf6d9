"""Who may do what in a stack: IAM policies as JSON, each right bound to the stack's own names and tags. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = "2012-10-17"
STACK_KEY = "proteus:stack"


@dataclass(frozen=True)
class Names:
    """The names of a stack's parts, and the ARNs that follow from them."""

    stack: str
    region: str
    account: str
    bucket: str

    @property
    def plain(self) -> str:
        """Of everything that there is one of: group, template, queue, rule."""
        return f"proteus-{self.stack}"

    @property
    def head(self) -> str:
        return f"{self.plain}-head"

    @property
    def node(self) -> str:
        return f"{self.plain}-node"

    @property
    def prefix(self) -> str:
        """Of all objects in the bucket."""
        return f"proteus/{self.stack}/"

    @property
    def token(self) -> str:
        return f"/proteus/{self.stack}/ray-token"

    @property
    def address(self) -> str:
        return f"/proteus/{self.stack}/head"

    @property
    def partition(self) -> str:
        """China and GovCloud have their own."""
        if self.region.startswith("cn-"):
            return "aws-cn"
        return "aws-us-gov" if self.region.startswith("us-gov-") else "aws"

    def arn(self, service: str, rest: str, *, region: bool = True, account: bool = True) -> str:
        where = f"{self.region if region else ''}:{self.account if account else ''}"
        return f"arn:{self.partition}:{service}:{where}:{rest}"

    def ec2(self, rest: str) -> str:
        return self.arn("ec2", rest)

    def role(self, name: str) -> str:
        return self.arn("iam", f"role/{name}", region=False)

    def profile(self, name: str) -> str:
        return self.arn("iam", f"instance-profile/{name}", region=False)

    def parameter(self, name: str) -> str:
        return self.arn("ssm", f"parameter{name}")

    @property
    def queue_arn(self) -> str:
        return self.arn("sqs", self.plain)

    @property
    def rule_arn(self) -> str:
        return self.arn("events", f"rule/{self.plain}")

    def objects(self, folder: str = "") -> str:
        return self.arn("s3", f"{self.bucket}/{self.prefix}{folder}*", region=False, account=False)

    @property
    def bucket_arn(self) -> str:
        return self.arn("s3", self.bucket, region=False, account=False)


def allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], when: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return {**statement, "Condition": dict(when)} if when else statement


def policy(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": [dict(each) for each in statements]}


def trust_policy(names: Names) -> dict[str, Any]:
    """EC2 may give the role to a machine."""
    service = "ec2.amazonaws.com.cn" if names.partition == "aws-cn" else "ec2.amazonaws.com"
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return {"Version": VERSION, "Statement": [statement]}


def _machine_statements(names: Names) -> list[dict[str, Any]]:
    """What every machine needs: the package, data and token to read, checkpoints to write."""
    inside = {"StringLike": {"s3:prefix": [f"{names.prefix}*"]}}
    listing = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
    writing = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    return [
        allow("Read", ["s3:GetObject"], [names.objects()]),
        allow("List", listing, [names.bucket_arn], inside),
        allow("Checkpoints", writing, [names.objects("checkpoints/"), names.objects("runs/")]),
        allow("Token", ["ssm:GetParameter"], [names.parameter(names.token), names.parameter(names.address)]),
    ]


def node_policy(names: Names) -> dict[str, Any]:
    """A machine that trains: it can buy nothing and end nothing."""
    return policy(_machine_statements(names))


def head_policy(names: Names) -> dict[str, Any]:
    """The head buys and ends machines of its own stack, from the stack's launch template only, and hears notices."""
    ours = {"StringEquals": {f"aws:RequestTag/{STACK_KEY}": names.stack}}
    tagged = {"StringEquals": {f"aws:ResourceTag/{STACK_KEY}": names.stack}}
    created = {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"]}}
    passed = {"StringEquals": {"iam:PassedToService": service_of(names)}}
    buying = ["ec2:CreateFleet", "ec2:RunInstances"]
    looks = [
        "ec2:DescribeInstances",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribeLaunchTemplateVersions",
        "ec2:DescribeSubnets",
        "ec2:DescribeSecurityGroups",
    ]
    used = ["subnet/*", "network-interface/*", "volume/*", "spot-instances-request/*"]
    image = f"arn:{names.partition}:ec2:{names.region}::image/*"
    return policy(
        [
            *_machine_statements(names),
            allow("Look", looks, ["*"]),
            allow("Buy", buying, [names.ec2("instance/*"), names.ec2("fleet/*")], ours),
            allow("BuyFrom", buying, [names.ec2("launch-template/*"), names.ec2("security-group/*")], tagged),
            allow("BuyWith", buying, [*(names.ec2(each) for each in used), image]),
            allow("Tag", ["ec2:CreateTags"], [names.ec2("*/*")], created),
            allow("End", ["ec2:TerminateInstances"], [names.ec2("instance/*")], tagged),
            allow("GiveRole", ["iam:PassRole"], [names.role(names.node)], passed),
            allow("Hear", ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueUrl"], [names.queue_arn]),
            allow(
                "Forward",  # a port of the head to a laptop, by Session Manager
                [
                    "ssm:UpdateInstanceInformation",
                    "ssmmessages:CreateControlChannel",
                    "ssmmessages:CreateDataChannel",
                    "ssmmessages:OpenControlChannel",
                    "ssmmessages:OpenDataChannel",
                ],
                ["*"],
            ),
        ]
    )


def service_of(names: Names) -> str:
    """The service that gives roles to machines."""
    return str(trust_policy(names)["Statement"][0]["Principal"]["Service"])


def queue_policy(names: Names) -> dict[str, Any]:
    """Only our rule may put messages into the queue."""
    statement = {
        "Sid": "Notices",
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": names.queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": names.rule_arn}},
    }
    return {"Version": VERSION, "Statement": [statement]}
