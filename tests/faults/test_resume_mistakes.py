"""A resume that cannot go on says why in one sentence, with exit code 2, and overwrites nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from agileml.cli import main
from tests.faults.fault_rig import MLR, FaultRig, job

CLOCKS = 30


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints, each from the end of a run."""
    folder = tmp_path_factory.mktemp("checkpointed")
    place = {"path": str(folder / "saved"), "every_s": 3600.0}
    FaultRig(job(MLR, clocks=CLOCKS // 2, checkpoint=place), folder / "first").finish()
    FaultRig(job(MLR, clocks=CLOCKS, checkpoint=place), folder / "second", resume=place["path"]).finish()
    assert len(list((folder / "saved").glob("clock-*"))) == 2
    return folder / "saved"


def proteus(*arguments: str) -> int:
    sys.argv = ["proteus", *arguments]
    with pytest.raises(SystemExit) as ended:
        main()
    return int(str(ended.value.code or 0))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def newest(saved: Path) -> Path:
    return max(saved.glob("clock-*"), key=lambda path: int(path.name.split("-")[1]))


def damage_all(saved: Path) -> None:
    for part in saved.rglob("part-0.safetensors"):
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(bytes(content))


def truncate_all(saved: Path) -> None:
    for part in saved.rglob("part-0.safetensors"):
        part.write_bytes(part.read_bytes()[:-9])


def another_version(saved: Path) -> None:
    from agileml.checkpoints.manifest import _checksum

    for path in saved.rglob("manifest.json"):
        plain = json.loads(path.read_text())
        del plain["checksum"]
        plain["identity"]["version"] = "0.0.1"
        path.write_text(json.dumps({**plain, "checksum": _checksum(plain)}))


def nothing(saved: Path) -> None:
    pass


MISTAKES: list[tuple[dict[str, object], Callable[[Path], None], str]] = [
    (
        {"application": "mf", "data": {"kind": "made"}},
        nothing,
        'application: found "mf", expected "mlr" as in the',
    ),
    ({"model": {"l2": 2.0}}, nothing, "model.l2: found 2.0, expected nothing as in the checkpoint clock-30-"),
    (
        {"optimizer": {"kind": "adam", "learning_rate": 0.1}},
        nothing,
        "optimizer.learning_rate: found 0.1, expected 0.05",
    ),
    ({"seed": 5}, nothing, "seed: found 5, expected 0 as in the checkpoint clock-30-"),
    ({"slices": 16}, nothing, "slices: found 16, expected 8 as in the checkpoint clock-30-"),
    ({"clocks": CLOCKS - 1}, nothing, "saved is at clock 30, expected at most clocks = 29"),
    ({}, another_version, 'version: found "0.1.0", expected "0.0.1" as in the checkpoint clock-30-'),
    ({}, damage_all, "holds no whole checkpoint, expected one to resume from"),
    ({}, truncate_all, "holds no whole checkpoint, expected one to resume from"),
]


def name_of(value: object) -> str:
    """The same in every process that collects the tests."""
    return str(getattr(value, "__name__", value))[:50]


@pytest.mark.parametrize(("changes", "spoil", "sentence"), MISTAKES, ids=name_of)
def test_a_resume_that_cannot_go_on(
    changes: dict[str, object],
    spoil: Callable[[Path], None],
    sentence: str,
    checkpointed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = copied(checkpointed, tmp_path / "saved")
    spoil(saved)
    values = job(MLR, clocks=CLOCKS, checkpoint={"path": "saved"}) | changes
    Path("job.yaml").write_text(yaml.safe_dump(values))
    before = contents(tmp_path)
    assert proteus("run", "job.yaml", "--resume", "saved", "--out", "out") == 2
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert last.startswith("proteus: ")
    assert sentence in last
    assert "Traceback" not in said.err
    assert said.out == ""
    assert contents(tmp_path) == before
    assert not Path("out").exists()


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def test_a_damaged_newest_checkpoint_is_said_and_the_one_before_is_taken(
    checkpointed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from agileml.checkpoints.checkpoint import Check
    from agileml.checkpoints.checkpoint import newest as newest_whole
    from agileml.checkpoints.opening import open_store

    saved = copied(checkpointed, tmp_path / "saved")
    damage_all(newest(saved))
    said: list[str] = []
    found = newest_whole(open_store(str(saved)), said.append, Check.CHECKSUMS)
    assert found is not None
    assert 0 < found.name.clock < CLOCKS
    assert len(said) == 1
    assert "is damaged: its SHA-256 is not that of what was written" in said[0]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nowhere", "nowhere"),
        ("job.yaml", "job.yaml"),
        ("s3://", "s3://"),
    ],
)
def test_a_place_without_checkpoints(
    place: str,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(yaml.safe_dump(job(MLR)))
    assert proteus("run", "job.yaml", "--resume", place, "--out", "out") == 2
    said = capsys.readouterr().err
    assert said.startswith("proteus: ")
    assert said.count("\n") == 1
    assert sentence in said
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_a_new_run_takes_no_place_that_holds_another_runs_checkpoints(
    checkpointed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copied(checkpointed, tmp_path / "saved")
    Path("job.yaml").write_text(yaml.safe_dump(job(MLR, checkpoint={"path": "saved"})))
    before = contents(tmp_path)
    assert proteus("run", "job.yaml", "--out", "out") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(tmp_path) == before
