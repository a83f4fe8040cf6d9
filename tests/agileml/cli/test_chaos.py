"""`proteus chaos`: bad input is refused before anything starts, and processes that are left are found."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from agileml.cli import main
from agileml.cli.chaos import MARK, LossOff, chaos_folder, disturbed, left_behind, reference_of, whole
from agileml.cluster.owned_folder import orphans
from agileml.cluster.ray_startup import environment
from agileml.cluster.watchdog import marked
from agileml.config.job import from_values
from agileml.errors import RunError
from agileml.session import Result

MLR = {"application": "mlr", "data": {"kind": "digits"}}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["chaos", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"machines": {"reliable": 1, "transient": 0, "max": 4}},
            "machines: found 1 and machines.max of 4, expected at least 2",
        ),
        (
            {"machines": {"reliable": 1, "transient": 1, "max": 2}},
            "found 2 and machines.max of 2, expected at least 2 and a max of",
        ),
        (
            {"plan": [{"at_clock": 3, "kill": 1}]},
            "plan: found it, expected a config without: chaos makes its own plan",
        ),
        ({"address": "10.0.0.1:1"}, "address: found it, expected a config without: chaos makes its own"),
        ({"data": {"kind": "nothing"}}, "data.kind"),
        ({"machines": {"gpus": 64}}, "machines.gpus: found 64, expected at most"),
    ],
)
def test_a_job_that_cannot_start_leaves_nothing(
    changes: dict[str, object],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(yaml.safe_dump({**MLR, "clocks": 20, **changes}))
    assert sentence in refused(["job.yaml", "--out", "out"], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_each_gets_a_folder_of_its_own_unless_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with chaos_folder(None, "chaos-mlr-3") as one, chaos_folder(None, "chaos-mlr-3") as other:
        assert one != other and one.parent == other.parent == Path("runs")
        (one / "plan.yaml").write_text("clocks: 1")
    assert list(Path("runs").iterdir()) == [one]  # the other one stayed empty
    with chaos_folder(Path("mine"), "chaos-mlr-3") as named:
        assert named == Path("mine") and not named.exists()


def test_a_place_where_no_folder_can_be_made_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(yaml.safe_dump({**MLR, "clocks": 20}))
    Path("runs").write_text("mine")
    assert "runs is a file" in refused(["job.yaml"], capsys)
    assert Path("runs").read_text() == "mine"


@pytest.mark.parametrize("held", ["plan.yaml", "run", "sequential", "checkpoints"])
def test_nothing_of_another_chaos_run_is_overwritten(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**MLR, "clocks": 20}))
    out = tmp_path / "out"
    out.mkdir()
    (out / held).write_text("mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (str(out), "~/out"):  # no shell replaces the `~` in `--out=~/out`
        said = refused([str(tmp_path / "job.yaml"), f"--out={given}"], capsys)
        assert f"{out} holds another chaos run (found {held})" in said
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(held, "mine")]


def test_early_stopping_does_not_end_a_job_before_its_faults(tmp_path: Path) -> None:
    own = {"early_stopping": {"metric": "test_loss"}, "checkpoint": {"path": "mine", "keep": 5}}
    job = disturbed(from_values({**MLR, "clocks": 20, **own}), tmp_path)
    assert job.early_stopping is None
    assert job.checkpoint is not None
    assert (job.checkpoint.path, job.checkpoint.keep) == (str(tmp_path / "checkpoints"), 5)


def test_a_job_with_a_profile_has_a_reference(tmp_path: Path) -> None:
    config = from_values({**MLR, "clocks": 20, "profile": True})
    assert reference_of(config, 2, tmp_path, None).summary["clocks"] == 2


def test_a_process_whose_folder_is_gone_is_found(tmp_path: Path) -> None:
    gone = f"/tmp/proteus-{tmp_path.name.replace('-', '')}gone/x"
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", gone])
    try:
        while not any(found.pid == process.pid for found in orphans()):
            assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert not any(found.pid == process.pid for found in orphans())


def test_a_process_that_writes_to_a_folder_that_is_gone_is_found_but_not_the_one_that_asks() -> None:
    folder = Path(tempfile.mkdtemp(prefix="proteus-", dir=tempfile.gettempdir()))
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[log.fileno()]
        )
        shutil.rmtree(folder)
        try:
            found = {process.pid for process in orphans()}
            assert child.pid in found
            assert os.getpid() not in found
        finally:
            child.kill()
            child.wait()


def test_a_program_that_goes_on_after_its_run_is_not_left_behind() -> None:
    """Ray leaves the logs of the driver open when the program disconnects."""
    folder = Path(tempfile.mkdtemp(prefix="proteus-", dir=tempfile.gettempdir()))
    logs = folder / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    with (
        (logs / "python-core-driver-01ff_77.log").open("wb") as log,
        (logs / "event_77.log").open("wb") as event,
    ):
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[log.fileno(), event.fileno()]
        )
        shutil.rmtree(folder)
        try:
            assert child.pid not in {process.pid for process in orphans()}
        finally:
            child.kill()
            child.wait()


def test_what_is_left_is_told_by_the_mark_of_the_run() -> None:
    with environment(marked("mine", MARK)):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert left_behind("mine", 0.0) == 1
        assert left_behind("another", 0.0) == 0
    finally:
        child.kill()
        child.wait()
    assert left_behind("mine", 0.0) == 0


def test_a_run_that_was_stopped_is_compared_with_nothing(tmp_path: Path) -> None:
    done = Result({}, {}, {"stopped": False, "clocks": 40}, tmp_path)
    assert whole(done, 40) is done
    with pytest.raises(RunError, match="stopped after 7 of 40 clocks"):
        whole(Result({}, {}, {"stopped": True, "clocks": 7}, tmp_path), 40)


def test_a_loss_is_off_by_what_chance_does_not_explain() -> None:
    draw = random.Random(3)
    wanted = {clock: 1 / clock + 0.1 * draw.random() for clock in range(1, 301)}
    assert LossOff.of(wanted, wanted) == LossOff(0.0, 0.0)
    assert LossOff.of({clock: 1.04 * loss for clock, loss in wanted.items()}, wanted).is_small
    worse = LossOff.of({clock: 1.08 * loss for clock, loss in wanted.items()}, wanted)
    assert worse.mean == pytest.approx(0.08) and not worse.is_small
    noisy = LossOff.of({clock: loss * draw.uniform(0.5, 1.6) for clock, loss in wanted.items()}, wanted)
    assert noisy.error == pytest.approx(0.04, rel=0.4) and noisy.is_small
    below = LossOff.of({clock: 2 * draw.uniform(-1.6, -0.5) for clock in wanted}, dict.fromkeys(wanted, -2.1))
    assert below.error > 0 and below.is_small, "losses may be below 0"
    assert "NOT WITHIN 5%" in str(worse) and "NOT" not in str(noisy)
