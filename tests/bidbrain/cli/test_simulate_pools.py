"""`proteus simulate` on recorded availability, as people run it."""

import json
from pathlib import Path

import pytest

from tests.bidbrain.cli.test_commands import proteus


def test_pools_from_the_command_line(capsys, tmp_path: Path) -> None:
    trace = tmp_path / "pool.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": ([16] * 30 + [4] * 10) * 30}))
    code, text, _ = proteus(
        capsys, "simulate", "--availability", trace, "--out", tmp_path / "o", "--job-hours", 2,
        "--starts", 5, "--ledger", 2,
    )  # fmt: skip
    assert code == 0
    assert "spot_2026" in text
    assert (tmp_path / "o" / "jobs.png").exists()
    ledger, prices = tmp_path / "o" / "ledger.jsonl", tmp_path / "o" / "prices.csv"
    assert proteus(capsys, "bill", ledger, "--history", prices)[0] == 0


def test_a_folder_with_brackets_in_its_name_is_shown_as_it_is(capsys, tmp_path: Path) -> None:
    trace, out = tmp_path / "pool.json", tmp_path / "runs[a]"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": ([16] * 30 + [4] * 10) * 30}))
    options = ("--availability", trace, "--out", out, "--job-hours", 2, "--starts", 2, "--ledger", 2)
    code, text, _ = proteus(capsys, "simulate", *options)
    assert code == 0
    printed = "".join(text.split())
    assert f"{out}/ledger.jsonl:" in printed
    assert f"{out}/report.html" in printed


@pytest.mark.filterwarnings("error::UserWarning")
def test_jobs_of_which_none_ends_have_a_page_too(capsys, tmp_path: Path) -> None:
    trace = tmp_path / "$^$.json"  # a name that matplotlib would take for a formula
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [0] * 40}))
    options = ("--availability", trace, "--starts", 2, "--schemes", "elastic", "--out", tmp_path)
    code, text, _ = proteus(capsys, "simulate", *options, "--job-hours", "1,2")
    assert code == 0 and "elastic, 2 h: 2 of 2 jobs could not end" in text
    assert (tmp_path / "report.html").exists()
    assert json.loads((tmp_path / "table.json").read_text())[0]["cost"] is None


@pytest.mark.slow
def test_a_sweep_over_pools_has_the_settings_of_a_run_and_its_page_names_them(capsys, tmp_path: Path) -> None:
    """What a config does not say is other on pools than on prices: cap 1, a boot of 180 s, a deadline of 1.5."""
    trace = tmp_path / "pool.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": ([16] * 30 + [4] * 10) * 30}))
    options = ("--availability", trace, "--job-hours", 2, "--starts", 5, "--schemes", "expected_cost,elastic")
    assert proteus(capsys, "simulate", *options, "--out", tmp_path / "run")[0] == 0
    swept = proteus(capsys, "simulate", *options, "--sweep", "lambda_s=60,600", "--out", tmp_path / "sweep")
    assert swept[0] == 0
    (first, second) = json.loads((tmp_path / "sweep" / "sweep_lambda_s.json").read_text())
    assert first["table"] == json.loads((tmp_path / "run" / "table.json").read_text())
    assert first["table"] != second["table"]
    page = (tmp_path / "run" / "report.html").read_text()
    for line in ("cap: 1.0", "boot_s: 180", "deadline: 1.5", "rules: per_second_paid", "lambda_s: 60"):
        assert line in page, line
