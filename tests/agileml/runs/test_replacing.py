"""Which folders a new run may use, and what it replaces there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agileml.events.run import (
    Process,
    RunStarted,
)
from agileml.events.schema import Logged, header, to_line
from agileml.runs.event_log import read_events
from agileml.runs.folder import FolderError, RunFolder, check_out
from agileml.runs.owner import owner_of, this_process
from agileml.runs.supervision import SUPERVISION, Supervision


def test_overwrite_replaces_a_run_that_is_over_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = RunFolder.create(out, "mf")
    first.events.write(RunStarted("mf", {}, 0.0, this_process()))
    first.write_summary({"loss": 1.0})
    (out / "notes.txt").write_text("the user's own")
    with pytest.raises(FolderError, match=f"belongs to a run that goes on .process {os.getpid()}."):
        check_out(out, overwrite=True)
    first.events.close()
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    ended = Logged(0.0, RunStarted("mf", {}, 0.0, Process(this_process().host, over.pid, 1.0)))
    (out / "events.jsonl").write_text(f"{header()}\n{to_line(ended)}\n")
    with pytest.raises(FolderError, match="or --overwrite to replace it"):
        RunFolder.create(out, "mf")
    again = RunFolder.create(out, "mf", overwrite=True)
    again.events.close()
    assert sorted(os.listdir(out)) == ["events.jsonl", "notes.txt"]
    assert read_events(out / "events.jsonl") == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_runs_that_begin_at_once_in_a_folder_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """As a batch system starts a command several times. The second removed the log that the first had just begun, and
    both went on."""
    out, make = tmp_path / "run", Path.mkdir
    first: list[RunFolder] = []

    def made(path: Path, *arguments: int, **options: bool) -> None:
        monkeypatch.undo()
        make(path, *arguments, **options)
        first.append(RunFolder.create(out, "first"))

    monkeypatch.setattr(Path, "mkdir", made)
    with pytest.raises(FolderError, match=r"holds another run|belongs to a run that has just begun"):
        RunFolder.create(out, "second", overwrite=overwrite)
    first[0].events.write(RunStarted("first", {}, 0.0, this_process()))
    first[0].events.close()
    assert [each.event.kind for each in read_events(out / "events.jsonl")] == ["run_started"]


@pytest.mark.parametrize("name", ["config.yaml", "market", "summary.json"])
def test_overwrite_leaves_files_of_such_names_that_no_run_has_written(tmp_path: Path, name: str) -> None:
    """As `--out .` in a project whose config is called config.yaml, or which keeps prices in a folder market."""
    own = tmp_path / name if "." in name else tmp_path / name / "prices.csv"
    own.parent.mkdir(exist_ok=True)
    own.write_text("the user's own")
    for overwrite in (False, True):
        with pytest.raises(
            FolderError, match=f"holds .*{name}.*, expected a new or an empty folder"
        ) as error:
            RunFolder.create(tmp_path, "mf", overwrite=overwrite)
        assert "or --overwrite to replace it" not in str(error.value)
    assert own.read_text() == "the user's own"
    assert os.listdir(tmp_path) == [name]


def test_a_replacement_that_is_broken_off_leaves_the_folder_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "mf")
    folder.write_config("clocks: 1")
    folder.write_summary({})
    folder.events.close()
    unlink, removed = Path.unlink, []

    def until_killed(file: Path, missing_ok: bool = False) -> None:
        removed.extend([file.name] * file.exists())
        if len(removed) > 1:
            raise KeyboardInterrupt
        unlink(file, missing_ok)

    monkeypatch.setattr(Path, "unlink", until_killed)
    with pytest.raises(KeyboardInterrupt):
        RunFolder.clear(tmp_path)
    monkeypatch.undo()
    RunFolder.create(tmp_path, "mf", overwrite=True).events.close()
    assert os.listdir(tmp_path) == ["events.jsonl"]


def test_overwrite_leaves_no_part_of_a_log_behind(tmp_path: Path) -> None:
    """A process that was killed while it packed a part leaves it twice. It would count as the new run's."""
    RunFolder.create(tmp_path, "mf").events.close()
    for name in ("events-000001.jsonl", "events-000001.jsonl.gz", "events-000002.jsonl"):
        (tmp_path / name).touch()
    RunFolder.create(tmp_path, "mf", overwrite=True).events.close()
    assert os.listdir(tmp_path) == ["events.jsonl"]


def record_of_an_ended_supervisor(*, is_over: bool) -> str:
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    return Supervision(Process(this_process().host, over.pid, 1.0), 10, is_over=is_over).to_text()


@pytest.mark.parametrize("record", ["is over", "damaged"])
def test_a_run_in_the_folder_of_a_supervised_one_is_its_own(tmp_path: Path, record: str) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "summary.json").write_text("{}")
    (out / SUPERVISION).write_text(
        record_of_an_ended_supervisor(is_over=True) if record == "is over" else "{"
    )
    folder = RunFolder.create(out, "mf", overwrite=True)
    folder.events.write(RunStarted("mf", {}, 0.0, this_process()))
    assert owner_of(out) == this_process()
    for overwrite in (False, True):
        with pytest.raises(FolderError, match=f"process {os.getpid()}|or --overwrite"):
            RunFolder.create(out, "mf", overwrite=overwrite)
    folder.events.close()
    assert [each.event.kind for each in read_events(out / "events.jsonl")] == ["run_started"]


@pytest.mark.parametrize("process", [this_process(), Process(this_process().host, os.getppid(), 1.0)])
def test_the_run_of_a_living_supervisor_keeps_its_record(tmp_path: Path, process: Process) -> None:
    """Also where the clock of the host was set since: then a process seems to have been created at another time."""
    out = tmp_path / "run"
    out.mkdir()
    (out / SUPERVISION).write_text(Supervision(process, 10).to_text())
    RunFolder.create(out, "mf").events.close()
    assert (out / SUPERVISION).is_file()


def test_a_supervised_run_that_can_go_on_is_replaced_only_on_request(tmp_path: Path) -> None:
    out = tmp_path / "run"
    RunFolder.create(out, "mf").events.close()
    (out / SUPERVISION).write_text(record_of_an_ended_supervisor(is_over=False))
    with pytest.raises(FolderError, match="or --overwrite to replace it"):
        check_out(out)
    (out / SUPERVISION).write_text(record_of_an_ended_supervisor(is_over=True))
    check_out(out)
