"""`proteus configs`: every config of the project comes with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from agileml.cli.configs import examples
from agileml.config.job import load
from tests.agileml.cli.called import proteus
from tests.agileml.runs.full_disk import files_of_at_most

ROOT = Path(__file__).resolve().parents[3]


def test_all_of_them_are_listed_with_what_they_say_about_themselves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert proteus("configs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        p.stem for p in (ROOT / "configs").iterdir() if p.is_file()
    )
    for line in lines:
        said = line.split(maxsplit=1)[1]
        assert len(said.split()) >= 3 and said[-1] in ".)", f"a whole sentence: {line}"


def test_one_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("demo", "demo.yaml"):
        assert proteus("configs", name) == 0
        assert capsys.readouterr().out == (ROOT / "configs" / "demo.yaml").read_text()
    assert proteus("configs", "dmeo") == 2
    assert capsys.readouterr().err == "proteus: found 'dmeo', did you mean demo?\n"


def test_they_are_copied_and_own_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mf.yaml").write_text("mine")
    assert proteus("configs", "--copy", ".") == 0
    assert "configs/mf.yaml is there already and stays" in capsys.readouterr().err
    assert (tmp_path / "configs" / "mf.yaml").read_text() == "mine"
    assert len(list((tmp_path / "configs").iterdir())) == len(examples())
    assert load("configs/demo.yaml").clocks == 1000
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert proteus("configs", "--copy=~/mine") == 0
    assert not (tmp_path / "~").exists() and (tmp_path / "home" / "mine" / "configs" / "mf.yaml").is_file()
    (tmp_path / "file").touch()
    assert proteus("configs", "--copy", "file") == 2
    with files_of_at_most(10):
        assert proteus("configs", "--copy", "full") == 1
    assert "full/configs/aws.yaml could not be written: File too large" in capsys.readouterr().err
    assert list((tmp_path / "full" / "configs").iterdir()) == []
