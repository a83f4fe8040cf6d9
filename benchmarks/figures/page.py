"""The page: a section for each figure with its commands, its statements and its picture."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures.figure import Unable, Verdict
from benchmarks.figures.redraw import Redrawn

LEFT_OUT = "Not redrawn by this program"
_HEADING = re.compile(r"^## (?P<name>[^:\n]+)(?::.*)?$", re.M)


class OtherSeedError(Exception):
    """The page that is to be completed has figures of another seed."""


def kept(text: str, seed: int) -> dict[str, str]:
    """The sections of a page by the names of their figures. Raises OtherSeedError."""
    if f", seed {seed}." not in " ".join(text.split()):
        raise OtherSeedError(f"the page's figures were drawn with another seed than {seed}")
    headings = [*_HEADING.finditer(text)]
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    found = {
        heading["name"]: text[heading.start() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
    }
    found.pop(LEFT_OUT, None)
    return found


def section(redrawn: Redrawn, pictures: Path, seed: int) -> str:
    """A figure's part of the page. Its picture is copied to `pictures`, a folder beside the page."""
    figure = redrawn.figure
    # Paths as a reader would type them.
    folder = f"runs/figures/{figure.name}"
    shown = [command.format(out=folder, seed=seed, data="$RECORDINGS") for command in figure.commands]
    lines = [f"## {figure.name}: {figure.title}", "", f"    mkdir -p {folder}"]
    lines += [*(f"    {command}" for command in shown), ""]
    lines += ["| statement | printed | ours | verdict |", "| --- | --- | --- | --- |"]
    for claim in redrawn.claims:
        because = " ".join(claim.because.replace("|", "/").split())  # a cell of a table
        verdict = claim.verdict.value + (f", because {because}" if because else "")
        lines.append(f"| {claim.what} | {claim.printed} | {claim.ours} | {verdict} |")
    if figure.picture is not None and (source := redrawn.folder / figure.picture).exists():
        pictures.mkdir(parents=True, exist_ok=True)
        name = f"{figure.name}{source.suffix}"
        shutil.copyfile(source, pictures / name)
        lines += ["", f"![{figure.title}]({pictures.name}/{name})"]
    return "\n".join(lines)


def page(sections: Mapping[str, str], order: Sequence[str], unable: Sequence[Unable], seed: int) -> str:
    """The page as markdown: the sections that there are, in this order."""
    parts = [sections[name] for name in order if name in sections]
    rows = re.findall(r"\| (\w+)(?:, because [^|]*)? \|$", "\n".join(parts), re.M)
    counts = ", ".join(f"{rows.count(v.value)} {v.value}" for v in Verdict if v.value in rows)
    head = (
        "# Reproduction\n\n"
        "Written by `make figures` (`python -m benchmarks.figures`): statements of the papers beside what our\n"
        f"commands give, seed {seed}. {counts}. A verdict is computed from the figures each time; the rule of each is\n"
        "in `benchmarks/figures`. Commands are run in the repository's root, with the recordings in the folder\n"
        "`$RECORDINGS`. More measurements are in [performance.md](performance.md)."
    )
    left = f"## {LEFT_OUT}\n\n| figure | shows | why not |\n| --- | --- | --- |"
    left += "".join(f"\n| {one.name} | {one.title} | {one.because} |" for one in unable)
    return "\n\n".join([head, *parts, left]) + "\n"
