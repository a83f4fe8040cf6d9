"""`proteus checkpoint show`, the config's section, and how files reach the disk."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agileml.checkpoints.checkpoint import write_part
from agileml.checkpoints.opening import open_store
from agileml.cli import main
from agileml.config.checkpoint_location import FolderLocation, S3Location, location
from agileml.config.job import ConfigError, dump, from_values, load
from agileml.core.protocol.view import CutId
from tests.agileml.checkpoints.rig import WRITER, cut_of, write

JOB: dict[str, Any] = {"application": "mf", "clocks": 20}


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "show", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, out, err


def test_show_tells_what_is_whole_and_what_a_resume_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")  # of a terminal, which cuts no figure
    store = open_store(str(tmp_path))
    for clock in (10, 20, 30):
        write(store, CutId(clock, 2))
    write_part(store, CutId(40, 2), 0, cut_of(CutId(40, 2), 0))
    path = tmp_path / "clock-30-2" / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    code, out, err = show(capsys, str(tmp_path))
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and err == ""
    size = f"{sum(file.stat().st_size for file in (tmp_path / 'clock-20-2').iterdir()):,}"
    assert lines[2] == [
        "20",
        "2",
        "2001-09-09",
        "01:47:00",
        size,
        "2",
        "whole,",
        "a",
        "resume",
        "takes",
        "it",
    ]
    assert lines[1][-1] == "whole" and lines[3][-1] == "damaged" and lines[4][-2:] == ["-", "unfinished"]
    assert f"{path} is damaged: its SHA-256 is not that of what was written" in out
    code, out, _ = show(capsys, str(tmp_path), "--json")
    rows = json.loads(out)
    assert code == 0 and [row["clock"] for row in rows if row["resumes"]] == [20]
    assert [row["condition"] for row in rows] == ["whole", "whole", "damaged", "unfinished"]


def test_show_ends_with_1_when_nothing_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_part(open_store(str(tmp_path)), CutId(4, 2), 0, cut_of(CutId(4, 2), 0))
    code, out, err = show(capsys, str(tmp_path))
    assert code == 1 and "unfinished" in out
    assert err == "proteus: none of them is whole, so there is nothing to resume from\n"


def test_show_refuses_what_holds_no_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    write(open_store(str(tmp_path / "some")), CutId(4, 2))
    for path, sentence in {
        str(
            tmp_path / "none"
        ): "none does not exist, expected a folder or s3://bucket/prefix with checkpoints",
        str(tmp_path / "empty"): "empty holds no checkpoints, expected a folder",
        str(tmp_path / "file"): "file could not be read: Not a directory",
        str(
            tmp_path / "some" / "clock-4-2"
        ): "is one checkpoint or a part of one, expected the folder above it",
        "gs://bucket/x": "found an address of gs, expected a folder or s3://bucket/prefix",
        "s3://key:secret@bucket/x": "found an address with credentials or a port",
        "~nobody-of-this-name/x": "names a home folder that is not known here",
        "s3://B": "found the bucket 'B', expected 3 to 63",
    }.items():
        code, out, err = show(capsys, path)
        assert (code, out) == (2, "") and sentence in err and err.count("\n") == 1
        assert "secret" not in err


def test_the_command_line_does_not_load_what_only_checkpoints_need() -> None:
    heavy = ("boto3", "agileml.checkpoints.checkpoint")
    script = f"import sys, agileml.cli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", script], cwd=WRITER.parents[3], check=False).returncode == 0


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({}, "config: checkpoint.path: missing, expected a value"),
        ({"path": ""}, "config: checkpoint.path: found '', expected a folder or s3://bucket/prefix"),
        ({"path": "gs://b/x"}, "config: checkpoint.path: found an address of gs, expected a folder"),
        ({"path": "x", "keep": 0}, "config: checkpoint.keep: found 0, expected at least 1"),
        ({"path": "x", "every_s": 0}, "config: checkpoint.every_s: found 0, expected more than 0"),
        ({"path": "x", "every": 3}, "config: checkpoint.every: unknown key, did you mean every_s?"),
        ("x", "config: checkpoint: found 'x', expected a mapping of keys"),
    ],
)
def test_mistakes_in_the_section(section: object, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_values({**JOB, "checkpoint": section})
    assert str(raised.value).startswith(sentence)


def test_the_section_is_optional_and_loads_back(tmp_path: Path) -> None:
    assert from_values(JOB).checkpoint is None
    config = from_values({**JOB, "checkpoint": {"path": "s3://bucket/a"}})
    assert config.checkpoint is not None
    assert (config.checkpoint.every_s, config.checkpoint.keep) == (60.0, 2)
    (tmp_path / "job.yaml").write_text(dump(config))
    assert load(tmp_path / "job.yaml") == config


def test_locations() -> None:
    assert location("runs/a") == FolderLocation("runs/a")
    assert location("s3://bucket") == location("s3://bucket//") == S3Location("bucket", "")
    assert location("s3://my.bucket-1/a//b/") == S3Location("my.bucket-1", "a/b")


def test_data_is_on_disk_before_its_name_and_parts_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        steps.append(f"flush {'temporary' if name.endswith('.tmp') else name}")
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        steps.append(f"rename to {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write(open_store(str(tmp_path / "store")), CutId(1, 1))
    expected = ["flush " + tmp_path.name, "flush store"]  # the new folders
    for file in ("part-0.safetensors", "part-1.safetensors", "manifest.json"):
        expected += ["flush temporary", f"rename to {file}", "flush clock-1-1"]
    assert steps == expected


MEMORY = """
import ctypes, resource, sys
import numpy as np
from agileml.core.protocol.messages import Cut
from agileml.core.protocol.view import CutId
from agileml.checkpoints.checkpoint import Manifest, newest, read_part, write_manifest, write_part
from agileml.checkpoints.opening import open_store
from tests.agileml.checkpoints.rig import IDENTITY

def grown(since):
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - since

cut = Cut(1, (np.ones(32 << 20), np.ones((100, 4), np.float32)), ())
store, size = open_store(sys.argv[1]), cut.blocks[0].nbytes
before = grown(0)
part = write_part(store, CutId(1, 1), 0, cut)
writing = grown(before)
write_manifest(store, Manifest(CutId(1, 1), 0.0, IDENTITY, (part,)))
found = newest(store, print)
before = grown(0)
read_part(store, found, 0)
print(writing / size, grown(before) / size)
"""


@pytest.mark.slow
def test_a_large_cut_is_not_copied_to_be_written_and_once_to_be_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        cwd=WRITER.parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    writing, reading = map(float, done.stdout.split())
    print(f"memory in sizes of the cut: {writing:.2f} to write, {reading:.2f} to read")
    assert writing < 0.15 and reading < 1.2
