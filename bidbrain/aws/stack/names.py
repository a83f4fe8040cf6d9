"""The fixed names and tags of a stack's parts, by which they are found again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bidbrain.aws.site import Site

TAG_STACK, TAG_PART, TAG_OWNER = "proteus:stack", "proteus:part", "proteus:owner"
OWNER = "bidbrain"
LIMITS_OBJECT = "buyer/limits.json"
# The partitions beside AWS' own, and the suffix of their addresses, by how the names of their regions begin.
PARTITIONS = {
    "cn-": ("aws-cn", "amazonaws.com.cn"),
    "us-gov-": ("aws-us-gov", "amazonaws.com"),
    "eusc-": ("aws-eusc", "amazonaws.eu"),
    "us-iso-": ("aws-iso", "c2s.ic.gov"),
    "us-isob-": ("aws-iso-b", "sc2s.sgov.gov"),
    "eu-isoe-": ("aws-iso-e", "cloud.adc-e.uk"),
    "us-isof-": ("aws-iso-f", "csp.hci.ic.gov"),
}


@dataclass(frozen=True)
class Names:
    """The names of a stack's parts. account, bucket: "" where only the names without them are needed."""

    stack: str
    region: str
    account: str = ""
    bucket: str = ""

    @property
    def plain(self) -> str:
        """Of the CloudFormation stack, the group, the queue, the rule, and the launch template of bought machines."""
        return f"proteus-{self.stack}"

    @property
    def head(self) -> str:
        """Of the head, its role and its launch template."""
        return f"{self.plain}-head"

    @property
    def node(self) -> str:
        """Of the role of machines that train."""
        return f"{self.plain}-node"

    @property
    def boundary(self) -> str:
        """The ARN of the permissions boundary that `operator.yaml` makes."""
        partition = self.pseudo_parameters["AWS::Partition"]
        return f"arn:{partition}:iam::{self.account}:policy/{self.plain}-boundary"

    @property
    def prefix(self) -> str:
        """Of all objects in the bucket."""
        return f"proteus/{self.stack}/"

    @property
    def token(self) -> str:
        """Of the SSM parameter with the cluster's token."""
        return f"/proteus/{self.stack}/ray-token"

    @property
    def authority(self) -> str:
        """Of the SSM parameter with the authority of the cluster's certificates, its private key included."""
        return f"/proteus/{self.stack}/ray-authority"

    @property
    def address(self) -> str:
        """Of the SSM parameter with the head's address."""
        return f"/proteus/{self.stack}/head"

    @property
    def limits(self) -> str:
        """Of the object with the limits of the buyer."""
        return f"{self.prefix}{LIMITS_OBJECT}"

    @property
    def pseudo_parameters(self) -> dict[str, str]:
        """CloudFormation's own parameters, as they are in this account and region."""
        others = (each for begin, each in PARTITIONS.items() if self.region.startswith(begin))
        partition, suffix = next(others, ("aws", "amazonaws.com"))
        return {
            "AWS::Partition": partition,
            "AWS::Region": self.region,
            "AWS::AccountId": self.account,
            "AWS::URLSuffix": suffix,
        }


def names_of(site: Site, account: str) -> Names:
    """The names of a site's stack in an account."""
    bucket = site.bucket or f"proteus-{site.name}-{account}-{site.region}"
    return Names(site.name, site.region, account, bucket)


def tags_of(site: Site, part: str) -> dict[str, str]:
    """The tags of resources that are made outside CloudFormation."""
    return {**site.tags, TAG_STACK: site.name, TAG_OWNER: OWNER, TAG_PART: part}
