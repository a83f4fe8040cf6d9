"""Risk that outlives jobs: one object per job in a folder or a bucket, read together by all jobs.

A job writes only its own object, whole, from its own tally, and reads those of the others. So two writers cannot
lose each other's counts, and a service that dies anywhere writes the same object again. `bands.csv`, if it is there,
takes precedence over the package's bands.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bidbrain.accounts.evidence import LedgerRisk
from bidbrain.live.cloud import CloudError
from bidbrain.risk.bands import Bands, BandsError, parse_bands
from bidbrain.risk.book import Known
from bidbrain.risk.tally import Tally, TallyError

BANDS = "bands.csv"
TAIL = ".jsonl"
KEEP_S = 600  # between two writes


class Objects(Protocol):
    """Small named objects. Calls raise OSError or CloudError."""

    def names(self) -> list[str]: ...

    def get(self, name: str) -> bytes:
        """An object that `names` listed."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole: readers see the old one or the new one."""
        ...


class FolderObjects:
    """Objects as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Files that are whole."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if not path.name.startswith("."))

    def get(self, name: str) -> bytes:
        """A file's content."""
        return (self._folder / name).read_bytes()

    def put(self, name: str, data: bytes) -> None:
        """Write beside, then rename."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{name}.{os.getpid()}"
        try:
            with partial.open("wb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            partial.replace(self._folder / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


@dataclass(frozen=True)
class Kept:
    """All that is kept. problems: a sentence for each object that could not be read, and was left out."""

    tally: Tally
    bands: Bands | None
    writers: int
    problems: tuple[str, ...]


def read_kept(objects: Objects, but: str | None = None) -> Kept:
    """Every job's tally, added up, without that of the job `but`. Raises OSError, CloudError."""
    tally, bands, writers = Tally(), None, 0
    problems: list[str] = []
    for name in objects.names():
        if name != BANDS and (not name.endswith(TAIL) or name == f"{but}{TAIL}"):
            continue
        try:
            text = objects.get(name).decode()
            if name == BANDS:
                bands = parse_bands(text, name)
            else:
                tally.merge(Tally.parse(text.splitlines(), name))
                writers += 1
        except (TallyError, BandsError, UnicodeDecodeError) as error:
            problems.append(str(error))
    return Kept(tally, bands, writers, tuple(problems))


def _print(sentence: str) -> None:
    import sys

    print(f"proteus: {sentence}", file=sys.stderr)


@dataclass
class RiskKeeper:
    """Keeps one job's tally among the others'. A problem is reported once, and never stops the job: risk is advice."""

    objects: Objects
    job: str
    say: Callable[[str], None] = _print
    _said: set[str] = field(default_factory=set)
    _due_s: int | None = None

    def keep(self, now_s: int, risk: LedgerRisk, *, is_last: bool) -> None:
        """Write this job's tally and give it those of other jobs: every few minutes, and at the end."""
        if is_last or self._due_s is None or now_s >= self._due_s:
            self.write(now_s, risk.tally(now_s))
            if not is_last and (known := self.known(now_s)) is not None:
                risk.know(known)

    def known(self, now_s: int) -> Known | None:
        """The statistics of the other jobs; None if they could not be read."""
        try:
            kept = read_kept(self.objects, self.job)
        except (OSError, CloudError) as error:
            self._tell(f"the risk of other jobs could not be read: {error}")
            return None
        for problem in kept.problems:
            self._tell(f"risk: {problem}; it is left out")
        return Known.of_tally(kept.tally, now_s, kept.bands)

    def write(self, now_s: int, tally: Tally) -> None:
        """Write this job's object."""
        self._due_s = now_s + KEEP_S
        data = "".join(f"{line}\n" for line in tally.lines()).encode()
        try:
            self.objects.put(f"{self.job.replace('/', '-')}{TAIL}", data)
        except (OSError, CloudError) as error:
            self._tell(f"this job's risk could not be kept: {error}")

    def _tell(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)
