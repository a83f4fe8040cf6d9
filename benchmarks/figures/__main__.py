"""The command: redraw, show progress, write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.figures.catalogue import FIGURES, UNABLE, chosen
from benchmarks.figures.page import OtherSeedError, kept, page, section
from benchmarks.figures.redraw import ROOT, CommandError, Redrawn, failed, redraw


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names, or how they begin, by commas: flexrr,bidbrain-2016")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "figures", help="finished figures stay here"
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="the recordings")
    parser.add_argument(
        "--page", type=Path, help="[default: docs/reproduction.md; with --only none; a page keeps its others]"
    )
    arguments = parser.parse_args()
    figures = chosen(arguments.only)
    if not figures:
        parser.error(
            f"--only {arguments.only}: found no such figure, expected {', '.join(f.name for f in FIGURES)}"
        )
    target = arguments.page or (None if arguments.only else ROOT / "docs" / "reproduction.md")
    sections: dict[str, str] = {}
    if target is not None and arguments.only and target.exists():
        try:
            sections = kept(target.read_text(), arguments.seed)
        except OtherSeedError as error:
            parser.error(f"--page {target}: {error}")
    console = Console()
    done: list[Redrawn] = []
    errors: list[CommandError] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(figures))
        for figure in figures:
            progress.update(task, description=figure.name)
            try:
                done.append(redraw(figure, arguments.out.resolve(), arguments.data.resolve(), arguments.seed))
            except CommandError as error:
                errors.append(error)
                done.append(failed(figure, arguments.out, error))
            progress.advance(task)
    table = Table("figure", "statement", "printed", "ours", "verdict")
    for each in done:
        for claim in each.claims:
            table.add_row(each.figure.name, claim.what, claim.printed, claim.ours, claim.verdict.value)
    console.print(table)
    if target is not None:
        pictures = target.parent / target.stem
        sections |= {each.figure.name: section(each, pictures, arguments.seed) for each in done}
        target.write_text(page(sections, [figure.name for figure in FIGURES], UNABLE, arguments.seed))
        console.print(f"{target}", highlight=False)
    spent_s = sum(each.seconds for each in done)
    slowest = ", ".join(
        f"{each.figure.name} {each.seconds:.0f} s"
        for each in sorted(done, key=lambda each: each.seconds)[-3:]
    )
    console.print(
        f"{len(done)} figures in {spent_s / 60:.1f} minutes, the longest {slowest}", highlight=False
    )
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
