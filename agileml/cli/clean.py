"""`proteus clean`: shows what runs that ended badly have left on this computer, and removes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from agileml.cli.asking import ask


def mount(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(clean)


def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is there.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object for each leftover; removes nothing without --yes."
        ),
    ] = False,
) -> None:
    """Show and remove the folders and processes that failed runs have left here. Results stay."""
    from agileml.cluster.leftovers import leftovers, remove_leftover

    found = leftovers()
    for each in found:
        print(
            json.dumps(asdict(each))
            if as_json
            else _line(each.place, each.reason, each.bytes, each.processes)
        )
    if not found:
        if not as_json:
            print("nothing is left of earlier runs")
        return
    if dry_run or (as_json and not yes):
        return
    if not yes:
        ask(f"Remove these {len(found)}?")
    for each in found:
        remove_leftover(each)
    left = leftovers()
    if not as_json:
        print(f"removed {len(found) - len(left)} of {len(found)}")
    raise typer.Exit(1 if left else 0)


def _line(place: str, reason: str, size: int, processes: int) -> str:
    running = f", {processes} processes" if processes else ""
    return f"{place}  {size / 2**20:.1f} MiB{running}  {reason}"
