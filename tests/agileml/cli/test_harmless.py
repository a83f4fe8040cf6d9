"""What others have written moves no cursor and sets no clipboard when a command shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agileml.events.run import Process, RunStarted
from agileml.events.schema import Logged, header, to_line
from agileml.events.sums import Standing
from tests.agileml.cli.called import proteus

ESCAPES = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b"


def test_the_status_of_a_run_from_elsewhere_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = RunStarted("mf", {}, 0.0, Process(f"host{ESCAPES}", 1, 1.0))
    lines = [
        header(),
        *(to_line(Logged(0.0, each)) for each in (begun, Standing(1, 3, 0.5, 1, 1, 0, ESCAPES, None))),
    ]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "config.yaml").write_text("clocks: 3\n")
    assert proteus("status", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "process 1 of host\\x1b]52;c;" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)


def test_the_problem_of_a_checkpoint_from_elsewhere_is_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clock-1-1").mkdir()
    (tmp_path / "clock-1-1" / "manifest.json").write_text('{"format": "\\u001b[2J"}')
    assert proteus("checkpoint", "show", str(tmp_path)) == 1
    shown = capsys.readouterr()
    assert "has format \\x1b[2J" in shown.out and "\x1b" not in shown.out + shown.err
