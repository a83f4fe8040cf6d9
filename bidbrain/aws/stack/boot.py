"""What a machine does first: the text that EC2 gives it as user data. Pure.

Anyone on the machine can read it, so it holds no secret: the cluster's token is read from SSM by the machine's role.
Whatever goes wrong, the machine does not stay: a shutdown is set before anything else, and taken back when the
watchdog runs.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum

BOOT_LIMIT_MIN = 30
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
LIMIT_BYTES = 16_384  # EC2's, before base64


class Role(StrEnum):
    """What a machine of a stack is for."""

    HEAD = "head"
    NODE = "node"


@dataclass(frozen=True)
class Boot:
    """package: s3://... of the folder with the wheel and constraints.txt; digest: of both."""

    role: Role
    stack: str
    region: str
    package: str
    digest: str
    orphan_after_s: int


TEXT = """#!/bin/bash
# A {role} of the stack {stack}. Whoever is on this machine can read this: it holds no secret.
set -euo pipefail
export AWS_DEFAULT_REGION={region} HOME=/root
shutdown -h +{limit} "proteus: this machine was not ready in time"
home=/opt/proteus
if [ "$(cat $home/digest 2>/dev/null)" != {digest} ]; then  # an image may bring the package along
  python=$(command -v python3.12 || command -v python3.11 || true)
  if [ -z "$python" ]; then
    dnf install -y -q python3.11
    python=/usr/bin/python3.11
  fi
  "$python" -m venv $home
  aws s3 cp --quiet --recursive {package}/ $home/package/
  wheels=
  command -v nvidia-smi >/dev/null || wheels="--extra-index-url {cpu_wheels}"
  $home/bin/python -m pip install --quiet $wheels -c $home/package/constraints.txt $home/package/*.whl
  echo {digest} > $home/digest
fi
exec $home/bin/python -m agileml.aws.boot {role} --stack {stack} --region {region} --orphan-after {orphan}
"""


def boot_text(boot: Boot) -> str:
    """The script."""
    text = TEXT.format(
        role=boot.role,
        stack=boot.stack,
        region=boot.region,
        package=boot.package,
        digest=boot.digest,
        orphan=boot.orphan_after_s,
        limit=BOOT_LIMIT_MIN,
        cpu_wheels=CPU_WHEELS,
    )
    assert len(text.encode()) <= LIMIT_BYTES
    return text


def user_data(boot: Boot) -> str:
    """The script as EC2 takes it, base64."""
    return base64.b64encode(boot_text(boot).encode()).decode()
