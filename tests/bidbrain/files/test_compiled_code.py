"""Where compiled code lies, so that numba takes our modules in any place."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from bidbrain.files import compiled_code

MODULE = """import numba

@numba.njit(cache=True)
def one():
    return 1
"""


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the home folder nor that of the package can be written to (files in their place: root may write to any
    folder). Returns the temporary directory."""
    (tmp_path / "__pycache__").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(compiled_code.VARIABLE, "")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(compiled_code, "__file__", str(tmp_path / "compiled_code.py"))
    return tmp_path / "tmp"


def imported(folder: Path) -> None:
    """Import a module that numba compiles, from a folder."""
    (folder / "own.py").write_text(MODULE)
    spec = importlib.util.spec_from_file_location("own", folder / "own.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_modules_are_imported_where_neither_home_nor_package_can_be_written_to(nowhere: Path) -> None:
    """As in a container that runs as a user of its own: numba said that no locator was available."""
    with pytest.raises(RuntimeError, match="cannot cache function"):
        imported(nowhere.parent)
    compiled_code.name_place()
    imported(nowhere.parent)
    place = nowhere / f"numba-{os.getuid()}"
    assert os.environ[compiled_code.VARIABLE] == str(place)
    assert place.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(nowhere: Path) -> None:
    (nowhere / f"numba-{os.getuid()}").mkdir()
    (nowhere / f"numba-{os.getuid()}").chmod(0o777)
    compiled_code.name_place()
    assert Path(os.environ[compiled_code.VARIABLE]).stat().st_mode & 0o777 == 0o700


def test_a_place_that_the_user_names_or_a_home_stays(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_code.VARIABLE, "/own")
    compiled_code.name_place()
    assert os.environ[compiled_code.VARIABLE] == "/own"
    monkeypatch.setenv(compiled_code.VARIABLE, "")
    monkeypatch.setenv("HOME", str(nowhere))
    compiled_code.name_place()
    assert os.environ[compiled_code.VARIABLE] == ""


@pytest.mark.parametrize("package", ["agileml", "bidbrain", "pipeline"])
def test_each_package_that_compiles_names_the_place_by_itself(package: str, tmp_path: Path) -> None:
    """bidbrain and pipeline are used without agileml, too."""
    script = (
        f"import os; os.access = lambda *_: False; import {package}; print(os.environ['NUMBA_CACHE_DIR'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != compiled_code.VARIABLE}
    environment |= {"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}/numba-{os.getuid()}\n", "")
