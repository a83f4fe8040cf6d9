"""`proteus` as a person uses it: what it prints, its exit codes, and that a mistake leaves nothing behind."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from agileml.cli import main
from agileml.runs.event_log import EventLog
from tests.agileml.cli.called import proteus
from tests.agileml.runs.model_file import model_sha256

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
PROTEUS = [sys.executable, "-m", "agileml.cli"]
JOB = """\
application: mlr
data: {kind: blobs, examples: 200, features: 5, classes: 3}
clocks: 20
clocks_per_pass: 4
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)


@pytest.mark.parametrize(("command", "code"), [(["configs", "mf"], 0), (["configs", "nothing"], 2)])
def test_closed_streams_take_nothing(command: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `>&- 2>&-` of a shell: Python has no stream at all then."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert proteus(*command) == code


def test_a_sequential_run_leaves_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert proteus("run", "job.yaml", "--sequential", "--set", "clocks=24", "--set", "seed=3") == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("job-")
    assert sorted(os.listdir(folder)) == [
        "config.yaml", "events.jsonl", "model.safetensors", "report.html", "summary.json",
    ]  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["clocks"], summary["clocks_redone"], summary["seed"]) == (24, 0, 3)
    assert summary["params_sha256"] == model_sha256(folder / "model.safetensors")
    assert summary["metrics"]["test_accuracy"] > 0.5
    said = capsys.readouterr().out
    assert summary["params_sha256"] in said
    assert str(folder.relative_to(tmp_path) / "report.html") in said
    # The resolved config alone repeats the run.
    assert proteus("run", str(folder / "config.yaml"), "--sequential", "--out", "again") == 0
    assert (
        json.loads((tmp_path / "again/summary.json").read_text())["params_sha256"] == summary["params_sha256"]
    )


def test_report_is_built_again_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert proteus("run", "job.yaml", "--sequential", "--out", "here") == 0
    before = (tmp_path / "here/report.html").read_text()
    (tmp_path / "here/report.html").write_text("")
    assert proteus("report", "here") == 0
    assert (tmp_path / "here/report.html").read_text() == before
    capsys.readouterr()
    assert proteus("report", "nowhere") == 2
    assert capsys.readouterr().err == "proteus: nowhere holds no config.yaml, expected the folder of a run\n"


MISTAKES = [
    (["job.yaml", "--set", "clokcs=3"], "--set clokcs=3: clokcs: unknown key, did you mean clocks?"),
    (["job.yaml", "--sequential", "--address", "10.0.0.5:6379"], "found --address with --sequential, expected one"),
    (["job.yaml", "--set", "clocks=0"], "--set clocks=0: clocks: found 0, expected at least 1"),
    (["job.yaml", "--set", "clocks=ten"], "--set clocks=ten: clocks: found 'ten', expected a whole number"),
    (["job.yaml", "--set", "slices=12"], "--set slices=12: slices: found 12, expected a power of two (8 or 16)"),
    (["job.yaml", "--set", "slices=4"], "--set slices=4: slices: found 4, expected at least machines.max = 8"),
    (["job.yaml", "--set", "machines.reliable=0"], "--set machines.reliable=0: machines.reliable: found 0, expected"),
    (["job.yaml", "--set", "plan=[{at_clock: 3, notice: 9}]"], "--set plan=[{at_clock: 3, notice: 9}]: plan[0].notice"),
    (["job.yaml", "--set", "data={kind: npz}"], "--set data={kind: npz}: data.path: missing, expected a value"),
    (["job.yaml", "--set", "data.knid=npz"], "--set data.knid=npz: data.knid: unknown key"),
    (["job.yaml", "--set", "model.l3=1"], "--set model.l3=1: model.l3: unknown key"),
    (["job.yaml", "--set", "data={kind: npz, path: no.npz}"], "--set data={kind: npz, path: no.npz}: data.path: "),
    (["job.yaml", "--set", "data={kind: npz, path: text}"], "--set data={kind: npz, path: text}: data.path: "),
    (["job.yaml", "--set", "data={kind: npz, path: nan.npz}"], "--set data={kind: npz, path: nan.npz}: data.path: "),
    (["job.yaml", "--set", "data={kind: npz, path: empty}"], "--set data={kind: npz, path: empty}: data.path: "),
    (["job.yaml", "--set", "application=json:Nothing"], "--set application=json:Nothing: application: "),
    (["job.yaml", "--restarts", "3"], "found --restarts without --supervise, expected both"),
    (["job.yaml", "--stage", "4"], "--stage: found '4', expected auto, thresholds, 1, 2 or 3"),
    (["job.yaml", "--address", "127.0.0.1:1"], "address: nobody listens at 127.0.0.1:1 (Connection refused)"),
    (["job.yaml", "--address", "here"], "address: found 'here', expected host:port, http://host:port or auto"),
    (["job.yaml", "--out", "taken"], "out: taken holds another run (found summary.json), expected a new or"),
    (["job.yaml", "--out", "text"], "out: text is a file, expected a folder or a new name"),
    (["job.yaml", "--out", "/proc/run"], "out: /proc/run is not writable"),
    (["nothing.yaml"], "nothing.yaml: no such file, expected a YAML config"),
    (["broken.yaml"], "broken.yaml: line 2 is not valid YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_left(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("application: mf\n clocks: 3\n")
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").write_text("")
    np.savez(tmp_path / "nan.npz", x=np.full((40, 2), np.nan), y=np.arange(40) % 2)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "summary.json").write_text("{}")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    start_s = time.process_time()
    assert proteus("run", *arguments) == 2
    assert time.process_time() - start_s < 10  # imports included
    said = capsys.readouterr()
    assert said.err.startswith(f"proteus: {sentence}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_what_the_terminal_cannot_show_ends_no_command(tmp_path: Path, encoding: str) -> None:
    """A run's folder has the name of its config, which may be in another encoding than the terminal's."""
    folder = tmp_path / os.fsdecode("Läufe".encode("latin-1"))
    folder.mkdir()
    EventLog(folder / "events.jsonl").close()
    (folder / "config.yaml").write_text("clocks: 4\n")
    command = [sys.executable, "-c", "from agileml.cli import main; main()", "report", str(folder)]
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.rstrip().endswith(b"ufe/report.html")


LONG = "x" * 300  # longer than a name may be: the system refuses to look whether it is there


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "job.yaml", "--sequential", "--out", LONG), "is not writable (File name too long)"),
        (
            ("run", "job.yaml", "--sequential", "--set", f"data={{kind: npz, path: {LONG}}}"),
            "cannot be read (File name",
        ),
        (("run", "job.yaml", "--supervise", "--out", LONG), "is not writable (File name too long)"),
        (("report", LONG), "holds no config.yaml"),
        (("replay", LONG), "holds no config.yaml"),
        (
            ("run", "job.yaml", "--sequential", "--replay", LONG, "--set", "consistency={kind: elastic}"),
            "holds no config",
        ),
    ],
)
def test_a_place_that_the_system_refuses_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("application: mlr\ndata: {kind: digits}\nclocks: 4\n")
    assert proteus(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("proteus: ") and sentence in line
    assert os.listdir(tmp_path) == ["job.yaml"]


@pytest.mark.parametrize("command", [["--version"], ["configs"], ["run", "--help"]])
def test_output_without_room_is_one_sentence(command: list[str], tmp_path: Path) -> None:
    """Whether it is written at once or kept until the end."""
    environment = os.environ | {"PYTHONPATH": str(CONFIGS.parent)}
    environment.pop("PYTHONUNBUFFERED", None)
    for kept in ({}, {"PYTHONUNBUFFERED": "1"}):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*PROTEUS, *command], stdout=full, stderr=subprocess.PIPE, text=True, env=environment | kept
            )
        assert done.stderr == "proteus: the output cannot be written: No space left on device\n"
        assert done.returncode == 1


def test_a_run_outlives_the_place_of_its_progress(tmp_path: Path) -> None:
    """As a file on a full disk, or a terminal that was closed."""
    (tmp_path / "job.yaml").write_text("application: mlr\ndata: {kind: digits}\nclocks: 4\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROTEUS, "run", "job.yaml", "--sequential", "--out", "run"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CONFIGS.parent)},
        )
    assert done.returncode == 0
    assert done.stdout.startswith("done: 4 clocks")
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_ctrl_c_is_one_line_and_exit_code_130(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.Popen(
        [*PROTEUS, "run", "job.yaml", "--sequential", "--set", "clocks=100000000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(CONFIGS.parent)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert run.stderr is not None
        assert run.stderr.readline().startswith("clock ")
        until_then_s = sum(psutil.Process(run.pid).cpu_times()[:2])
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=300)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime - until_then_s < 3
    finally:
        run.kill()
    assert run.returncode == 130
    assert [line for line in err.splitlines() if not line.startswith("clock ")] == ["proteus: interrupted"]
    assert out == ""
    [folder] = (tmp_path / "runs").iterdir()
    assert sorted(os.listdir(folder)) == ["config.yaml", "events.jsonl"]
    assert proteus("report", str(folder)) == 0
    assert "did not end" in (folder / "report.html").read_text()


REPLACED = """
import os, shutil, numpy as np
from agileml.application import Application, Table, Updates

class App(Application):
    def tables(self):
        return [Table("w", 1, 4)]
    def load(self, slice_index):
        return slice_index
    def process(self, unit, items, parameters):
        here = os.environ["WORK"]
        if unit.clock == 3 and os.path.exists(here):
            shutil.rmtree(here)
        os.makedirs(here, exist_ok=True)
        return Updates({"w": np.ones((1, 4), np.float32)}, 1.0, 1)
    def evaluate(self, parameters):
        return {"letters": len(os.getcwd())}
"""


def test_a_working_folder_that_was_replaced_is_entered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "replaced.py").write_text(REPLACED)
    (work / "job.yaml").write_text("application: replaced:App\nclocks: 5\n")
    monkeypatch.chdir(work)
    monkeypatch.setenv("WORK", str(work))
    monkeypatch.setattr(sys, "path", [str(work), *sys.path])
    assert proteus("run", "job.yaml", "--sequential", "--out", str(tmp_path / "out")) == 0
    sys.modules.pop("replaced")
    assert f"letters {len(str(work))}" in capsys.readouterr().out


def test_the_built_in_applications_are_those_that_a_config_may_name() -> None:
    from agileml.apps import NAMES
    from agileml.config.job import APPLICATIONS

    assert APPLICATIONS == NAMES


def test_without_a_command_it_shows_help_and_no_empty_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert "Usage" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize("key", ["slices", "data.path"])
def test_an_error_shows_no_signature_nor_password_of_an_address(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", str(CONFIGS / "mf.yaml"), "--set", f"{key}=https://me:pw@b.example/a?sig=5e"])
    shown = capsys.readouterr().err
    assert left.value.code == 2
    assert f"{key}" in shown and "https://...@b.example/a?..." in shown, shown
    assert "pw" not in shown and "5e" not in shown


def test_a_run_and_a_submitted_one_take_the_same_stages(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for command in ("run", "submit"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told.append(next(line for line in capsys.readouterr().out.splitlines() if "--stage" in line))
    assert all("thresholds" in line for line in told), told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("proteus ")


def test_the_command_starts_fast() -> None:
    libraries = ("ray", "torch", "zmq", "matplotlib", "numba")
    heavy = f"import sys, agileml.cli; print([name for name in {libraries} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", heavy], capture_output=True, text=True, check=True, cwd=CONFIGS.parent
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "command", [["run"], ["run", "--sequential"], ["submit", "--address", "http://127.0.0.1:1"]]
)
def test_a_working_folder_that_is_gone_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """As where it was removed and made again in another terminal: it was a stack trace."""
    (tmp_path / "job.yaml").write_text("application: mlr\ndata: {kind: blobs}\nclocks: 4\n")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").mkdir()
    with pytest.raises(SystemExit) as left:
        main([*command, str(tmp_path / "job.yaml")])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("proteus: the working folder is gone, expected one")
