"""Series of a run in files of its folder."""

import json
import os
from pathlib import Path

from agileml.runs.event_log import EVENTS
from agileml.runs.folder import RunFolder
from agileml.runs.loggers.files import CsvLogger, JsonlLogger, TensorBoardLogger
from agileml.runs.loggers.services import _RunName


def test_the_series_of_a_run_go_with_it_and_the_user_s_own_stay(tmp_path: Path) -> None:
    """TensorBoard would show both runs as one."""
    for out, has_run in ((tmp_path / "run", True), (tmp_path / "mine", False)):
        out.mkdir()
        if has_run:
            RunFolder.create(out, "mf").events.close()
        for logger in (CsvLogger(), JsonlLogger(), TensorBoardLogger()):
            logger.on_start(out, {})
            logger.on_end(None)
        for service in ("wandb", "mlflow"):
            _RunName(out, service).write("q7x")
        before = set(os.listdir(out))
        RunFolder.create(out, "mf", overwrite=True).events.close()
        assert set(os.listdir(out)) == ({EVENTS} if has_run else before | {EVENTS})


def test_a_line_of_an_evaluation_has_its_clock_whatever_its_metrics_are_called(tmp_path: Path) -> None:
    logger = JsonlLogger()
    logger.on_start(tmp_path, {})
    logger.on_evaluate(3, {"clock": 0.5, "accuracy": 0.75})
    logger.on_end(None)
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"clock": 3, "evaluation/clock": 0.5, "accuracy": 0.75}
