"""Readers of price history: CSV (plain, .gz, .zst) and the JSON of `aws ec2 describe-spot-price-history`.

Every mistake in a file raises a `HistoryError`, one sentence that names file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bidbrain.history.prices import HOLE_S, History, Market, Steps, find_holes
from bidbrain.instants import LAST_S, Interval, parse_instant
from bidbrain.money import micro_usd

COLUMNS = ("timestamp", "instance_type", "availability_zone", "product", "price")
SUFFIXES = (".csv", ".csv.gz", ".csv.zst", ".json", ".json.gz", ".json.zst")
Row = tuple[int, str, str, str, int]
CHUNK_BYTES = 65_536  # of a packed file


class HistoryError(ValueError):
    """A file is no price history; the message is one sentence."""


def open_text(path: Path) -> io.TextIOBase:
    """Text of a plain, .gz or .zst file: UTF-8, also with the mark of it that Excel writes first."""
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    if path.suffix == ".zst":
        return io.TextIOWrapper(io.BufferedReader(_Zst(path)), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


class _Zst(io.RawIOBase):
    """The bytes of a .zst file. One that is cut off ends in EOFError: zstandard's own reader takes it for whole."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None  # that is being read; None between two
        self._packed, self._plain = b"", memoryview(b"")
        self._file = path.open("rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._plain:
            self._packed = self._packed or self._file.read(CHUNK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the file ends in the middle of its compressed data")
                return 0
            self._frame = self._frame or self._new()
            self._plain = memoryview(self._frame.decompress(self._packed))
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        part, self._plain = self._plain[: len(buffer)], self._plain[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a file that is broken, packed badly or not to be read raises into a HistoryError."""
    try:
        yield
    except UnicodeDecodeError:
        raise HistoryError(f"{path}: not a text file (expected CSV or JSON in UTF-8)") from None
    except OSError as error:
        raise HistoryError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (EOFError, csv.Error, zlib.error) as error:
        raise HistoryError(f"{path}: cannot be read ({error})") from None
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise HistoryError(f"{path}: cannot be read ({error})") from None
        raise


def load_json(path: Path, text: io.TextIOBase) -> Any:
    """The values of a JSON text. Raises HistoryError."""
    written = text.read()
    try:
        return json.loads(written)
    except json.JSONDecodeError as error:
        raise HistoryError(f"{path} line {error.lineno}: not JSON ({error.msg})") from None
    except (RecursionError, ValueError) as error:  # nested too deeply, a number of thousands of digits
        raise HistoryError(f"{path}: JSON that cannot be used ({error})") from None


def history_files(paths: Iterable[Path | str]) -> list[Path]:
    """The files behind files and folders (a folder: its price files, sorted by name)."""
    found: list[Path] = []
    for path in map(Path, paths):
        with reading(path):
            found += _files_of(path)
    return found


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        if inside := sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES)):
            return inside
        raise HistoryError(f"{path}: a folder without price files (*.csv, *.json, also .gz or .zst)")
    if not path.is_file():
        raise HistoryError(f"{path}: no such file or folder")
    return [path]


def read_history(paths: Path | str | Iterable[Path | str]) -> History:
    """One history of all files and folders, or of a single one; raises HistoryError."""
    paths = [paths] if isinstance(paths, Path | str) else paths
    times: dict[Market, list[int]] = defaultdict(list)
    prices: dict[Market, list[int]] = defaultdict(list)
    files = history_files(paths)
    if not files:
        raise HistoryError("no file of prices is named, expected at least one")
    for file in files:
        rows = 0
        known: dict[tuple[str, str, str], Market] = {}
        for at_s, kind, zone, product, price in read_rows(file):
            market = known.setdefault((kind, zone, product), Market(kind, zone, product))
            times[market].append(at_s)
            prices[market].append(price)
            rows += 1
        if not rows:
            raise HistoryError(f"{file}: no rows of prices")
    # Of all files together: what one lacks another may have, and what both lack is a hole.
    stamps = np.unique(np.concatenate([np.array(own, np.int64) for own in times.values()]))
    holes = find_holes(stamps)
    steps = {market: Steps.from_rows(times[market], prices[market]) for market in sorted(times)}
    end_s = int(stamps[-1])
    last_s = {market: max(times[market]) for market in steps}
    gone = {market: at_s for market, at_s in last_s.items() if end_s - at_s > HOLE_S}
    own = {market: find_holes(np.unique(np.array(times[market], np.int64))) for market in steps}
    gaps = {market: gap for market in steps if (gap := _longest_gap(own[market], holes)) is not None}
    return History(steps, end_s, holes, tuple(str(file) for file in files), gone, gaps)


def _longest_gap(gaps: Sequence[Interval], holes: tuple[Interval, ...]) -> Interval | None:
    """The longest gap of a market in which others have rows for more than a hole; None: it has none."""
    alone = [gap for gap in gaps if sum(piece.seconds for piece in gap.minus(holes)) > HOLE_S]
    return max(alone, key=lambda gap: gap.seconds, default=None)


def read_rows(path: Path) -> Iterator[Row]:
    """(seconds, type, zone, product, micro-dollars/h) for every row of one file, in its order."""
    is_json = ".json" in path.suffixes
    with reading(path), open_text(path) as text:
        yield from _json_rows(path, text) if is_json else _csv_rows(path, text)


def _csv_rows(path: Path, text: io.TextIOBase) -> Iterator[Row]:
    rows = csv.reader(text)
    head = next(rows, None)
    if head is None:
        raise HistoryError(f"{path}: empty (expected the header {','.join(COLUMNS)})")
    if tuple(name.strip() for name in head) != COLUMNS:
        raise HistoryError(
            f"{path} line 1: not a price history: the header is {','.join(head)[:80]!r}, expected {','.join(COLUMNS)}"
        )
    stamps: dict[str, int] = {}
    costs: dict[str, int] = {}
    for row in rows:
        try:
            stamp, kind, zone, product, price = row
        except ValueError:
            if not row:
                continue
            raise HistoryError(
                f"{path} line {rows.line_num}: {len(row)} columns, expected {len(COLUMNS)} ({','.join(COLUMNS)})"
            ) from None
        if stamp not in stamps:
            stamps[stamp] = _seconds(stamp, f"{path} line {rows.line_num}")
        if price not in costs:
            costs[price] = _price(price, f"{path} line {rows.line_num}")
        yield stamps[stamp], *_names(kind, zone, product, f"{path} line {rows.line_num}"), costs[price]


def _json_rows(path: Path, text: io.TextIOBase) -> Iterator[Row]:
    document = load_json(path, text)
    entries = document.get("SpotPriceHistory") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise HistoryError(f"{path}: not a price history: expected the key 'SpotPriceHistory' with a list")
    for number, entry in enumerate(entries, 1):
        where = f"{path} entry {number}"
        if not isinstance(entry, dict):
            raise HistoryError(f"{where}: expected an object, found {type(entry).__name__}")
        try:
            stamp, price = entry["Timestamp"], entry["SpotPrice"]
            kind, zone = entry["InstanceType"], entry["AvailabilityZone"]
            product = entry["ProductDescription"]
        except KeyError as missing:
            raise HistoryError(f"{where}: the key {missing} is missing") from None
        # The command writes ISO 8601 or, in version 1, seconds since 1970.
        at_s = _since_1970(stamp, where) if isinstance(stamp, int | float) else _seconds(str(stamp), where)
        yield at_s, *_names(str(kind), str(zone), str(product), where), _price(str(price), where)


def _names(kind: str, zone: str, product: str, where: str) -> tuple[str, str, str]:
    """Type, zone and product without the spaces that other tools write behind commas."""
    kind, zone, product = kind.strip(), zone.strip(), product.strip()
    if not kind or not zone:
        raise HistoryError(f"{where}: instance type or zone is empty")
    if not product:
        raise HistoryError(f"{where}: the product is empty (expected one such as Linux/UNIX)")
    return kind, zone, product


def _seconds(stamp: str, where: str) -> int:
    try:
        return parse_instant(stamp)
    except ValueError:
        raise HistoryError(f"{where}: {stamp!r} is not a timestamp (expected 2016-02-25T10:38:07Z)") from None


def _since_1970(stamp: float, where: str) -> int:
    if not 0 <= stamp <= LAST_S:
        raise HistoryError(f"{where}: {stamp} is not a timestamp (expected seconds since 1970)")
    return int(stamp)


def _price(text: str, where: str) -> int:
    try:
        price = micro_usd(text)
    except ValueError as error:
        raise HistoryError(f"{where}: the price {error}") from None
    if price <= 0:
        raise HistoryError(f"{where}: the price {text} is not positive")
    return price
