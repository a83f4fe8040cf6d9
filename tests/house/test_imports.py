"""Layers: leaves know no other package, pure modules know no I/O library."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.house.floors import parsed

ROOT = Path(__file__).resolve().parents[2]
LEAVES = ("bidbrain", "straggler", "pipeline")
IO_LIBRARIES = ("ray", "boto3", "torch", "zmq", "matplotlib")
# Installed with the project, but slow to import: loaded by the commands and applications that need them.
SELDOM_NEEDED = ("statsmodels", "matplotlib", "boto3", "sklearn", "torch")

# Modules and folders that may do I/O; every other module is pure.
SHELLS = {
    "bidbrain": {"aws", "cli", "report", "live", "history/fetch.py"},
    "straggler": {"cli", "report"},
    "pipeline": {"cli", "report", "run", "stages", "profile/profiler.py"},
    "agileml/core": set(),
}
# Pure modules in folders of shells.
PURE_AMONG_SHELLS = ["agileml.cluster.orphan", "agileml.net.codec", "agileml.net.wire"]


def modules(package: str) -> list[str]:
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / package).rglob("*.py")
        if not {path.relative_to(ROOT / package).parts[0], str(path.relative_to(ROOT / package))}
        & SHELLS[package]
    )


@pytest.mark.parametrize(
    "names", [*map(modules, SHELLS), PURE_AMONG_SHELLS], ids=[*SHELLS, "pure among shells"]
)
def test_pure_modules_know_no_io_library(names: list[str]) -> None:
    script = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    found = [library for library in {IO_LIBRARIES!r} if library in sys.modules]
    if found:
        sys.exit(f"importing {{name}} also imports {{found}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "script", ["import agileml; agileml.run; agileml.Application", *(f"import {leaf}" for leaf in LEAVES)]
)
def test_a_package_loads_only_what_it_always_needs(script: str) -> None:
    check = f"{script}; import sys; sys.exit(', '.join(sys.modules.keys() & set({SELDOM_NEEDED!r})) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@cache
def imported_packages(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_imports_no_other_package(leaf: str) -> None:
    others = {*LEAVES, "agileml"} - {leaf}
    wrong = {
        str(path.relative_to(ROOT)): sorted(imported_packages(path) & others)
        for path in (ROOT / leaf).rglob("*.py")
        if imported_packages(path) & others
    }
    assert not wrong
