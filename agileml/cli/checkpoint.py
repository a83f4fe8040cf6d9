"""`proteus checkpoint show`: the checkpoints of a folder, whether each is whole, and the one that a resume takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bidbrain.cli.harmless import harmless

if TYPE_CHECKING:
    from agileml.checkpoints.checkpoint import Found
    from agileml.checkpoints.store import CheckpointStore

WIDTH = 110  # of the table, whatever the terminal has: a size must not lose its last digits


def mount(app: typer.Typer) -> None:
    """Add `proteus checkpoint`."""
    checkpoint = typer.Typer(no_args_is_help=True, help="Look at checkpoints.")
    checkpoint.callback()(_checkpoint)
    checkpoint.command()(show)
    app.add_typer(checkpoint, name="checkpoint")


def _checkpoint() -> None:
    """Look at checkpoints."""


def show(
    path: Annotated[str, typer.Argument(help="The folder or s3://bucket/prefix of `checkpoint.path`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List checkpoints, read every byte of them, and say which one a resume would take.

    Exit code 0 when there is one to resume from, 1 when none is whole, 2 when there are none.
    """
    import json
    import sys

    from agileml.checkpoints.checkpoint import Condition
    from agileml.checkpoints.errors import CheckpointError
    from agileml.checkpoints.opening import open_store

    try:
        store = open_store(path)
        found = _surveyed(store)
    except ValueError as error:
        raise typer.BadParameter(f"PATH: {error}") from None
    except CheckpointError as error:
        raise typer.BadParameter(str(error)) from None
    if not found:
        raise typer.BadParameter(_nothing_there(path, store))
    whole = [one.name for one in found if one.condition is Condition.WHOLE]
    taken = max(whole, default=None)
    if as_json:
        print(json.dumps([{**_row(one), "resumes": one.name == taken} for one in found], indent=1))
    else:
        _print_table(found, taken)
        for one in found:
            if one.problem:
                print(harmless(one.problem))
    if taken is None:
        print("proteus: none of them is whole, so there is nothing to resume from", file=sys.stderr)
        raise typer.Exit(1)


def _surveyed(store: CheckpointStore) -> list[Found]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from agileml.checkpoints.checkpoint import Check, survey

    columns = TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    total = sum(one.bytes for one in survey(store, Check.SIZES))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading", total=total)
        return survey(store, Check.CHECKSUMS, lambda count: progress.advance(bar, count))


def _nothing_there(path: str, store: CheckpointStore) -> str:
    from agileml.checkpoints.store import FolderStore

    expected = "expected a folder or s3://bucket/prefix with checkpoints"
    if isinstance(store, FolderStore):
        if not store.folder.exists():
            return f"{path} does not exist, {expected}"
        if store.folder.name.startswith("clock-"):
            return f"{path} is one checkpoint or a part of one, expected the folder above it"
        if (below := Path(path) / "checkpoints").is_dir():
            return f"{path} holds no checkpoints, did you mean {below}?"
    return f"{path} holds no checkpoints, {expected}"


def _row(one: Found) -> dict[str, Any]:
    from datetime import UTC, datetime

    manifest = one.manifest
    return {
        "clock": one.name.clock,
        "epoch": one.name.epoch,
        "written": manifest
        and datetime.fromtimestamp(manifest.at_s, UTC).isoformat(sep=" ", timespec="seconds"),
        "bytes": one.bytes,
        "partitions": manifest and len(manifest.parts),
        "condition": one.condition.value,
        "problem": one.problem,
    }


def _print_table(found: list[Found], taken: object) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("clock", "epoch", "written (UTC)", "bytes", "parts", "condition"):
        number = head in ("clock", "epoch", "bytes", "parts")
        table.add_column(head, no_wrap=True, justify="right" if number else "left")
    for one in found:
        row = _row(one)
        table.add_row(
            str(row["clock"]),
            str(row["epoch"]),
            (row["written"] or "-").removesuffix("+00:00"),
            f"{row['bytes']:,}",
            str(row["partitions"] or "-"),
            row["condition"] + (", a resume takes it" if one.name == taken else ""),
        )
    Console(width=WIDTH).print(table)
