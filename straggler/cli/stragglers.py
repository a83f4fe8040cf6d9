"""`proteus stragglers`: every scheme on every pattern, simulated over several seeds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from straggler.config import StragglerConfig
    from straggler.report.summary import Summary
    from straggler.simulate.schemes import Row


def stragglers(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML file, such as configs/stragglers_slow_worker.yaml. Options override its keys."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Number of workers.")] = None,
    machines: Annotated[
        int | None, typer.Option(help="Number of machines; workers are dealt to them in turn.")
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            help="Pattern of slow workers: slow-worker:200, power-law:7, trace:times.csv ...; may be repeated."
        ),
    ] = None,
    schemes: Annotated[
        str | None,
        typer.Option(
            help="Schemes, separated by spaces or '+': 'bsp ssp:1 flexrr lb-bsp:narx elasticbsp:15'."
        ),
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations of every worker.")] = None,
    units: Annotated[
        int | None, typer.Option(help="Units into which an iteration of a worker is divided.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds: each draws the pattern anew.")] = None,
    seed: Annotated[int | None, typer.Option(help="First seed.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for config, numbers and figure.", show_default="runs/stragglers-TIME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each row.")] = False,
) -> None:
    """Simulate straggler schemes on patterns of slow workers; print a table and write numbers and a figure."""
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
    with _folder(out) as folder:
        _simulate(chosen, folder, as_json=as_json)


def _simulate(config: StragglerConfig, folder: Path, *, as_json: bool) -> None:
    """Run everything that the config asks for, print the table and write the folder."""
    from rich.console import Console

    from straggler.report.folder import write_report
    from straggler.report.summary import summarise

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console = Console(width=140, stderr=as_json)  # a pipe has no width of its own
    rows = _rows(config, console)
    summaries = summarise(rows)
    if as_json:
        for summary in summaries:
            print(json.dumps(asdict(summary)))
    else:
        console.print(_table(summaries, bool(config.variants)))
    try:
        write_report(folder, config, rows)
    except OSError as error:
        where = error.filename or folder
        raise TyperException(f"{where} cannot be written: {error.strerror or error}") from None
    console.print(f"{folder}/figure.png, summary.json, runs.csv", highlight=False, markup=False)


def _rows(config: StragglerConfig, console: Console) -> list[tuple[str, Row]]:
    """(variant, run) of every pattern, variant, scheme and seed, with a progress bar on a terminal."""
    from rich.progress import track

    from straggler.simulate.patterns import parse_pattern
    from straggler.simulate.schemes import parse_scheme, run_scheme

    runs = [
        (label, parameters, text, scheme, drawing)
        for text in config.patterns
        for label, parameters in (dict(config.variants) or {"": config.flexrr}).items()
        for scheme in config.schemes
        for drawing in range(config.seed, config.seed + config.seeds)
    ]
    rows = []
    for label, parameters, text, scheme, drawing in track(
        runs, "simulating", console=console, disable=not console.is_terminal, transient=True
    ):
        experiment = config.experiment(parameters)
        try:
            row, _ = run_scheme(parse_scheme(scheme), parse_pattern(text), experiment, drawing)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        rows.append((label, row))
    return rows


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Where the results go. A folder of our own is made now: commands that begin in one second get one each."""
    if out is not None:
        out = Path(os.path.expanduser(out))  # no shell sees a `~` behind `--out=`
        _check_folder(out)
        yield out
        return
    folder = _new_folder(Path("runs") / time.strftime("stragglers-%Y%m%d-%H%M%S"))
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # of a command that ended without results


def _new_folder(path: Path) -> Path:
    """A folder that was not there: this one, or it with a number."""
    for number in count(1):
        found = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            found.mkdir(parents=True)
            return found
        except FileExistsError:
            continue
        except OSError as error:
            raise typer.BadParameter(f"{found} cannot be made a folder: {error.strerror}") from None
    raise AssertionError


def _check_folder(folder: Path) -> None:
    if os.path.lexists(folder) and not os.path.isdir(folder):
        what = "a file" if os.path.exists(folder) else "a link to nothing"
        raise typer.BadParameter(f"--out {folder} is {what}; expected a folder or a new name")
    try:
        is_used = os.path.isdir(folder) and any(folder.iterdir())
    except OSError as error:
        raise typer.BadParameter(f"--out {folder} cannot be looked into: {error.strerror}") from None
    if is_used:
        raise typer.BadParameter(f"--out {folder} holds something already; expected a new or empty folder")
    place = folder.absolute()  # of the folder, or of the first that is to be made
    while not os.path.exists(place):
        place = place.parent
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        raise typer.BadParameter(f"--out {folder}: {place} is not a folder that can be written to")


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
