"""The Dockerfile, read as hadolint reads it: no builder is needed to see the common mistakes."""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) with continued lines joined, without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in lines]


def given(name: str) -> list[str]:
    return [arguments for each, arguments in instructions() if each == name]


def setup() -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def test_every_copied_file_is_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [word for each in given("COPY") if "--from" not in each for word in shlex.split(each)[:-1]]
    assert set(setup()["options.packages.find"]["include"].split()) <= {f"{each}*" for each in copied}
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), f"{name} is in .dockerignore"


def test_base_images_have_a_version_that_the_package_runs_on() -> None:
    range_ = SpecifierSet(setup()["options"]["python_requires"])
    images = [each.split()[0] for each in given("FROM")]
    assert len(set(images)) == 1
    name, _, tag = images[0].partition(":")
    assert name == "python"
    assert tag.split("-")[0] in range_


def test_the_packages_are_those_of_setup_cfg_in_the_tested_versions() -> None:
    (install,) = [each for each in given("RUN") if "constraints.txt" in each and "install" in each]
    assert "-c /tmp/constraints.txt" in install
    (script,) = re.findall(r'python -c "([^"]+)"', install)
    here = script.replace("/tmp/setup.cfg", str(ROOT / "setup.cfg"))
    said = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=True).stdout
    names = {Requirement(line).name for line in said.split("\n") if line.strip()}
    assert {"ray", "torch", "numpy"} <= names
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {name.lower() for name in names} <= pinned


def test_no_cache_stays_in_a_layer_and_nothing_runs_as_root() -> None:
    assert all("--no-cache-dir" in each for each in given("RUN") if re.search(r"\bpip\b", each))
    assert not any("sudo" in each or "apt-get" in each for each in given("RUN"))
    assert given("USER") == ["proteus"]
    order = [name for name, _ in instructions()]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert "ADD" not in order


def test_signals_reach_the_run() -> None:
    """The entrypoint is a list: a shell in between would keep SIGTERM to itself."""
    for name in ("ENTRYPOINT", "CMD"):
        (words,) = given(name)
        assert isinstance(json.loads(words), list)
