"""The launch template of our machines: made once, a new version whenever its content changes, found by its tag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bidbrain.aws.calls import errors
from bidbrain.live.cloud import CloudError

OWNER_TAG = "proteus:owner"
OWNER = "bidbrain"
DIGEST_LENGTH = 16


@dataclass(frozen=True)
class Template:
    """A version of a launch template that holds exactly what was asked for."""

    template_id: str
    version: str


def digest_of(content: Any) -> str:
    """A short name of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]


def ensure_template(
    ec2: Any, name: str, data: dict[str, Any], tags: Mapping[str, str] | None = None
) -> Template:
    """The template `name` with this content (EC2's LaunchTemplateData). Idempotent; raises CloudError.

    A version's description is the digest of its content, so what is there already is found without comparing it.
    A template of the same name that is not ours is not touched.
    """
    digest = digest_of(data)
    with errors(f"launch template {name}"):
        found = ec2.describe_launch_templates(Filters=[{"Name": "launch-template-name", "Values": [name]}])
        templates = found["LaunchTemplates"]
        if not templates:
            made = ec2.create_launch_template(
                LaunchTemplateName=name,
                VersionDescription=digest,
                LaunchTemplateData=data,
                ClientToken=f"{name}-{digest}"[:64],
                TagSpecifications=[
                    {
                        "ResourceType": "launch-template",
                        "Tags": [
                            {"Key": key, "Value": value}
                            for key, value in sorted({**(tags or {}), OWNER_TAG: OWNER}.items())
                        ],
                    }
                ],
            )["LaunchTemplate"]
            return Template(made["LaunchTemplateId"], "1")
        template = templates[0]
        if {"Key": OWNER_TAG, "Value": OWNER} not in template.get("Tags", []):
            raise CloudError(
                f"launch template {name}: it exists and is not ours (no tag {OWNER_TAG}={OWNER})"
            )
        template_id = template["LaunchTemplateId"]
        pages = ec2.get_paginator("describe_launch_template_versions").paginate(LaunchTemplateId=template_id)
        for page in pages:
            for version in page["LaunchTemplateVersions"]:
                if version.get("VersionDescription") == digest:
                    return Template(template_id, str(version["VersionNumber"]))
        made = ec2.create_launch_template_version(
            LaunchTemplateId=template_id, VersionDescription=digest, LaunchTemplateData=data
        )["LaunchTemplateVersion"]
        return Template(template_id, str(made["VersionNumber"]))


def machine_data(
    image: str,
    groups: list[str],
    profile: str | None,
    user_data: str | None = None,
    disk_gib: int = 40,
    root_device: str = "/dev/xvda",
) -> dict[str, Any]:
    """LaunchTemplateData of a machine: it ends itself when it shuts down, and its metadata service wants tokens.

    image: an AMI id or `resolve:ssm:...`. user_data: base64; anyone on the machine can read it.
    """
    data: dict[str, Any] = {
        "ImageId": image,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "SecurityGroupIds": groups,
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": root_device,
                "Ebs": {"VolumeSize": disk_gib, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ],
    }
    if profile is not None:
        data["IamInstanceProfile"] = {"Name": profile}
    if user_data is not None:
        data["UserData"] = user_data
    return data
