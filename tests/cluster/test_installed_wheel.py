"""A built wheel in a fresh environment, far from any checkout: the checks pass and the demo runs, from any folder."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT = ("agileml", "bidbrain", "straggler", "pipeline", "configs")
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def build(folder: Path) -> Path:
    """The wheel of a copy of the sources, so that nothing is built inside the checkout."""
    source = folder / "source"
    source.mkdir()
    for name in BUILT:
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in FILES:
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(folder), "."], cwd=source, check=True)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def proteus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of a fresh environment, whose third-party packages are those of this one: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched last, and its own .pth files, such as that of an editable install, are not read.
    (packages / "shared.pth").write_text("\n".join(site.getsitepackages()))
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([str(python), *install, str(build(folder))], env=outside(), check=True)
    return folder / "venv" / "bin" / "proteus"


def outside() -> dict[str, str]:
    """An environment that knows nothing of the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def call(proteus: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [str(proteus), *arguments],
        cwd=folder, env=outside(), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_the_wheel_that_runs(proteus: Path, tmp_path: Path) -> None:
    asked = [str(proteus.with_name("python")), "-c", "import agileml, pipeline; print(agileml.__file__)"]
    done = subprocess.run(asked, cwd=tmp_path, env=outside(), capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(proteus.parents[1])


def test_doctor_passes(proteus: Path, tmp_path: Path) -> None:
    said = call(proteus, tmp_path, "doctor")
    assert "This computer can run Proteus" in said
    assert str(ROOT) not in said


def test_the_demo_runs_from_any_folder(proteus: Path, tmp_path: Path) -> None:
    call(proteus, tmp_path, "configs", "--copy", ".")
    settings = ["clocks=200", "optimizer.learning_rate=0.01"]  # shorter than the real one
    words = [word for setting in settings for word in ("--set", setting)]
    said = call(proteus, tmp_path, "run", "configs/demo.yaml", *words, "--out", "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["same_as_sequential"] is True, said
    assert (tmp_path / "run" / "report.html").is_file()
    assert str(ROOT) not in (tmp_path / "run" / "events.jsonl").read_text()
