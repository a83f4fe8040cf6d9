"""Loggers that write the series of a run for tracking services, by these services' own packages.

Addresses, keys and projects are those that these packages find themselves, in the environment above all. W&B's package
writes in a process of its own; for MLflow, whose server may be slow or away, a thread here does.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agileml.application import without_secrets
from agileml.config.packages import missing_package
from agileml.config.text import ConfigError, flat
from agileml.runs.callbacks import Callback
from agileml.runs.folder import for_others
from agileml.runs.history import ClockRow, evaluated, series
from agileml.runs.supervision import was_restarted

PROJECT = "proteus"  # of W&B, and experiment of MLflow, unless the environment names another
FLUSH_S = 1.0
END_S = 30.0  # for the rest of the series, once the run is over
# Of a request to MLflow, by its rules.
MOST_METRICS, MOST_PARAMETERS, MOST_TEXT, MOST_NAME = 1000, 100, 6000, 250
MOST_WAITING = 200_000  # metrics that wait for a server that does not answer


def parameters_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Settings as `section.key`, without those that are not set."""
    return {key: str(value) for key, value in flat(config).items() if value is not None and value != []}


def mlflow_name(name: str) -> str:
    """The name of a metric or a setting as MLflow takes it: `recall@10` becomes `recall_10`.

    One name that it refuses is enough for it to refuse the request with everything else. A name may be a path to it.
    """
    found = re.sub(r"[^/\w.: \-]", "_", name)[:MOST_NAME]
    return found if posixpath.normpath(found) == found else found.replace("/", "_")


def _check(package: str) -> None:
    """Raise ConfigError unless the package is installed."""
    if missing := missing_package(package):
        raise ConfigError(f"found {package}, {missing}", key=("log",))


class _RunName:
    """The name that a service gave the run, kept in the run's folder for a restart of the run's head."""

    def __init__(self, folder: Path, service: str) -> None:
        self._is_restart = was_restarted(folder)
        self._path = folder / f"{service}_run"

    def read(self) -> str | None:
        """The name; None for a run that begins."""
        if not self._is_restart or not self._path.is_file():
            return None
        return self._path.read_text(encoding="utf-8").strip()

    def write(self, name: str) -> None:
        """Keep the name."""
        self._path.write_text(f"{name}\n", encoding="utf-8")


class WandbLogger(Callback):
    """A run of W&B. Raises ConfigError without the package, or without a key where there must be one."""

    def __init__(self, **arguments: Any) -> None:
        """arguments: of `wandb.init`, such as project, entity, group, tags or mode."""
        _check("wandb")
        import wandb

        mode = arguments.get("mode") or os.environ.get("WANDB_MODE", "online")
        if mode in ("online", "run") and not wandb.login(prompt=False, verify=False):
            raise ConfigError(
                "found wandb, expected a key of W&B's (`wandb login`, or WANDB_API_KEY in the environment), or "
                "WANDB_MODE=offline",
                key=("log",),
            )
        self._arguments = arguments

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        kept = _RunName(folder, "wandb")
        # W&B's facts about the process have its whole command, with `--set data.path=...`.
        has_secret = any(without_secrets(word) != word for word in sys.argv)
        usual = {
            "name": folder.name,
            "dir": str(folder),
            "config": for_others(config),
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            # The run's own progress needs the terminal.
            "settings": wandb.Settings(console="off", x_disable_meta=has_secret),
            "resume": "allow",
        }
        begun = kept.read()
        self._run = wandb.init(**usual | self._arguments | ({} if begun is None else {"id": begun}))
        kept.write(self._run.id)
        # Its own step must not go back, and after a rollback clocks come again.
        self._run.define_metric("clock")
        self._run.define_metric("*", step_metric="clock")

    def on_clock(self, row: ClockRow) -> None:
        self._run.log({"clock": row.clock, **series(row)})

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"clock": clock, **evaluated(metrics)})

    def on_end(self, result: Any) -> None:
        self._run.summary.update(dict(result.metrics))
        self._run.finish()

    def on_fail(self, reason: str) -> None:
        self._run.finish(exit_code=1)


class MlflowLogger(Callback):
    """A run of MLflow. Raises ConfigError without the package, or with an address that it cannot use."""

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        """None: what MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say, or "proteus"."""
        _check("mlflow")
        from mlflow import MlflowClient, MlflowException

        try:
            self._client = MlflowClient(tracking_uri)
        except (MlflowException, ImportError) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise ConfigError(
                f"found mlflow, expected MLFLOW_TRACKING_URI of a server or a store that can be opened ({why})",
                key=("log",),
            ) from None
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        kept = _RunName(folder, "mlflow")
        name = kept.read()
        if name is None:
            name = self._begun(folder.name, config)
            kept.write(name)
        else:
            self._client.update_run(name, "RUNNING")
        self._name = name
        self._writer = _Writer(self._write)

    def _begun(self, title: str, config: Mapping[str, Any]) -> str:
        """A new run with the config as its parameters."""
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
        name = str(self._client.create_run(experiment, run_name=title).info.run_id)
        named = {
            mlflow_name(key): value[:MOST_TEXT] for key, value in parameters_of(for_others(config)).items()
        }
        parameters = [Param(key, value) for key, value in named.items()]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(name, params=parameters[start : start + MOST_PARAMETERS])
        return name

    def on_clock(self, row: ClockRow) -> None:
        self._writer.put(row.clock, series(row))

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        self._writer.put(clock, evaluated(metrics))

    def on_end(self, result: Any) -> None:
        self._ended("FINISHED")

    def on_fail(self, reason: str) -> None:
        self._client.set_tag(self._name, "failure", reason[:MOST_TEXT])
        self._ended("FAILED")

    def _ended(self, status: str) -> None:
        self._writer.end()
        self._client.set_terminated(self._name, status)

    def _write(self, values: list[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(mlflow_name(name), *others) for name, *others in values]
        self._client.log_batch(self._name, metrics=metrics)


class _Writer:
    """Hands (name, value, time in ms, clock) to `write` from a thread of its own, many at a time, in order."""

    def __init__(self, write: Callable[[list[tuple[str, float, int, int]]], None]) -> None:
        self._write = write
        self._waiting: list[tuple[str, float, int, int]] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._thread.start()

    def put(self, clock: int, values: Mapping[str, float]) -> None:
        """Have values written soon. Raises what writing earlier ones has raised."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if len(self._waiting) > MOST_WAITING:
                raise TimeoutError(f"{len(self._waiting)} values wait for the service, which does not answer")
            now_ms = int(time.time() * 1000)
            self._waiting += [(name, float(value), now_ms, clock) for name, value in values.items()]

    def end(self) -> None:
        """Write the rest. Raises what writing has raised, TimeoutError."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(END_S)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(f"the service has not taken the last values within {END_S:.0f} s")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over, FLUSH_S)
                these, self._waiting = self._waiting, []
                is_last = self._is_over
            try:
                for start in range(0, len(these), MOST_METRICS):
                    self._write(these[start : start + MOST_METRICS])
            except Exception as error:  # reaches the run with the next values
                self._error = error
                return
            if is_last:
                return


TRACKERS: dict[str, type[Callback]] = {"mlflow": MlflowLogger, "wandb": WandbLogger}
