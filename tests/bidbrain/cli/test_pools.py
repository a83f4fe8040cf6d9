"""`proteus pools`: what a user sees, and mistakes as one sentence."""

import json
from pathlib import Path

from typer.testing import CliRunner

from agileml.cli import app
from bidbrain.history.prices import Market
from bidbrain.live.keeping import FolderObjects, RiskKeeper
from bidbrain.risk.tally import Cell, Tally


def told(*words: object) -> tuple[int, str]:
    wide = {"COLUMNS": "400"}  # a narrow box breaks long paths, and words with them
    done = CliRunner().invoke(app, ["pools", *map(str, words)], env=wide)
    return done.exit_code, " ".join(done.output.replace("│", " ").split())


def test_bands_and_what_was_learned(tmp_path: Path) -> None:
    download = tmp_path / "download.json"
    download.write_text(
        json.dumps({"spot_advisor": {"us-east-1": {"Linux": {"c5.xlarge": {"s": 1, "r": 4}}}}})
    )
    place = tmp_path / "risk"
    code, text = told("refresh", download, "--to", place)
    assert (code, text) == (0, f"{place}/bands.csv: 1 types in 1 regions")
    code, text = told("show", place)
    assert (code, text) == (0, f"{place}: nothing was learned yet (0 jobs)")
    tally = Tally()
    tally.at(Market("c5.xlarge", "us-east-1a"), 4_000_000_000).add(
        Cell(200.0, 10.0, 10.0, 0, 30.0, 20.0, 3.0)
    )
    RiskKeeper(FolderObjects(place), "job").write(0, tally)
    code, text = told("show", place)
    assert code == 0
    assert "1 jobs" in text
    assert "c5.xlarge@us-east-1a 199.6 10.0 3.0 4.96" in text


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    code, text = told("refresh", tmp_path / "none.json", "--to", tmp_path)
    assert code == 2
    assert "No such file" in text
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    code, text = told("refresh", wrong, "--to", tmp_path)
    assert code == 2
    assert "not the Spot Instance Advisor's data" in text
    for command in (("show", wrong), ("refresh", wrong, "--to", wrong)):
        wrong.write_text('{"spot_advisor": {"us-east-1": {"Linux": {"c5.xlarge": {"s": 1, "r": 4}}}}}')
        code, text = told(*command)
        assert code == 2
        assert "wrong.json is a file, expected a folder or s3://BUCKET/PREFIX" in text
    code, text = told("show", tmp_path / "nowhere")
    assert code == 2 and "nowhere: no such folder, expected one or s3://BUCKET" in text
    code, text = told("show", "s3://bucket")
    assert code == 2
    assert "expected s3://BUCKET/PREFIX" in text
