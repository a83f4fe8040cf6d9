"""`proteus bill`: computes a ledger's bill again from the price history alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

MOST_SHOWN = 20


def bill(
    ledger: Path = typer.Argument(
        ..., help="A ledger (JSON lines) of `proteus simulate --ledger` or of a run."
    ),
    history: list[Path] = typer.Option(..., help="Price history: a file or a folder; may be repeated."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each scheme."),
) -> None:
    """Compute a ledger's bill again from the price history alone, line by line.

    Exit code 1 if any line differs.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bidbrain.accounts.ledger import read_ledgers
    from bidbrain.accounts.rebill import rebill
    from bidbrain.cli.common import load_history, user_errors
    from bidbrain.cli.harmless import harmless
    from bidbrain.money import show_usd, usd

    recorded = load_history(history)
    console = Console(stderr=True) if as_json else Console() if sys.stdout.isatty() else Console(width=110)
    table = Table(title=f"{ledger}: the ledger against {', '.join(recorded.sources)}", title_justify="left")
    for name in ("scheme", "jobs", "lines", "ledger $", "history $", "jobs that differ"):
        table.add_column(name, justify="left" if name == "scheme" else "right")
    sums: dict[str, list[int]] = {}
    shown: list[str] = []
    with user_errors():
        for job in read_ledgers(ledger):
            audit = rebill(job, recorded)
            row = sums.setdefault(audit.scheme, [0, 0, 0, 0, 0])
            for i, value in enumerate(
                (1, audit.lines, audit.ledger_micro_usd, audit.history_micro_usd, bool(audit.differences))
            ):
                row[i] += value
            shown += [f"{audit.job}: {difference}" for difference in audit.differences]
    for scheme, (jobs, lines, booked, asked, bad) in sums.items():
        if as_json:
            dollars = {"ledger_usd": usd(booked), "history_usd": usd(asked)}
            counts = {"jobs": jobs, "lines": lines, "jobs_that_differ": bad}
            print(json.dumps({"scheme": scheme, **counts, **dollars}))
        table.add_row(
            escape(harmless(scheme)), str(jobs), str(lines), show_usd(booked), show_usd(asked), str(bad)
        )
    if not as_json:
        console.print(table)
    for sentence in shown[:MOST_SHOWN]:
        console.print(harmless(sentence), highlight=False, markup=False, soft_wrap=True)
    if len(shown) > MOST_SHOWN:
        console.print(f"... and {len(shown) - MOST_SHOWN} more")
    if shown:
        raise typer.Exit(1)
    console.print("Every line agrees.")
