"""The commands of `straggler`. Heavy imports stay inside the commands, so that `proteus --help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from straggler.report import Summary


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
    app.command("stragglers")(stragglers)


def stragglers(
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML, for example configs/stragglers_slow_worker.yaml; options win."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers in all.")] = None,
    machines: Annotated[int | None, typer.Option(help="Machines they are dealt to in turn.")] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(help="What slows them (repeatable): slow-worker:200, power-law:7, trace:times.csv ..."),
    ] = None,
    schemes: Annotated[
        str | None,
        typer.Option(help="With spaces or '+' between: 'bsp ssp:1 flexrr lb-bsp:narx elasticbsp:15'."),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of every worker.")] = None,
    units: Annotated[int | None, typer.Option(help="Units in which a worker's iteration is counted.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Drawings of the pattern.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first of them.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for table, numbers and figure; default runs/stragglers-TIME."),
    ] = None,
) -> None:
    """Simulate straggler schemes on a pattern: table, numbers and a figure."""
    import time

    from straggler.config import read_config

    try:
        chosen = read_config(
            config,
            workers=workers,
            machines=machines if machines is not None or workers is None or config else min(workers, 8),
            patterns=pattern or None,
            schemes=schemes.replace("+", " ").split() if schemes is not None else None,
            iterations=iterations,
            units=units,
            seeds=seeds,
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    folder = out or Path("runs") / time.strftime("stragglers-%Y%m%d-%H%M%S")
    _check_folder(folder)

    from rich.console import Console
    from rich.progress import track

    from straggler.report import summarise, write_report
    from straggler.simulate.patterns import parse_pattern
    from straggler.simulate.schemes import parse_scheme, run_scheme

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a pipe has no width of its own
    variants = dict(chosen.variants) or {"": chosen.flexrr}
    runs = [
        (label, parameters, text, scheme, drawing)
        for text in chosen.patterns
        for label, parameters in variants.items()
        for scheme in chosen.schemes
        for drawing in range(chosen.seed, chosen.seed + chosen.seeds)
    ]
    rows = []
    for label, parameters, text, scheme, drawing in track(
        runs, "simulating", console=console, disable=not console.is_terminal, transient=True
    ):
        experiment = chosen.experiment(parameters)
        try:
            row, _ = run_scheme(parse_scheme(scheme), parse_pattern(text), experiment, drawing)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        rows.append((label, row))
    console.print(_table(summarise(rows), bool(chosen.variants)))
    try:
        write_report(folder, chosen, rows)
    except OSError as error:
        raise typer.BadParameter(f"--out {folder} cannot be written: {error.strerror}") from error
    console.print(f"{folder}/figure.png, summary.json, runs.csv", highlight=False)


def _check_folder(folder: Path) -> None:
    import os

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise typer.BadParameter(f"--out {folder} holds something already; expected a new or empty folder")
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise typer.BadParameter(f"--out {folder}: {parent} is not a folder that can be written to")


def _table(summaries: list[Summary], variants: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("pattern", *(["variant"] if variants else []), "scheme"):
        table.add_column(heading, no_wrap=True)
    for heading in ("s/iteration", "spread", "ideal", "over ideal", "waiting", "moved", "messages"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for summary in summaries:
        first = summary.pattern != before
        before = summary.pattern
        table.add_row(
            summary.pattern if first else "",
            *([summary.variant] if variants else []),
            summary.scheme,
            f"{summary.per_iteration_s:.4g}",
            f"{summary.least_s:.4g}-{summary.most_s:.4g}",
            f"{summary.ideal_s:.4g}",
            f"{summary.over_ideal:.3f}",
            f"{summary.waiting_share:.1%}",
            f"{summary.moved_share:.1%}",
            f"{summary.messages:.0f}",
        )
    return table
