"""A script runs as Python runs it: its encoding, its package, its arguments, its main module."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import agileml
from agileml.application import InputError
from agileml.apps.loop.script import Script
from agileml.apps.loop.source import Main, ScriptSource, shown
from tests.agileml.apps.loop.scripts import HEAD, OPTIMIZER, PREPARE, loop, script, values

pytestmark = pytest.mark.usefixtures("one_thread")

READS_ARGUMENTS = """
import argparse
import time
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=24)
parser.parse_args()
"""
CLOSES = """
class Closing:
    def __enter__(self): return self
    def __exit__(self, *_): time.sleep(0.2)

with Closing():
    {}
"""


def test_a_script_that_still_closes_its_files_leaves_the_next_one_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was tried ends while the one that trains begins."""
    ours = ["proteus", "run", "job.yaml"]
    monkeypatch.setattr(sys, "argv", ours)
    main = sys.modules["__main__"]
    rest = CLOSES.format(loop().replace("\n", "\n    "))
    path = script(tmp_path, head=READS_ARGUMENTS + HEAD + "time.sleep(0.4)\nparser.parse_args()\n", rest=rest)
    result = agileml.run(values(path, clocks=3), sequential=True, out=str(tmp_path / "out"))
    assert result.summary["clocks"] == 3
    assert sys.argv is ours and sys.modules["__main__"] is main


def test_one_that_ends_late_leaves_the_present_one_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ["proteus"]
    monkeypatch.setattr(sys, "argv", ours)
    one, two = (shown(Main([name], types.ModuleType("__main__"))) for name in ("one", "two"))
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert sys.argv == ["two"]
    two.__exit__(None, None, None)
    assert sys.argv is ours


def test_a_process_has_its_own_main_module_while_a_script_waits(tmp_path: Path) -> None:
    """The one that was tried waits on beside the user's code, which pickles classes of the main module."""
    ours, main = sys.argv, sys.modules["__main__"]
    waiting = Script(ScriptSource.read(str(script(tmp_path))))
    waiting.prepared()
    assert sys.argv is ours and sys.modules["__main__"] is main
    waiting.stop()
    assert sys.argv is ours and sys.modules["__main__"] is main


def test_a_script_is_the_main_module(tmp_path: Path) -> None:
    """torch.compile looks up the names that a layer uses there, `dataclass` the names of annotations."""
    head = f"""from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar, get_type_hints
{HEAD}
from torch.nn.functional import relu

@dataclass
class Sizes:
    all: ClassVar[list] = []
    width: int = 24

assert get_type_hints(Sizes) == {{"all": ClassVar[list], "width": int}}

class Layer(nn.Linear):
    def forward(self, x):
        return relu(super().forward(x))

model = torch.compile(nn.Sequential(Layer(12, Sizes().width), nn.Linear(24, 2)), backend="eager")
"""
    path = script(tmp_path, head=head)
    result = agileml.run(values(path, clocks=2), sequential=True, out=str(tmp_path / "out"))
    assert result.summary["clocks"] == 2


@pytest.mark.parametrize(
    ("mark", "encoding"), [("", "utf-8-sig"), ("# coding: latin-1\n", "latin-1")], ids=["mark", "declared"]
)
def test_a_script_is_read_in_its_encoding(mark: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(mark + "found = 'größer'\nassert len(found) == 6\n", encoding=encoding)
    source = ScriptSource.read(str(path))
    source.run(source.main())
    path.write_bytes(b"found = '\xff'\n")
    with pytest.raises(InputError, match=r"train\.py cannot be read \(it is not UTF-8 text, and declares no"):
        ScriptSource.read(str(path))


def test_a_script_of_a_package_imports_what_stands_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "package" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "package" / "sizes.py").write_text("BATCH = 64\n")
    prepare = PREPARE.replace("Trainer()", 'Trainer(clocks=2, sequential=True, out="out")')
    rest = loop() + 'print("clocks", trainer.result.summary["clocks"])\n'
    prepare = "from ..sizes import BATCH\n" + prepare.replace("=64", "=BATCH")
    (package / "train.py").write_text(HEAD + OPTIMIZER + prepare + rest)
    ran = subprocess.run(
        [sys.executable, "-m", "package.inner.train"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.splitlines()[-1:] == ["clocks 2"], ran.stderr
