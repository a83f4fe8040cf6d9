"""A figure of a paper: its commands, its statements, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Verdict(Enum):
    """What comparing a statement with our figures gave."""

    REPRODUCED = "reproduced"
    DIFFERS = "differs"
    CANNOT = "cannot"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper beside ours. `because`: why it differs, if it does, or why it cannot be checked."""

    what: str
    printed: str
    ours: str
    verdict: Verdict
    because: str = ""


def checked(what: str, printed: str, ours: str, holds: bool, because: str) -> Claim:
    """Reproduced if `holds`; else it differs, because of what `because` says."""
    if holds:
        return Claim(what, printed, ours, Verdict.REPRODUCED)
    return Claim(what, printed, ours, Verdict.DIFFERS, because)


@dataclass(frozen=True)
class Figure:
    """`commands`: as typed in the repository's root, `proteus ...` or `python benchmarks/...`, perhaps with `> FILE` at
    the end; {out} is the figure's folder, {seed} the seed and {data} the folder of recordings. `judge` reads what they
    wrote to {out}. `picture`: the file there that shows it; `draw` draws it, where no command does. `needs`: recordings
    below {data} without which nothing can be said. `lacks`: what this computer has not for it, if anything."""

    name: str
    title: str
    commands: tuple[str, ...]
    judge: Callable[[Path], Sequence[Claim]]
    picture: str | None = None
    needs: tuple[str, ...] = ()
    draw: Callable[[Path], None] | None = None
    lacks: Callable[[], str | None] | None = None

    def missing(self, data: Path) -> str | None:
        """Why the commands cannot run here: a recording that is not there, or something that the computer has not."""
        if absent := [need for need in self.needs if not (data / need).exists()]:
            return f"the recording {', '.join(absent)} is not there"
        return self.lacks() if self.lacks is not None else None


@dataclass(frozen=True)
class Unable:
    """A figure that no command of this program can redraw, and why."""

    name: str
    title: str
    because: str
