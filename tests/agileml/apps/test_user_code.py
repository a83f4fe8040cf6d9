"""Where a config names the user's code, a file's path is as good as a module's name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agileml.application import InputError
from agileml.apps import application_class
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


@pytest.mark.parametrize(
    ("file", "name", "lacks"),
    [
        ("pipeline.py", "pipeline:make", "module pipeline has no 'make'"),
        ("pipeline/__init__.py", "pipeline.mine:make", "there is no module 'pipeline.mine'"),
        ("time.py", "time:make", "module time has no 'make'"),
    ],
)
def test_a_file_that_has_the_name_of_another_module_is_named(
    file: str, name: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence spoke of a name that the user saw in that file."""
    import pipeline

    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("def make(): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    place = "Python itself" if file == "time.py" else pipeline.__file__
    for ask in (lambda: function_named(name, "model.module"), lambda: application_class(name)):
        with pytest.raises(InputError) as error:
            ask()
        assert lacks in str(error.value)
        told = f"is that of {place}, expected another name for {tmp_path / file}"
        assert str(error.value).endswith(told)
    with pytest.raises(InputError) as error:
        function_named("json:make", "model.module")  # no file of the user's has that name
    assert str(error.value).endswith("module json has no 'make'")
