"""The installed package as a wheel."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

import agileml
from agileml.aws.wheel import PACKAGES, build_wheel


def test_a_wheel_of_what_runs_here(tmp_path: Path) -> None:
    wheel = build_wheel()
    assert build_wheel() == wheel, "the same files, the same bytes"
    names = zipfile.ZipFile(io.BytesIO(wheel.content)).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert {"bidbrain/machines.csv", "bidbrain/aws/stack/template.yaml"} <= set(names) and not any(
        "__pycache__" in name for name in names
    )
    here = Path(agileml.__file__).parents[1]
    files = [path for package in PACKAGES for path in (here / package).rglob("*") if path.suffix]
    data = {str(path.relative_to(here)) for path in files if "__pycache__" not in path.parts}
    assert data <= set(names), "the report's scripts among them"
    assert "agileml/config/examples/aws.yaml" in names, "what `proteus configs` copies"

    (tmp_path / wheel.name).write_bytes(wheel.content)
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, f"--target={tmp_path / 'there'}", str(tmp_path / wheel.name)], check=True)
    asked = "import agileml, importlib.metadata as m; print(agileml.__file__, m.version('proteus-train'))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path / "there",
        env={"PYTHONPATH": str(tmp_path / "there")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "there/agileml/__init__.py"), version("proteus-train")]


def test_the_versions_of_this_environment() -> None:
    pins = dict(line.split("==") for line in build_wheel().constraints.splitlines())
    assert pins["ray"] == version("ray") and pins["torch"] == version("torch").partition("+")[0]
    assert "aiohttp" in pins, "what ray[default] adds"
    assert "pytest" not in pins and "moto" not in pins, "nothing of the extra dev"
    for name, found in pins.items():
        Requirement(f"{name}=={found}")
