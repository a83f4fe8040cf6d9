"""What is submitted and where its results go; and how a run stands, by its folder, whoever wrote it."""

from __future__ import annotations

import json
import re
import shlex
import socket
import zipfile
from pathlib import Path

import pytest

from agileml.cli import jobs, main
from agileml.cli.jobs import newest
from agileml.cluster.errors import ClusterError
from agileml.cluster.job_server import SubmittedJob
from agileml.cluster.submission import below_results, new_id, settled, submission
from agileml.config.job import from_values
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.folder import CONFIG, FolderError
from agileml.runs.owner import this_process
from agileml.runs.status import State, read_status, stop_process
from agileml.runs.supervision import SUPERVISION, Supervision

JOB = {"application": "mlr", "clocks": 8}


def test_the_working_folder_travels_or_else_the_configs_own(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project / "configs", elsewhere):
        folder.mkdir(parents=True)
        (folder / "my job.yaml").touch()
    inside = submission(Path("configs/my job.yaml"), ["--set", "seed=3 4"], here=project)
    assert (inside.folder, inside.config) == (project, Path("configs/my job.yaml"))
    words = shlex.split(inside.entrypoint)
    assert words[:5] == ["exec", "python", "-m", "agileml.cli", "submitted"]
    assert words[5:] == [inside.id, "configs/my job.yaml", "--set", "seed=3 4"]
    outside = submission(elsewhere / "my job.yaml", [], here=project)
    assert (outside.folder, outside.config) == (elsewhere, Path("my job.yaml"))


def test_a_config_that_is_a_link_travels_with_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    project, shared = tmp_path / "project", tmp_path / "shared"
    for folder in (project, shared):
        folder.mkdir()
    (shared / "base.yaml").write_text("clocks: 8")
    (project / "job.yaml").symlink_to(shared / "base.yaml")
    (tmp_path / "link").symlink_to(project)
    for config in (Path("job.yaml"), project / "job.yaml", tmp_path / "link" / "job.yaml"):
        found = submission(config, [], here=project)
        assert (found.folder, found.config) == (project, Path("job.yaml"))
    assert packed(project, [], tmp_path / "upload.zip") == {"job.yaml"}


def test_a_home_folder_is_not_uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.yaml").touch()
    with pytest.raises(ClusterError, match="expected a project's folder"):
        submission(Path("job.yaml"), [], here=tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)  # as where the disk of home folders is elsewhere
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    with pytest.raises(ClusterError, match="expected a project's folder"):
        submission(Path("job.yaml"), [], here=tmp_path / "link")
    monkeypatch.delenv("HOME")  # and the system does not know this user
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert submission(Path("job.yaml"), [], here=tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    ("config", "ignored", "why"),
    [
        ("runs/mlr-1/config.yaml", "", "results of earlier runs stay here"),
        ("job.yaml", "*.yaml\n", ".gitignore names it"),
        ("configs/own/job.yaml", "configs/\n", ".gitignore names it"),
        ("configs/own/job.yaml", "own\n!job.yaml\n", ".gitignore names it"),
        ("configs/job.yaml", "/job.yaml\n*.yml\n", None),
        ("job.yaml", "*.yaml\n!job.yaml\n", None),
        ("runs/job.py.yaml", "", "results of earlier runs stay here"),
        ("own/runs/job.yaml", "", None),
    ],
)
def test_a_config_that_would_stay_here_is_refused(
    tmp_path: Path, config: str, ignored: str, why: str | None
) -> None:
    """The job failed on the head, as it found no config."""
    project = tmp_path / "project"
    (project / config).parent.mkdir(parents=True)
    (project / config).touch()
    (project / ".gitignore").write_text(ignored)
    if why is None:
        excludes = submission(Path(config), [], here=project).runtime_env(10)["excludes"]
        assert config in packed(project, excludes, tmp_path / "upload.zip")
        return
    with pytest.raises(
        ClusterError, match=f"found {config}, which is not uploaded with .*{re.escape(why)}; "
    ):
        submission(Path(config), [], here=project)
    assert config not in packed(project, ["/runs/*"], tmp_path / "upload.zip")


def packed(folder: Path, excludes: list[str], to: Path) -> set[str]:
    """The files of a folder that Ray uploads, as it packs them itself."""
    from ray._private.runtime_env.packaging import create_package

    create_package(str(folder), to, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(to) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_our_packages_travel_whole_and_results_of_earlier_runs_stay(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("job.yaml", "own/runs/kept.py", "runs/mlr-1/events.jsonl", "runs/notes.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    environment = submission(Path("job.yaml"), [], here=project).runtime_env(10)
    excludes = environment["excludes"]
    assert packed(project, excludes, tmp_path / "project.zip") == {"job.yaml", "own/runs/kept.py"}
    assert len(environment["py_modules"]) == 4
    for package in map(Path, environment["py_modules"]):
        ours = {str(file.relative_to(package)) for file in package.rglob("*") if file.is_file()}
        sent = packed(package, excludes, tmp_path / f"{package.name}.zip")
        assert {name for name in ours if "__pycache__" not in name} <= sent
        assert not any("__pycache__" in name for name in sent)


def test_ids_say_what_and_are_never_twice() -> None:
    assert new_id("my job!").startswith("my-job-")
    assert new_id("job") != new_id("job")


def test_results_stay_on_the_head() -> None:
    home = Path("/home/me")
    plain = settled(from_values(JOB), "job-1", home)
    assert (plain.address, plain.out) == ("auto", "/home/me/proteus-runs/job-1")
    own = from_values({**JOB, "out": "mine", "checkpoint": {"path": "kept"}})
    found = settled(own, "job-1", home)
    assert found.out == "/home/me/proteus-runs/mine"
    assert found.checkpoint is not None and found.checkpoint.path == "/home/me/proteus-runs/kept"
    for place in ("/data/kept", "~/kept", "s3://bucket/kept"):
        assert below_results(place, home) == place


def test_a_tilde_in_out_is_the_home_folder_and_no_folder_of_the_upload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray removes the uploaded folder, in which the job runs, when the job ends."""
    monkeypatch.setenv("HOME", "/home/me")
    for job in (from_values({**JOB, "out": "~/mine"}), from_values(JOB).changed(out="~/mine")):
        assert settled(job, "job-1", Path("/home/me")).out == "/home/me/mine"


def test_the_newest_line_of_progress_is_found_among_other_output() -> None:
    log = ["Running entrypoint", "clock 1/9", "clock 5/9, loss 0.5, stage 2", "machine m1 lost", ""]
    found = newest(log)
    assert found is not None and (found[0].clock, found[0].loss) == (5, 0.5)
    assert newest(["nothing yet"]) is None


def sequential(out: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "configs/mlr.yaml", "--sequential", "--set", "clocks=8", "--out", str(out)])
    assert left.value.code == 0


class OneLogGone:
    """A job server one of whose jobs ran on a node that has gone: Ray cannot read its output any more."""

    url = "http://127.0.0.1:8265"

    def jobs(self) -> list[SubmittedJob]:
        return [SubmittedJob(name, "RUNNING", "", 1.0, None, None) for name in ("old", "new")]

    def log(self, name: str) -> str:
        if name == "old":
            raise ClusterError("logs of old: Request failed with status code 500")
        return "clock 3/8, loss 0.5\n"


def test_a_job_whose_output_has_gone_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "server_at", lambda address: OneLogGone())
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    said = capsys.readouterr()
    assert not ended.value.code
    first, second, third = said.out.splitlines()
    assert first.startswith("old: RUNNING") and second.startswith("new: RUNNING")
    assert third == "  clock 3/8, loss 0.5"
    assert said.err == "proteus: logs of old: Request failed with status code 500\n"


@pytest.mark.parametrize("command", ["status", "logs", "stop", "watch"])
def test_a_job_is_meant_where_a_cluster_is_named_though_a_copy_of_its_results_lies_here(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`scp -r HEAD:proteus-runs/$ID .`, as the guide has it, made each of them look at the copy."""
    (tmp_path / "mlr-1").mkdir()
    (tmp_path / "mlr-1" / EVENTS).touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main([command, "mlr-1", "--address", "http://127.0.0.1:1"])
    assert left.value.code == 2
    assert "no dashboard answers at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_run_is_read_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    sequential(out)
    done = read_status(out)
    assert (done.state, done.snapshot.clock, done.snapshot.clocks) == (State.DONE, 8, 8)
    assert done.process == this_process()
    (out / "summary.json").unlink()
    # Its process, this one, is alive, but has let go of the log.
    assert read_status(out).state is State.BROKEN
    log = EventLog(out / EVENTS, continue_at_s=1.0)
    assert read_status(out).state is State.RUNNING
    log.close()
    pretend(out, created_s=1.0)
    assert read_status(out).state is State.BROKEN
    assert not stop_process(read_status(out).process, out)
    pretend(out, host="elsewhere")
    assert read_status(out).state is State.RUNNING  # nobody here can know better
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["status", str(out), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["clock"], shown["process"]["host"]) == ("running", 8, "elsewhere")


def pretend(out: Path, **changes: object) -> None:
    """Another process ran it."""
    log = out / "events.jsonl"
    header, first, *rest = log.read_text().splitlines()
    event = json.loads(first)
    event["process"] |= {"host": socket.gethostname(), **changes}
    log.write_text("\n".join([header, json.dumps(event), *rest, ""]))


class CouldNotBegin:
    """A job server one of whose jobs has ended before it printed a word."""

    url = "http://127.0.0.1:8265"

    def job(self, name: str) -> SubmittedJob:
        why = "runtime_env setup failed: Failed to set up runtime environment.\nNo space left on device"
        return SubmittedJob(name, "FAILED", why, 1.0, 2.0, None)

    def log(self, name: str) -> str:
        return ""


def test_a_job_that_could_not_begin_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was said to have failed, and not a word more; its logs are empty."""
    monkeypatch.setattr(jobs, "server_at", lambda address: CouldNotBegin())
    with pytest.raises(SystemExit) as ended:
        main(["status", "mlr-1"])
    assert not ended.value.code
    assert capsys.readouterr().out.splitlines() == [
        "mlr-1: FAILED, 1 s",
        "  runtime_env setup failed: Failed to set up runtime environment. No space left on device",
    ]


def test_a_log_of_another_version_is_a_sentence(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sequential(out)
    (out / "events.jsonl").write_text('{"t_s": 0.0, "kind": "run_started"}\n')
    with pytest.raises(
        FolderError, match=r"events\.jsonl, line 1: found no version, expected a log of version 1"
    ):
        read_status(out)


def test_a_supervised_run_that_has_begun_no_more_than_its_log_is_running(tmp_path: Path) -> None:
    EventLog(tmp_path / EVENTS).close()
    (tmp_path / CONFIG).write_text("clocks: 8\n")
    (tmp_path / SUPERVISION).write_text(Supervision(this_process(), 3).to_text())
    found = read_status(tmp_path)
    assert (found.state, found.snapshot.clock, found.seconds) == (State.RUNNING, 0, 0.0)


def test_a_folder_without_a_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        FolderError, match=r"holds no run, expected a folder with events.jsonl and config.yaml"
    ):
        read_status(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stop", "{out}"], "{out} belongs to process"),
        (["status", "{tmp}"], "{tmp} holds no run"),
        (["logs", "{tmp}"], "{tmp} holds no run, expected the id of a job"),
        *(
            ([command, place], f"{place} {what}, expected the id of a job or the folder of a run")
            for command in ("status", "logs", "watch", "stop")
            for place, what in (("{tmp}/file", "is a file"), ("{tmp}/none", "does not exist"))
        ),
        (
            ["submit", "configs/mlr.yaml", "--restarts", "3"],
            "found --restarts without --supervise, expected both",
        ),
        (
            ["submit", "configs/mlr.yaml", "--address", "127.0.0.1:1"],
            "address: nobody listens at 127.0.0.1:1",
        ),
        (
            ["logs", "job-1", "--address", "http://127.0.0.1:1"],
            "address: no dashboard answers at http://127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    if "{out}" in arguments:
        sequential(out)
        (out / "summary.json").unlink()
        pretend(out, host="elsewhere")
        capsys.readouterr()
    (tmp_path / "file").touch()
    names = {"out": str(out), "tmp": str(tmp_path)}
    with pytest.raises(SystemExit) as left:
        main([argument.format(**names) for argument in arguments])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("proteus: " + sentence.format(**names)), said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("in_config", "option", "asked"),
    [
        ("auto", None, "http://named:8265"),
        (None, None, "http://named:8265"),
        ("10.0.0.5:6379", None, "10.0.0.5:6379"),
        ("auto", "10.0.0.6:6379", "10.0.0.6:6379"),
    ],
)
def test_a_job_goes_to_the_cluster_that_the_environment_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    in_config: str | None,
    option: str | None,
    asked: str,
) -> None:
    """Also where the config says `auto`, as that of every job on a cloud does."""

    def find(address: str) -> str:
        raise ClusterError(f"asked {address}")

    monkeypatch.setattr("agileml.cluster.job_server.find_server", find)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://named:8265")
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "address": in_config}))
    with pytest.raises(SystemExit):
        main(["submit", str(tmp_path / "job.yaml"), *(["--address", option] if option else [])])
    assert f"asked {asked}\n" in capsys.readouterr().err


def test_a_plan_that_the_head_would_refuse_is_not_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "plan": [{"at_clock": 2, "kill": 1}]}))
    with pytest.raises(SystemExit) as left:
        main(["submit", str(tmp_path / "job.yaml"), "--address", "http://127.0.0.1:1"])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("proteus: plan[0]: found kill with an address, expected no")
