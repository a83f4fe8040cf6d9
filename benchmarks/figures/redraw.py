"""Runs the commands of a figure in a folder of its own, once; and asks for the verdicts."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures.figure import Claim, Figure, Verdict

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"proteus": (sys.executable, "-m", "agileml.cli"), "python": (sys.executable,)}
_DONE = "ran.json"  # beside what an earlier version left: its done.json has no seconds


class CommandError(Exception):
    """A command of a figure failed. The message names it and has the end of what it printed."""


@dataclass(frozen=True)
class Redrawn:
    """A figure and what came of it. `folder`: where its commands wrote to. `seconds`: how long they took."""

    figure: Figure
    folder: Path
    claims: tuple[Claim, ...]
    seconds: float = 0.0


def redraw(figure: Figure, out: Path, data: Path, seed: int) -> Redrawn:
    """Run the figure's commands unless they have been run with the same words, and judge. Raises CommandError."""
    began_s = time.monotonic()
    folder = out / figure.name
    if why := figure.missing(data):
        return Redrawn(figure, folder, (Claim(figure.title, "", "", Verdict.CANNOT, why),))
    wanted = [command.format(out=folder, seed=seed, data=data) for command in figure.commands]
    mark = folder / _DONE
    if not mark.exists() or json.loads(mark.read_text())["commands"] != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in wanted:
            _run(command)
        mark.write_text(json.dumps({"commands": wanted, "seconds": round(time.monotonic() - began_s, 1)}))
    if figure.draw is not None:
        figure.draw(folder)
    return Redrawn(figure, folder, tuple(figure.judge(folder)), json.loads(mark.read_text())["seconds"])


def failed(figure: Figure, out: Path, error: CommandError) -> Redrawn:
    """What a page says of a figure of which a command failed."""
    return Redrawn(figure, out / figure.name, (Claim(figure.title, "", "", Verdict.CANNOT, f"{error}"),))


def _run(command: str) -> None:
    """One command, as a shell would run it in the repository's root. Raises CommandError."""
    words = shlex.split(command)
    with contextlib.ExitStack() as stack:
        printed: int | object = subprocess.PIPE
        if ">" in words:
            *words, _, target = words
            printed = stack.enter_context(Path(target).open("w"))
        ran = subprocess.run(
            [*PROGRAMS[words[0]], *words[1:]],
            cwd=ROOT,
            stdout=printed,  # type: ignore[call-overload]
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    if ran.returncode:
        said = (ran.stderr or ran.stdout or "").strip().splitlines()[-5:]
        raise CommandError(f"{command} ended with {ran.returncode}: " + " ".join(said))
