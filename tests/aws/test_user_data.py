"""What an instance runs before our package is there."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from agileml.aws.boot import PATIENCE
from bidbrain.aws.limits import Limits
from bidbrain.aws.site import Site
from bidbrain.aws.stack.template import Surroundings, resource, wanted
from tests.aws.layer import REGION


def run_user_data(tmp_path: Path, venv: str = "exit 0") -> list[str]:
    """The commands of a node's script in a folder of stand-ins for them; the download fails. venv: what `python3.12 -m
    venv HOME` does."""
    tools = tmp_path / "tools"
    tools.mkdir()
    log = tmp_path / "log"
    for name in ("shutdown", "aws", "dnf"):
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >> {log}\n[ {name} != aws ]\n')
    with (tools / "aws").open("a") as stand_in:
        stand_in.write(f"env | grep ^AWS_METADATA | sort > {tmp_path / 'patience'}\nexit 1\n")
    (tools / "python3.12").write_text(f"#!/bin/bash\n{venv}\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    site = Site(name="demo", region=REGION, zones=("us-east-1a",), types=("c5.xlarge",))
    there = Surroundings("123456789012", "ami-1", "/dev/xvda", "vpc-1", {"us-east-1a": "subnet-a"}, "abc")
    limits = Limits(site=site, machines=4, job_micro_usd=1_000_000)
    data = resource(wanted(limits, there), "NodeTemplate")["LaunchTemplateData"]
    text = base64.b64decode(data["UserData"]).decode()
    text = text.replace("/opt/proteus", str(tmp_path / "opt"))
    text = text.replace("/var/lib/cloud", str(tmp_path / "cloud"))
    text = text.replace("/proc/sys/kernel/random/boot_id", str(tmp_path / "boot_id"))
    (tmp_path / "cloud" / "data").mkdir(parents=True, exist_ok=True)
    (tmp_path / "cloud" / "data" / "instance-id").write_text("i-0abc\n")
    (tmp_path / "boot_id").write_text("first\n")
    path = {"PATH": f"{tools}:/usr/bin:/bin"}
    subprocess.run(["/bin/bash", "-c", text], env=path, capture_output=True, check=False)
    return log.read_text().splitlines()


def test_the_user_data_ends_the_machine_when_a_line_fails(tmp_path: Path) -> None:
    """A failing install leaves the shutdown set."""
    said = run_user_data(tmp_path)
    assert said[0].startswith("shutdown -h +30") and said[1].startswith("aws s3 cp") and len(said) == 2
    patience = dict(line.split("=") for line in (tmp_path / "patience").read_text().splitlines())
    assert patience == PATIENCE, "the download asks as long for its credentials as what runs later"


@pytest.mark.parametrize(
    ("boot_id", "instance_id", "ends"),
    [("first", "i-0abc", False), ("second", "i-0abc", True), ("second", "i-0abcd", False)],
)
def test_a_machine_that_boots_again_ends(
    tmp_path: Path, boot_id: str, instance_id: str, *, ends: bool
) -> None:
    """What systemd-run started is gone then, the watchdog too, and user data run once. A machine that was made from an
    image of this one is another machine."""
    said = run_user_data(tmp_path)
    (tmp_path / "cloud" / "data" / "instance-id").write_text(f"{instance_id}\n")
    (tmp_path / "boot_id").write_text(f"{boot_id}\n")
    (script,) = (tmp_path / "cloud" / "scripts" / "per-boot").iterdir()
    subprocess.run([script], env={"PATH": f"{tmp_path / 'tools'}:/usr/bin:/bin"}, check=True)
    then = (tmp_path / "log").read_text().splitlines()[len(said) :]
    assert then == (["shutdown -h now proteus: this machine has booted again"] if ends else [])


def test_an_image_with_another_package_keeps_nothing_of_it(tmp_path: Path) -> None:
    """pip leaves another build of the same version as it is, and refuses wheels of two versions beside each other."""
    home = tmp_path / "opt"
    stale = [home / "package" / "proteus_train-0-py3-none-any.whl", home / "lib" / "agileml.py"]
    for file in stale:
        file.parent.mkdir(parents=True)
        file.write_text("of another build")
    (home / "digest").write_text("another")
    run_user_data(tmp_path, venv='mkdir -p "$3/bin"; touch "$3/made"')
    assert (home / "made").exists() and not any(file.exists() for file in stale)


def test_an_image_with_the_same_package_is_used_as_it_is(tmp_path: Path) -> None:
    home = tmp_path / "opt"
    (home / "bin").mkdir(parents=True)
    (home / "digest").write_text("abc")
    (home / "bin" / "python").write_text(f'#!/bin/bash\necho "booted $*" >> {tmp_path / "log"}\n')
    (home / "bin" / "python").chmod(0o755)
    said = run_user_data(tmp_path)
    assert said[1].startswith("booted -m agileml.aws.boot node --stack demo") and len(said) == 2
