"""The working folder of a run: a file there that hides a module of Ray's processes is named before they start."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

import agileml
from agileml.checkpoints.errors import CheckpointError
from agileml.cli import main
from agileml.cluster.travel import PACKAGES
from agileml.runs.folder import FolderError
from agileml.session.places import check_shadows
from tests.agileml.runs.closed import without_rights


@pytest.mark.parametrize("name", ["random.py", "numpy.py", "json"])
def test_a_hidden_module_is_named(name: str, tmp_path: Path) -> None:
    if name.endswith(".py"):
        (tmp_path / name).touch()
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    with pytest.raises(FolderError, match=f"{name} hides the module {name.removesuffix('.py')}"):
        check_shadows(tmp_path)


def test_files_of_ones_own_are_not_named(tmp_path: Path) -> None:
    for name in ("net.py", "antigravity.py", "random.txt", "numpy.yaml"):  # no process imports antigravity
        (tmp_path / name).touch()
    (tmp_path / "json").mkdir()  # no package
    check_shadows(tmp_path)


def test_a_folder_that_is_closed_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As services of others have them in /tmp."""
    tmp_path.chmod(0o755)
    (tmp_path / "json").mkdir(mode=0o000)
    monkeypatch.chdir(tmp_path)  # whose parents may be closed, too
    with without_rights():
        check_shadows(Path())


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    """As `result.folder / "checkpoints"` is one."""
    job = {"application": "mlr", "data": {"kind": "blobs"}, "clocks": 4, "out": tmp_path / "out"}
    saved = {"path": tmp_path / "new"}
    with pytest.raises(CheckpointError, match="saved holds no whole checkpoint, expected one to resume from"):
        agileml.run(job, resume=tmp_path / "saved", checkpoint=saved)


@pytest.mark.parametrize(
    "words", [["run"], ["run", "--supervise"], ["submit", "--address", "http://127.0.0.1:1"]]
)
def test_a_run_says_so_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A process that is supervised ended with a stack trace, and was started ten times more; so ended a job."""
    (tmp_path / "random.py").write_text("def f(): pass")
    (tmp_path / "job.yaml").write_text(
        "application: mlr\ndata: {kind: blobs}\nclocks: 4\nclocks_per_pass: 4\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*words, "job.yaml"])
    assert ended.value.code == 2
    told = "hides the module random that Ray's processes need, expected another name for it"
    assert capsys.readouterr().err == f"proteus: {tmp_path}/random.py {told}\n"
    assert not (tmp_path / "runs").exists()


def copy_of_ours(folder: Path) -> Path:
    for name in PACKAGES:
        package = Path(importlib.import_module(name).__file__ or "").parent
        shutil.copytree(package, folder / name, ignore=shutil.ignore_patterns("__pycache__", "examples"))
    return folder


def test_the_checkout_that_proteus_was_installed_from_may_be_the_working_folder(tmp_path: Path) -> None:
    """The image's own example, and `pip install .` with a run beside it, were told to rename `agileml`."""
    checkout = copy_of_ours(tmp_path)
    check_shadows(checkout)
    with (checkout / "agileml" / "errors.py").open("a") as changed:
        changed.write("NEWER = True\n")
    with pytest.raises(FolderError, match="is other code of Proteus than what is installed in"):
        check_shadows(checkout)


def test_a_package_of_ones_own_may_not_have_the_name_of_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").touch()
    with pytest.raises(FolderError, match="hides the module pipeline"):
        check_shadows(tmp_path)
