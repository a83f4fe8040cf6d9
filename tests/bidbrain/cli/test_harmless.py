"""What others have written moves no cursor and sets no clipboard when a command shows it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from agileml.cli import app
from bidbrain.accounts.ledger import Entry, EntryKind, Header, Ledger, write_ledgers
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.prices import History, Market, Steps
from bidbrain.live.journal import Journal, Opened, Ordered, Troubled
from bidbrain.risk.tally import Cell, Tally
from tests.bidbrain.cli.test_pools import told

ESCAPES = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b"
SHOWN = "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x9b"


def is_text(said: str) -> bool:
    return all(each.isprintable() or each == "\n" for each in said)


def test_the_journal_of_a_job_from_elsewhere_is_text(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(Opened(f"job{ESCAPES}", "proteus", 0))
        journal.append(Troubled(1, (ESCAPES,)))
    done = CliRunner().invoke(app, ["market", "explain", str(tmp_path)])
    assert done.exit_code == 0 and is_text(done.output)
    assert f"job{SHOWN}: proteus decides" in done.output


def test_an_order_of_a_journal_from_elsewhere_fills_no_memory(tmp_path: Path) -> None:
    market = Market("c5.xlarge", "us-east-1a")
    with Journal(tmp_path) as journal:
        journal.append(Ordered(0, 0, market, 4, 1, 1000, 0))
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"parts":1,', '"parts":999999999999,'))
    done = CliRunner().invoke(app, ["market", "explain", str(tmp_path)])
    assert done.exit_code == 2 and "line 1: not a journal line" in " ".join(done.output.split())


def test_what_a_machine_has_written_of_pools_is_text(tmp_path: Path) -> None:
    """Every machine of a stack may write there; the person who looks is somebody else."""
    tally = Tally()
    tally.at(Market(f"c5{ESCAPES}[/b]", "us-east-1a"), 4_000_000_000).add(Cell(1.0))
    (tmp_path / "job.jsonl").write_text("\n".join(tally.lines()))
    wrong = {"pool": "a@b", "hour_s": ESCAPES, "seen": [0] * 7, "by_age": [[0, 0]] * 4}
    (tmp_path / "other.jsonl").write_text(json.dumps(wrong))
    code, said = told("show", tmp_path)
    assert (
        code == 0 and is_text(said) and f"an hour of {SHOWN}" in said and f"c5{SHOWN}[/b]@us-east-1a" in said
    )


def test_a_ledger_from_elsewhere_is_text(tmp_path: Path) -> None:
    market = Market("c5.xlarge", "us-east-1a")
    write_rows(tmp_path / "prices.csv", rows_of(History({market: Steps.from_rows([0], [1000])}, 7200)))
    header = Header(f"job{ESCAPES}", f"[/b]{ESCAPES}", 0, 1.0, "per_second", {"c5.xlarge": (1000, 4)}, {})
    charge = Entry(60, EntryKind.CHARGE, 1, market, micro_usd=5)
    write_ledgers(tmp_path / "ledger.jsonl", [Ledger(header, (charge,))])
    words = ["bill", str(tmp_path / "ledger.jsonl"), "--history", str(tmp_path / "prices.csv")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and is_text(done.output)
    assert f"job{SHOWN}: the ledger has" in done.output and "[/b]\\x1b]52" in done.output
