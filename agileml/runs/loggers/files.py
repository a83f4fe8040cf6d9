"""Callbacks that write the series of a run to files of its folder: CSV, JSON lines, TensorBoard."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from agileml.runs.callbacks import Callback
from agileml.runs.event_log import cut_half_line
from agileml.runs.folder import plain
from agileml.runs.history import ClockRow, beside_row, evaluated, series
from agileml.runs.supervision import was_restarted


def _opened(path: Path) -> IO[str]:
    """A file of series, by lines: a new one, or the end of the present one after a restart of the run's head.

    Raises FileExistsError: it would be the user's own, or a link to another file.
    """
    is_continued = was_restarted(path.parent)
    if is_continued and path.exists():
        cut_half_line(path)
    return path.open("a" if is_continued else "x", newline="", buffering=1, encoding="utf-8")


class CsvLogger(Callback):
    """clocks.csv, a line for each clock, and evaluations.csv, a line for each metric of each evaluation."""

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._clocks = _opened(folder / "clocks.csv")
        self._evaluations = _opened(folder / "evaluations.csv")
        if not self._clocks.tell():
            csv.writer(self._clocks).writerow([field.name for field in fields(ClockRow)])
        if not self._evaluations.tell():
            csv.writer(self._evaluations).writerow(["clock", "metric", "value"])

    def on_clock(self, row: ClockRow) -> None:
        csv.writer(self._clocks).writerow(asdict(row).values())

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        csv.writer(self._evaluations).writerows([clock, name, value] for name, value in metrics.items())

    def on_end(self, result: Any) -> None:
        self._clocks.close()
        self._evaluations.close()


class JsonlLogger(Callback):
    """metrics.jsonl: an object for each clock, and one for each evaluation."""

    _file: IO[str]

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._file = _opened(folder / "metrics.jsonl")

    def on_clock(self, row: ClockRow) -> None:
        self._write(asdict(row))

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        self._write({"clock": clock, **beside_row(metrics)})

    def on_end(self, result: Any) -> None:
        self._file.close()

    def _write(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(plain(values)) + "\n")


class TensorBoardLogger(Callback):
    """The folder tensorboard, for `tensorboard --logdir`."""

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def on_clock(self, row: ClockRow) -> None:
        for name, value in series(row).items():
            self._writer.add_scalar(name, value, row.clock)

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> None:
        for name, value in evaluated(metrics).items():
            self._writer.add_scalar(name, value, clock)

    def on_end(self, result: Any) -> None:
        self._writer.close()


# The files that each begins; TensorBoard's are beside others in a folder, and services keep a name.
BEGUN = {
    "csv": ("clocks.csv", "evaluations.csv"),
    "jsonl": ("metrics.jsonl",),
    "tensorboard": (),
    "wandb": ("wandb_run",),
    "mlflow": ("mlflow_run",),
}
LOGGERS: dict[str, type[Callback]] = {
    "csv": CsvLogger,
    "jsonl": JsonlLogger,
    "tensorboard": TensorBoardLogger,
}
