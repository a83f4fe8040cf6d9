"""`proteus pipeline` from the outside."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from agileml.cli import main
from pipeline.partition.plan import parse_plan
from pipeline.profile.layers import read, write
from pipeline.run.tensor_files import read_tensors, write_tensors
from tests.agileml.runs.full_disk import files_of_at_most
from tests.pipeline.run.training import with_ties

TRAINING = "tests.pipeline.run.training:mlp"
WITH_TIES = "tests.pipeline.run.training:with_ties"


@pytest.fixture(autouse=True)
def threads_as_before() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(f"training: {TRAINING}\nminibatches: 5\noptimizer: {{kind: Adam, lr: 0.01}}\n")
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", *map(str, arguments)])
    return int(caught.value.code or 0)


def sha(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith("params_sha256"))


def test_profile_plan_and_run(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, plan, out = tmp_path / "p.json", tmp_path / "plan.txt", tmp_path / "run"
    assert run("profile", config, "--repeats", 1, "--out", profile) == 0
    assert run("plan", config, "--profile", profile, "--out", plan) == 0
    assert len(read(profile).layers) == 9
    assert parse_plan(plan.read_text()).stages[-1].layers[-1] == 8
    capsys.readouterr()
    given = "run", config, "--sequential", "--profile", profile
    assert run(*given, "--set", f"plan={plan}", "--out", out) == 0
    planned = sha(capsys.readouterr().out)
    # The answer of `flush` does not depend on the stages, nor on the order.
    assert run(*given, "--set", "stages=3", "--set", "order=zero-bubble", "--out", tmp_path / "3") == 0
    assert sha(capsys.readouterr().out) == planned


def test_no_stage_is_planned_with_more_replicas_than_microbatches(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.txt"
    assert run("plan", config, "--set", "workers=5", "--set", "microbatches=2", "--out", plan) == 0
    assert max(stage.replicas for stage in parse_plan(plan.read_text()).stages) <= 2


def test_processes_have_the_bits_of_one_that_replays_them(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, a stage behind them, and a drain; in a folder with a file of the user's that has our name."""
    (tmp_path / "pipeline.py").write_text("raise SystemExit('this is not the package')\n")
    monkeypatch.chdir(tmp_path)
    out, again = tmp_path / "run", tmp_path / "again"
    stash = ["--set", "mode=stash", "--set", "replicas=[2,1]", "--set", "epoch=3"]
    assert run("run", config, *stash, "--out", out) == 0
    printed = capsys.readouterr().out
    assert "predicted" in printed
    assert "minibatch 5: loss" in printed
    assert set(read_tensors(out / "model.safetensors")) == {
        f"{n}.{k}" for n in range(0, 9, 2) for k in ("weight", "bias")
    }
    assert run("run", "--sequential", "--replay", out, "--out", again) == 0
    assert sha(capsys.readouterr().out) == sha(printed)
    apart, alone = (json.loads((folder / "summary.json").read_text())["losses"] for folder in (out, again))
    assert apart == alone
    assert len(alone) == 5


def test_what_is_called_to_measure_and_to_predict_leaves_no_trace(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that counts its calls counts those of the training alone, measured or not, as in processes."""
    profile, found = tmp_path / "p.json", []
    named = ["--set", "training=tests.pipeline.run.training:counting", "--set", "stages=2"]
    assert run("profile", config, "--repeats", 1, "--out", profile, *named[:2]) == 0
    for number, more in enumerate(((), ("--profile", profile))):
        given = "run", config, "--sequential", *named, *more, "--out", tmp_path / str(number)
        assert run(*given) == 0
        found.append(sha(capsys.readouterr().out))
    assert run("run", "--sequential", "--replay", tmp_path / "0", "--out", tmp_path / "2") == 0
    assert found == [sha(capsys.readouterr().out)] * 2


def test_a_loss_that_is_no_number_is_null_in_the_summary(config: Path, tmp_path: Path) -> None:
    named = ["--set", "training=tests.pipeline.run.training:diverged", "--set", "stages=1"]
    assert run("run", config, "--sequential", *named, "--out", tmp_path / "run") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["losses"] == [None] * 5


def test_replicas_of_a_batch_norm_are_refused_before_anything_is_written(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    named = "training=tests.pipeline.run.training:residual"
    assert run("run", config, "--set", named, "--set", "replicas=[2,1]", "--out", out) == 2
    assert capsys.readouterr().err.startswith(
        "proteus: stage 1 has 2 replicas, and its forward changes the buffer"
    )
    assert not out.exists()


def test_a_rate_with_an_exponent_is_a_number(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, rate in enumerate(("1e-2", "0.01")):
        config.write_text(
            f"training: {TRAINING}\nminibatches: 1\nstages: 2\n"
            f"optimizer: {{kind: Adam, lr: {rate}, betas: [9e-1, 0.999]}}\n"
        )
        assert run("run", config, "--sequential", "--out", tmp_path / str(number)) == 0
        found.append(sha(capsys.readouterr().out))
    assert found[0] == found[1]


def test_the_users_model_loads_the_result(config: Path, tmp_path: Path) -> None:
    """Of tied weights, a buffer that no state dict has, and a constant of the forward."""
    out = tmp_path / "run"
    named = f"training={WITH_TIES}"
    assert run("run", config, "--sequential", "--set", named, "--set", "stages=2", "--out", out) == 0
    model, *_ = with_ties()
    before = model.embedding.weight.detach().clone()
    model.load_state_dict(read_tensors(out / "model.safetensors"))
    assert model.head.weight is model.embedding.weight
    assert not torch.equal(model.embedding.weight, before)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("stages=10", "10 stages are more than the 9 layers"),
        ("microbatches=3", "8 items cannot be cut into 3 equal microbatches"),
        ("mode=fast", "mode: Input should be"),
        ("colour=red", "colour: Extra inputs are not permitted"),
        ("epoch=3", "epoch is for modes stash and none"),
        ("threads=1000000000", "threads: Input should be less than or equal to 1024"),
        ("in_flight=1000000000", "in_flight is 1000000000, expected at most minibatches x microbatches = 20"),
        ("memory=0.5KB", "alone needs"),
        ("plan=nowhere.txt", "nowhere.txt cannot be read"),
        ("recompute=auto", "recompute auto goes by memory"),
        ("replicas=[2,", "--set replicas: '[2,' is not YAML"),
        ("optimizer={kind: SGD, lr: 1, lr: 2}", "line 1: lr comes twice"),
        ("optimizer={kind: Fast}", "torch.optim has no optimizer 'Fast'"),
        ("optimizer={kind: SGD, rate: 1}", "SGD does not take"),
        ("optimizer={kind: SparseAdam}", "optimizer.kind: SparseAdam cannot step"),
        ("seed=99999999999999999999", "seed: Input should be less than"),
        ("training=tests.pipeline.run.training:nothing", "has no function 'nothing'"),
        ("training=tests.pipeline.stages.models:sequence", "failed: AttributeError"),
    ],
)
def test_bad_input_is_one_sentence(
    changes: str, words: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run("run", config, "--set", changes, "--out", out) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the first is still empty."""
    monkeypatch.chdir(tmp_path)
    clock = SimpleNamespace(strftime=lambda text: "pipeline-now", perf_counter=time.perf_counter)
    monkeypatch.setattr("pipeline.cli.run_pipeline.time", clock)
    (tmp_path / "runs" / "pipeline-now").mkdir(parents=True)
    assert run("run", config, "--sequential", "--set", "stages=2") == 0
    assert list((tmp_path / "runs" / "pipeline-now").iterdir()) == []
    assert (tmp_path / "runs" / "pipeline-now-2" / "summary.json").is_file()


def test_a_full_disk_is_one_sentence_and_exit_code_1(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with files_of_at_most(1000):  # plan and schedule have room, the weights have not
        assert run("run", config, "--sequential", "--set", "stages=2", "--out", out) == 1
    assert re.fullmatch(
        rf"proteus: {out}/\S+\.safetensors cannot be written: .*File too large.*\n", capsys.readouterr().err
    )
    assert not [path for path in out.iterdir() if "safetensors" in path.name]


def test_a_key_that_comes_twice_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = config.read_text().rstrip("\n").count("\n") + 1
    config.write_text(config.read_text().rstrip("\n") + "\nseed: 1\nseed: 2\n")
    assert run("run", config, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert (
        f"{config} line {lines + 2}: seed comes twice, first in line {lines + 1}; expected it once" in error
    )
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["stages=2", "memory=1GB"], "memory is for the planner"),
        (["replicas=[2,1]", "memory=1GB", "recompute=auto"], "memory is for the planner"),
        (["stages=2", "recompute=auto"], "recompute auto is for the planner"),
        (["plan=p.txt", "recompute=always"], "plan says itself which stages recompute"),
    ],
)
def test_what_the_planner_heeds_is_refused_without_it(
    changes: list[str], words: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (text for change in changes for text in ("--set", change))
    assert run("run", config, *given, "--out", tmp_path / "run") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("changes", ["stages=3", "replicas=[2,1]", "plan=p.txt"])
def test_a_config_that_says_its_stages_leaves_nothing_to_plan(
    changes: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", config, "--set", changes) == 2
    assert "leave that key out for a plan by the planner" in capsys.readouterr().err


def test_of_two_runs_that_begin_at_once_in_a_folder_one_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has written nothing yet: both took the folder, and one found its stages gone at the end."""
    (out := tmp_path / "run").mkdir()
    first = os.open(out, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    try:
        assert run("run", config, "--set", "minibatches=0", "--out", out) == 2
    finally:
        os.close(first)
    assert f"{out} is that of a run that has just begun" in capsys.readouterr().err
    assert out.is_dir()


def test_a_replay_takes_no_other_settings_and_a_run_needs_a_folder(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in (["--set", "minibatches=1"], ["--profile", config]):
        assert run("run", "--sequential", "--replay", tmp_path, *other, "--out", tmp_path / "run") == 2
        assert "a replay is the run as it was" in capsys.readouterr().err
    assert run("run", config, "--out", config) == 2
    assert f"{config} is a file; expected a folder or a new name" in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(config.parent))  # which no shell puts into `--out=~/...`
    assert run("run", config, f"--out=~/{config.name}") == 2
    assert f"{config} is a file; expected a folder or a new name" in capsys.readouterr().err


def test_a_run_whose_model_is_another_one_by_now_is_not_replayed(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "run", tmp_path / "again"
    assert (
        run("run", config, "--sequential", "--set", "stages=2", "--set", "minibatches=1", "--out", out) == 0
    )
    capsys.readouterr()
    start, made = out / "start.safetensors", read_tensors(out / "start.safetensors")
    for tensors, words in (
        ({**made, "10.bias": torch.ones(2)}, "it has torch.float32 of shape [2] as 10.bias, and tests."),
        ({name: made[name] for name in made if name != "8.bias"}, "it has nothing as 8.bias"),
        ({**made, "8.bias": torch.ones(1)}, "it has torch.float32 of shape [1] as 8.bias"),
    ):
        write_tensors(start, tensors)
        assert run("run", "--sequential", "--replay", out, "--out", again) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    start.write_bytes(start.read_bytes()[:100])
    assert run("run", "--sequential", "--replay", out, "--out", again) == 2
    assert f"{start} cannot be read" in capsys.readouterr().err
    for name, text, words in (
        ("shape.txt", "stages: ends=3,9 replicas=1 recompute=0,0\n", "stages must read like"),
        ("config.json", '{"training": 3}', "config.json: training: Input should be a valid string, found 3"),
        ("config.json", "{", "config.json is not JSON"),
    ):
        write_tensors(start, made)
        (out / name).write_text(text)
        assert run("run", "--sequential", "--replay", out, "--out", again) == 2
        assert words in capsys.readouterr().err


def test_a_plan_or_profile_of_something_else_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, plan = tmp_path / "p.json", tmp_path / "plan.txt"
    assert run("profile", config, "--repeats", 1, "--out", profile) == 0
    assert run("plan", config, "--profile", profile, "--out", plan) == 0
    for changes, words in (
        (["--set", f"plan={plan}", "--set", "microbatches=2"], "is a plan for another batch"),
        (
            ["--set", f"plan={plan}", "--set", "training=tests.pipeline.run.training:residual"],
            "is a plan of another model",
        ),
        (["--profile", profile, "--set", "microbatches=2"], "was taken with 2 items"),
        (
            ["--profile", profile, "--set", "training=tests.pipeline.run.training:widened"],
            "its layer 2 (2 Linear) has 48 bytes of output, here it has 72",
        ),
    ):
        assert run("run", config, *changes, "--out", tmp_path / "run") == 2
        assert words in capsys.readouterr().err
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n")
    assert run("run", config, "--set", f"plan={tmp_path / 'picture.png'}", "--out", tmp_path / "run") == 2
    assert "is not a plan: it is no text" in capsys.readouterr().err
    wide = parse_plan(plan.read_text())
    wide = replace(wide, stages=(replace(wide.stages[0], devices=(0, 1, 2)), *wide.stages[1:]))
    (tmp_path / "wide.txt").write_text(wide.to_text())
    for_two = ["--set", f"plan={tmp_path / 'wide.txt'}", "--set", "workers=2"]
    assert run("run", config, *for_two, "--out", tmp_path / "run") == 2
    assert f"is a plan for {wide.workers} workers, and workers is 2" in capsys.readouterr().err
    write(replace(read(profile), device="NVIDIA H200"), profile)
    assert run("run", config, "--profile", profile, "--out", tmp_path / "run") == 2
    assert "was taken on 'NVIDIA H200'" in capsys.readouterr().err
    assert run("run", "--sequential", "--replay", tmp_path, "--out", tmp_path / "run") == 2
    assert "is not the folder of a pipeline's run" in capsys.readouterr().err
