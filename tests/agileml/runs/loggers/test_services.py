"""W&B and MLflow by their own packages, without a service: what is written, and what ends how."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import agileml
from agileml.config.text import ConfigError
from agileml.errors import RunError
from agileml.events.run import Process
from agileml.runs.callbacks import Callback
from agileml.runs.history import ClockRow
from agileml.runs.loggers.services import MlflowLogger, WandbLogger, _Writer, mlflow_name, parameters_of
from agileml.runs.supervision import SUPERVISION, Restart, Supervision

JOB = {
    "application": "mlr",
    "clocks": 12,
    "slices": 8,
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "deterministic": True,
}

BROKEN = {**JOB, "application": f"{__name__}:Broken"}


def test_settings_are_flat() -> None:
    config = {"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}, "none": None, "empty": []}}
    assert parameters_of(config) == {"a": "1", "b.c": "[1, 2]", "b.d.e": "x"}


@given(st.text(min_size=1), st.sampled_from(["evaluation/", "application.settings."]))
@example("recall@10", "evaluation/")
@example("../x", "evaluation/")
@example("a//b" * 100, "evaluation/")
def test_mlflow_takes_every_name(name: str, before: str) -> None:
    """By its rules, which it applies to a whole request: no name may keep the others from being written."""
    found = mlflow_name(before + name)
    assert re.fullmatch(r"[/\w.: \-]{1,250}", found)
    assert posixpath.normpath(found) == found and not found.startswith(("/", ".."))
    assert mlflow_name(found) == found
    if re.fullmatch(r"[\w.: \-]{1,200}", name) and name.strip("."):
        assert found == before + name, "what it takes stays as it is"


def test_a_writer_keeps_the_order_and_says_what_failed() -> None:
    written: list[tuple[str, float, int, int]] = []
    writer = _Writer(written.extend)
    for clock in range(2500):
        writer.put(clock, {"loss": clock / 2})
    writer.end()
    assert [(name, value, clock) for name, value, _, clock in written] == [
        ("loss", n / 2, n) for n in range(2500)
    ]

    def away(values: list[Any]) -> None:
        raise ConnectionError("no route")

    writer = _Writer(away)
    writer.put(1, {"loss": 1.0})
    with pytest.raises(ConnectionError, match="no route"):
        writer.end()
    with pytest.raises(ConnectionError, match="no route"):
        writer.put(2, {"loss": 1.0})


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agileml.config.packages.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=rf"^log: found {package}, expected the package {package}.*pip install '"
    ):
        agileml.run(JOB, log=[package], sequential=True)


def test_a_tracker_is_not_told_the_signature_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config went to W&B whole, where the whole team reads it; and the command, as one of its facts."""
    begun: dict[str, Any] = {}

    def init(**arguments: Any) -> Any:
        begun.update(arguments)
        return SimpleNamespace(id="1", define_metric=lambda *_, **__: None)

    wandb = SimpleNamespace(login=lambda **_: True, Settings=dict, init=init)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr("agileml.config.packages.find_spec", lambda name: name)
    path = ["https://me:word@host/a.npz?X-Amz-Signature=abcdef", "b.npz"]
    WandbLogger().on_start(tmp_path, {"clocks": 3, "data": {"path": path}})
    assert begun["config"] == {"clocks": 3, "data": {"path": ["https://...@host/a.npz?...", "b.npz"]}}
    assert begun["settings"] == {"console": "off", "x_disable_meta": False}
    monkeypatch.setattr(sys, "argv", ["proteus", "run", "a.yaml", "--set", f"data.path={path[0]}"])
    WandbLogger().on_start(tmp_path, {"clocks": 3})
    assert begun["settings"]["x_disable_meta"]


class Broken(agileml.Application):
    """Fails at its third clock."""

    def tables(self) -> list[agileml.Table]:
        return [agileml.Table("x", 1, 1)]

    def load(self, slice_index: int) -> Any:
        return None

    def process(self, unit: Any, items: Any, parameters: Any) -> agileml.Updates:
        if unit.clock == 2:
            raise ValueError("broken on purpose")
        return agileml.Updates({}, 1.0, 1)


class Fails(Callback):
    """Hears how a run ends."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def on_fail(self, reason: str) -> None:
        self.ends.append(reason)

    def on_end(self, result: Any) -> None:
        self.ends.append("good")


def test_a_run_that_fails_says_so_to_its_callbacks(tmp_path: Path) -> None:
    heard = Fails()
    agileml.run(JOB, sequential=True, callbacks=[heard], out=str(tmp_path / "good"))
    with pytest.raises(RunError):
        agileml.run(BROKEN, sequential=True, callbacks=[heard], out=str(tmp_path / "bad"))
    assert heard.ends[0] == "good" and "broken on purpose" in heard.ends[1] and len(heard.ends) == 2


@pytest.mark.slow
def test_mlflow_has_the_series_and_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    result = agileml.run(JOB, sequential=True, log=["mlflow"], out=str(tmp_path / "good"))
    with pytest.raises(RunError):
        agileml.run(BROKEN, sequential=True, log=["mlflow"], out=str(tmp_path / "bad"))
    client = mlflow.MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("proteus").experiment_id])
    good, bad = sorted(found, key=lambda run: run.info.run_name, reverse=True)
    assert (good.info.run_name, good.info.status) == ("good", "FINISHED")
    assert (bad.info.status, bad.info.run_name) == ("FAILED", "bad")
    assert "broken on purpose" in bad.data.tags["failure"]
    assert good.data.params["optimizer.kind"] == "adam" and good.data.params["clocks"] == "12"
    losses = client.get_metric_history(good.info.run_id, "training/loss")
    assert [(each.step, each.value) for each in losses] == [(r["clock"], r["loss"]) for r in result.history]


@pytest.mark.slow
def test_a_restart_goes_on_in_the_same_run_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"file:{tmp_path / 'store'}"
    names = []
    for restarts in ((), (Restart(0.0, "the head died", 1),)):
        process = Process("here", 1, 0.0)
        (tmp_path / SUPERVISION).write_text(Supervision(process, 3, restarts).to_text())
        logger = MlflowLogger(store)
        logger.on_start(tmp_path, {"clocks": 2, "application": {"settings": {"a@b": 1}}})
        logger.on_clock(ClockRow(1 + len(restarts), 0.5, 8, None, None, 0.1, 1))
        names.append(logger._name)
        if not restarts:
            logger.on_fail("the head died")
    logger.on_evaluate(2, {"recall@10": 0.25, "accuracy": 0.75})
    logger.on_end(None)
    assert names[0] == names[1]
    run = logger._client.get_run(names[0])
    history = logger._client.get_metric_history(names[0], "training/loss")
    assert run.info.status == "FINISHED" and [each.step for each in history] == [1, 2]
    evaluated = {name: value for name, value in run.data.metrics.items() if name.startswith("evaluation")}
    assert evaluated == {"evaluation/recall_10": 0.25, "evaluation/accuracy": 0.75}
    assert run.data.params["application.settings.a_b"] == "1"


@pytest.mark.slow
def test_wandb_has_the_series_offline(tmp_path: Path) -> None:
    """In a process of its own, as its package leaves threads and processes behind."""
    pytest.importorskip("wandb")
    text = f"""
import os
os.environ["WANDB_MODE"] = "offline"
import agileml
agileml.run({JOB!r}, sequential=True, log=["wandb"], out={str(tmp_path / "run")!r})
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is called no more" not in done.stdout + done.stderr
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert content.count(b"training/loss") >= 12 and b"learning_rate" in content and b'"adam"' in content


@pytest.mark.slow
def test_wandb_takes_the_id_that_its_user_names(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    text = f"""
import agileml
from agileml.runs.loggers.services import WandbLogger
callbacks = [WandbLogger(id="mine", mode="offline")]
agileml.run({JOB!r}, sequential=True, callbacks=callbacks, out={str(tmp_path / "run")!r})
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-mine.wandb"))


@pytest.mark.slow
def test_wandb_without_a_key_is_found_out_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^log: found wandb, expected a key of W&B's"):
        agileml.run(JOB, sequential=True, log=["wandb"], out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
