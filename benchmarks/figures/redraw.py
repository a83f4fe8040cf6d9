"""Runs the commands of a figure in a folder of its own, once; and asks for the verdicts."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures.figure import Claim, Figure, Verdict

ROOT = Path(__file__).resolve().parents[2]
_DONE = "done.json"


class CommandError(Exception):
    """A command of a figure failed. The message names it and has the end of what it printed."""


@dataclass(frozen=True)
class Redrawn:
    """A figure and what came of it. `folder`: where its commands wrote to."""

    figure: Figure
    folder: Path
    claims: tuple[Claim, ...]


def redraw(figure: Figure, out: Path, data: Path, seed: int) -> Redrawn:
    """Run the figure's commands unless they have been run with the same words, and judge. Raises CommandError."""
    folder = out / figure.name
    if missing := figure.missing(data):
        lacks = f"the recording {', '.join(missing)} is not there"
        return Redrawn(figure, folder, (Claim(figure.title, "", "", Verdict.CANNOT, lacks),))
    wanted = [command.format(out=folder, seed=seed, data=data) for command in figure.commands]
    mark = folder / _DONE
    if not mark.exists() or json.loads(mark.read_text()) != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        for command in wanted:
            _run(command)
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(json.dumps(wanted))
    return Redrawn(figure, folder, tuple(figure.judge(folder)))


def _run(command: str) -> None:
    # The folder of what is written must exist; a command makes that of its own --out.
    words = shlex.split(command)
    Path(words[words.index("--out") + 1]).parent.mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        [sys.executable, "-m", "agileml.cli", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip().splitlines()[-5:]
        raise CommandError(f"proteus {command} ended with {ran.returncode}: " + " ".join(said))


def page(
    redrawn: Sequence[Redrawn], unable: Sequence[tuple[str, str, str]], pictures: Path, seed: int
) -> str:
    """The page as markdown. Pictures are copied to `pictures`, a folder beside the page."""
    every = [claim.verdict for each in redrawn for claim in each.claims]
    counts = ", ".join(f"{every.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in every)
    lines = [
        "# Reproduction",
        "",
        "Written by `make figures` (`python -m benchmarks.figures`): statements of the papers beside what our commands",
        f"give, seed {seed}. {counts}. A verdict is computed from the figures each time; the rule of each is in",
        "`benchmarks/figures`. Figures that other programs measured are in [performance.md](performance.md).",
    ]
    for each in redrawn:
        lines += ["", f"## {each.figure.name}: {each.figure.title}", ""]
        # Paths as a reader would type them.
        shown = [
            c.format(out=f"runs/figures/{each.figure.name}", seed=seed, data="RECORDINGS")
            for c in each.figure.commands
        ]
        lines += [*(f"    proteus {command}" for command in shown), ""]
        lines += ["| statement | printed | ours | verdict |", "| --- | --- | --- | --- |"]
        for claim in each.claims:
            verdict = claim.verdict.value + (f", because {claim.because}" if claim.because else "")
            lines.append(f"| {claim.what} | {claim.printed} | {claim.ours} | {verdict} |")
        if each.figure.picture is not None and (source := each.folder / each.figure.picture).exists():
            pictures.mkdir(parents=True, exist_ok=True)
            name = f"{each.figure.name}{source.suffix}"
            shutil.copyfile(source, pictures / name)
            lines += ["", f"![{each.figure.title}]({pictures.name}/{name})"]
    lines += ["", "## Not redrawn by this program", "", "| figure | shows | why not |", "| --- | --- | --- |"]
    lines += [f"| {name} | {title} | {because} |" for name, title, because in unable]
    return "\n".join(lines) + "\n"
