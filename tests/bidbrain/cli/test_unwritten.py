"""Results that cannot be written: one sentence that names the file, exit code 1, and nothing that is half of one."""

import os
import sys
from pathlib import Path

import pytest

from agileml.cli import main
from bidbrain.history.archive import rows_of, write_rows
from tests.agileml.runs.full_disk import files_of_at_most

SIMULATE = (
    *(
        "simulate",
        "--history",
        "H",
        "--train",
        "2016-03-01/2016-03-20",
        "--evaluate",
        "2016-03-20/2016-04-04",
    ),
    *("--starts", "2", "--schemes", "on_demand", "--job-hours", "2", "--out", "O"),
)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("prices", "generate", "O.csv.gz", "--window", "2016-03-01/2016-03-02"), ".csv.gz"),
        (("prices", "show", "H", "--out", "O.png"), ".png"),
        (("prices", "evictions", "H", "--out", "O.csv"), ".csv"),
        (SIMULATE, "/table.json"),
        ((*SIMULATE, "--sweep", "boot_s=60,120"), "/sweep_boot_s.json"),
    ],
)
def test_a_full_disk(command, name: str, turbulent, tmp_path: Path, capsys) -> None:
    history, out = tmp_path / "made.csv.gz", tmp_path / "results"
    write_rows(history, rows_of(turbulent))
    out.mkdir()
    words = [
        str(history) if word == "H" else word.replace("O", f"{out}/found") if word[0] == "O" else word
        for word in command
    ]
    with files_of_at_most(10), pytest.raises(SystemExit) as ended:
        main(words)
    line = capsys.readouterr().err.splitlines()[-1]  # after the empty line of a progress bar
    assert ended.value.code == 1
    assert line == f"proteus: {out}/found{name}: cannot be written (File too large)"
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_costs_no_results(
    options: tuple[str, ...], turbulent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`proteus simulate ... | head` ended with its first table, without ledger and report."""
    write_rows(tmp_path / "made.csv", rows_of(turbulent))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        words = [{"H": "made.csv", "O": "found"}.get(word, word) for word in SIMULATE]
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--ledger", "1", *options])
    assert not ended.value.code
    assert {"table.json", "ledger.jsonl", "report.html"} <= {file.name for file in Path("found").iterdir()}
