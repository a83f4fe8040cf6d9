"""The front page does what it says: its loop trains before and after, and its commands run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
NET = """
import torch
generator = torch.Generator().manual_seed(0)
dataset = torch.utils.data.TensorDataset(
    torch.randn(640, 12, generator=generator), torch.randint(0, 3, (640,), generator=generator)
)
def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
"""
LOSS = """
with torch.no_grad():
    x, y = dataset.tensors
    print("loss", float(cross_entropy(model(x), y)))
"""


def loops() -> tuple[str, str]:
    """The script of the page without and with Proteus."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```", README, re.M | re.S)
    lines = diff.splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    return "\n".join(before), "\n".join(after)


def loss_of(folder: Path, script: str) -> float:
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(script + LOSS)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=True, timeout=250
    )
    return float(done.stdout.split("loss ")[-1])


@pytest.mark.slow  # three processes that import torch
def test_the_loop_of_the_page_trains_without_proteus_and_with_it(tmp_path: Path) -> None:
    before, after = loops()
    assert "agileml" not in before
    one = after.replace("agileml.Trainer(", 'agileml.Trainer(sequential=True, out="out", ')
    untrained = loss_of(tmp_path / "untrained", before.partition("loader =")[0])
    plain, elastic = loss_of(tmp_path / "plain", before), loss_of(tmp_path / "elastic", one)
    assert plain < untrained and elastic < untrained
    assert elastic == pytest.approx(plain, rel=0.02)  # the same steps over batches in another order


@pytest.mark.slow
@pytest.mark.cluster
def test_the_loop_of_the_page_trains_on_four_machines(tmp_path: Path) -> None:
    _, after = loops()
    elastic = loss_of(tmp_path / "elastic", after.replace("agileml.Trainer(", 'agileml.Trainer(out="out", '))
    one = loss_of(tmp_path / "one", after.replace("agileml.Trainer(", "agileml.Trainer(sequential=True, "))
    assert elastic == one


def commands() -> list[str]:
    """The commands that the page says run as they stand."""
    text = README.partition("## Commands")[2].partition("With a cluster")[0]
    return [line.partition("#")[0].strip() for line in text.splitlines() if line.startswith("    proteus ")]


def test_the_page_has_commands() -> None:
    assert len(commands()) >= 7
    assert {shlex.split(each)[1] for each in commands()} >= {"run", "chaos", "simulate", "doctor"}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_runs_as_it_stands(command: str, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    words = [sys.executable, "-m", "agileml.cli", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
