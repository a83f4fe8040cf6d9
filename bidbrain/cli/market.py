"""`proteus market`: the events and decisions of a job's market, from its journal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

market = typer.Typer(help="Explain the decisions of a job's market.", no_args_is_help=True)


@market.callback()
def _group() -> None:
    """Explain the decisions of a job's market."""


@market.command()
def explain(
    job: Path = typer.Argument(..., help="A run's folder, its folder market, or a journal.jsonl."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each line."),
) -> None:
    """Say why each machine was bought, kept and left."""
    from bidbrain.cli.harmless import harmless
    from bidbrain.live.explain import explain as lines_of
    from bidbrain.live.journal import JournalError, read_journal

    places = (job, job / "journal.jsonl", job / "market" / "journal.jsonl")
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise typer.BadParameter(f"{job}: no journal there, expected the folder of a run on a market")
    try:
        for line in lines_of(read_journal(found)):
            print(json.dumps(asdict(line)) if as_json else harmless(str(line)))
    except JournalError as error:
        raise typer.BadParameter(str(error)) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None
