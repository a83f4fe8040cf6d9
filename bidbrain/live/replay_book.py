"""The book of a replayed market: its purchases and their ends, on disk, so that it outlives the process that plays it.

A line is written before anything follows from it. Market time goes on while no process plays the market, by the
computer's clock: the instances that are held are paid, and may be taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from bidbrain.billing import Ending
from bidbrain.line_file import LineFile
from bidbrain.live.cloud import Order

BOOK = "played.jsonl"


@dataclass(frozen=True)
class Began:
    """The first line: the market's time at an instant of Unix time."""

    at_s: int
    unix_s: float
    kind: Literal["began"] = "began"


@dataclass(frozen=True)
class Sold:
    """All instances of an order were granted."""

    at_s: int
    order: Order
    kind: Literal["sold"] = "sold"


@dataclass(frozen=True)
class Over:
    """These instances ended, all at one instant."""

    at_s: int
    instances: tuple[str, ...]
    ending: Ending
    kind: Literal["over"] = "over"


Entry = Annotated[Began | Sold | Over, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[Began | Sold | Over] = TypeAdapter(Entry)


class ReplayBookError(RuntimeError):
    """A book cannot be used; the message is one sentence."""


class ReplayBook:
    """The file `played.jsonl` of a folder, locked. A context manager. Raises ReplayBookError.

    entries: what was there when it was opened.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / BOOK
        try:
            self._file = LineFile(path)
        except BlockingIOError:
            raise ReplayBookError(f"{path}: another process plays this market; stop it first") from None
        self.entries: list[Began | Sold | Over] = []
        for number, line in enumerate(self._file.lines.splitlines(), 1):
            try:
                self.entries.append(_ADAPTER.validate_json(line))
            except ValidationError as error:
                self.close()
                what = error.errors()[0]["msg"]
                raise ReplayBookError(f"{path} line {number}: not a line of a book ({what})") from None

    def time_s(self, start_s: int, speed: float, unix_s: float) -> int:
        """The market's time now, which is `start_s` when its book begins. speed: market seconds per second."""
        first = next((entry for entry in self.entries if isinstance(entry, Began)), None)
        if first is None:
            self.write(Began(start_s, unix_s))
            return start_s
        passed_s = math.floor((unix_s - first.unix_s) * speed)
        return max(first.at_s + passed_s, self.entries[-1].at_s)  # a clock may be set back

    def write(self, entry: Began | Sold | Over) -> None:
        """Add an entry; it is on disk when this returns."""
        self._file.append(_ADAPTER.dump_json(entry) + b"\n")

    def close(self) -> None:
        """Let the file go; the second time does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
