"""Where a config names the user's code, a file's path is as good as a module's name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agileml.application import InputError
from agileml.apps.user_code import function_named, split_name


@pytest.mark.parametrize(
    "name", ["own_models.one:make", "own_models/one.py:make", "./own_models/one.py:make"]
)
def test_a_file_and_a_module_are_one_syntax(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "one.py").write_text("def make():\n    return 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert function_named(name, "model.module")() == 7
    finally:
        for module in [each for each in sys.modules if each.startswith("own_models")]:
            del sys.modules[module]


def test_a_file_outside_the_working_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines on other hosts get the working folder, and import from there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"model\.module: /elsewhere/one\.py:make: there is no module"):
        function_named("/elsewhere/one.py:make", "model.module")
    assert split_name("one.py") is None


def test_a_module_that_is_a_program_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program_of_mine.py").write_text(
        "import argparse\nargparse.ArgumentParser().parse_args(['--none'])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(
        InputError, match=r"importing program_of_mine called exit\(2\), expected a module whose program"
    ):
        function_named("program_of_mine:make", "model.module")
