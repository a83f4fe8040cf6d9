"""Series of a run in files of its folder."""

import json
import os
from pathlib import Path

import pytest

import agileml
from agileml.runs.event_log import EVENTS
from agileml.runs.folder import FolderError, RunFolder
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


@pytest.mark.parametrize(("logger", "file"), [("csv", "clocks.csv"), ("jsonl", "metrics.jsonl")])
def test_a_file_of_the_user_s_own_or_a_link_is_not_written_to(tmp_path: Path, logger: str, file: str) -> None:
    """Both were replaced: what the link leads to as well, in a folder that came from somebody else."""
    job = {"application": "mlr", "clocks": 2, "log": [logger]}
    other = tmp_path / "other"
    other.write_text("mine")
    for number, make in enumerate((Path.write_text, Path.symlink_to)):
        out = tmp_path / str(number)
        out.mkdir()
        make(out / file, "mine" if make is Path.write_text else other)
        with pytest.raises(
            FolderError, match=f"holds {file} without the log of a run, and log would write it"
        ):
            agileml.run(job, sequential=True, out=str(out))
        with pytest.raises(FileExistsError):
            {"csv": CsvLogger, "jsonl": JsonlLogger}[logger]().on_start(out, {})
        assert os.listdir(out) == [file] and (out / file).read_text() == other.read_text() == "mine"
