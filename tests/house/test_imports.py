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
    "pipeline": {"cli", "report", "run", "stages", "profile/profiler.py", "profile/watch.py"},
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


def test_pure_modules_know_no_io_library() -> None:
    names = [name for package in SHELLS for name in modules(package)] + PURE_AMONG_SHELLS
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


def test_a_package_loads_only_what_it_always_needs() -> None:
    script = f"""
import sys
for statement in {[*(f"import {leaf}" for leaf in LEAVES), "import agileml; agileml.run; agileml.Application"]!r}:
    exec(statement)
    found = sys.modules.keys() & set({SELDOM_NEEDED!r})
    if found:
        sys.exit(f"{{statement}} also imports {{found}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_plots_leave_the_backend_of_the_users_own_alone() -> None:
    """In a notebook the user's plots below an import of ours were not shown any more."""
    reports = "bidbrain.report.plots, pipeline.report.plans, straggler.report.folder"
    script = f"import matplotlib as m; m.use('template'); import {reports}; print(m.get_backend())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "template\n"


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
