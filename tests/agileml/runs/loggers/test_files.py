"""Series of a run in files of its folder."""

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
