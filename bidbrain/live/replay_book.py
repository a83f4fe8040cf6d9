"""The book of a replayed market: its purchases and their ends, on disk, so that it outlives the process that plays it.

A line is written before anything follows from it. Market time goes on by the computer's clock while no process
plays the market: held instances cost money, and may be evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from bidbrain.billing import Ending
from bidbrain.files.line_file import RecordFile, RecordFormat
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


Entry = Began | Sold | Over


class ReplayBookError(RuntimeError):
    """A book cannot be used; the message is one sentence."""


_ADAPTER: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
_FORMAT = RecordFormat(
    _ADAPTER, ReplayBookError, "a line of a book", "another process plays this market; stop it first"
)


class ReplayBook(RecordFile[Entry]):
    """The file `played.jsonl` of a folder, locked. A context manager. Raises ReplayBookError."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / BOOK, _FORMAT)

    def time_s(self, start_s: int, speed: float, unix_s: float) -> int:
        """The market's time now, which is `start_s` when its book begins. speed: market seconds per second."""
        first = next((entry for entry in self.records if isinstance(entry, Began)), None)
        if first is None:
            self.append(Began(start_s, unix_s))
            return start_s
        passed_s = math.floor((unix_s - first.unix_s) * speed)
        return max(first.at_s + passed_s, self.records[-1].at_s)  # a clock may be set back
