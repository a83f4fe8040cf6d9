"""A price archive as one CSV file: rows are added without doubles, oldest first, and the file is replaced whole."""

from __future__ import annotations

import csv
import fcntl
import gzip
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bidbrain.files.whole_file import whole_file
from bidbrain.history.prices import History
from bidbrain.history.readers import COLUMNS, Row, read_rows
from bidbrain.instants import DAY_S, show_instant
from bidbrain.money import show_usd


def rows_of(history: History) -> list[Row]:
    """The steps of a history as rows in order of time."""
    return sorted(
        (at_s, market.instance_type, market.zone, market.product, price)
        for market, steps in history.steps.items()
        for at_s, price in zip(steps.times.tolist(), steps.prices.tolist(), strict=True)
    )


def repeated_rows_of(history: History) -> list[Row]:
    """The same with a price that stays once a day and at the end, as AWS has it. Read again, they are this history:
    days in which nothing changes would be holes, and the recording would end with its last change.
    """
    rows: list[Row] = []
    for market, steps in history.steps.items():
        ends = [*steps.times[1:].tolist(), history.end_s]
        for at_s, end_s, price in zip(steps.times.tolist(), ends, steps.prices.tolist(), strict=True):
            times = range(at_s, max(end_s, at_s + 1), DAY_S)
            rows += [(time_s, market.instance_type, market.zone, market.product, price) for time_s in times]
        rows.append((history.end_s, *rows[-1][1:]))
    return sorted(set(rows))


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write rows as CSV (compressed for .gz and .zst). Returns their number. Raises OSError.

    The file appears only when it is whole and on disk: an old one is never lost for one that a power cut empties.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for at_s, kind, zone, product, price in rows:
        writer.writerow((show_instant(at_s), kind, zone, product, show_usd(price)))
        count += 1
    data = out.getvalue().encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    elif path.suffix == ".zst":
        import zstandard

        data = zstandard.ZstdCompressor().compress(data)
    with whole_file(path) as partial, partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return count


def append_rows(path: Path, rows: Iterable[Row]) -> tuple[int, int]:
    """Add rows to an archive, without those that it has; returns (new rows, all rows now).

    Processes that add to one archive, or to archives of one folder, do so one after the other. Of a link the file that
    it leads to is the archive, and stays it.

    Raises HistoryError for an archive that cannot be read, OSError.
    """
    path = path.resolve()
    found = set(rows)  # a fetch takes minutes: before the others are held up
    with _alone_in(path.parent):
        there = list(read_rows(path)) if path.exists() else []
        new = sorted(found - set(there))
        if new or not path.exists():
            write_rows(path, sorted([*there, *new], key=lambda row: row[:4]))
    return len(new), len(there) + len(new)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which the kernel drops with the process. Waits for it; raises OSError."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
