"""Recorded availability: how many nodes of a pool were live, sampled at a fixed tick. Two formats are read.

JSON: {"metadata": {"gap_seconds": 300}, "data": [16, 16, 8, ...]}. CSV: `ms,add|remove,node`, one event a row.
Instants count from the beginning of a trace (0).
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bidbrain.history.prices import NEVER_S, Ints, Market
from bidbrain.history.readers import HistoryError, load_json, open_text, reading

TICK_S = 300
POOL_TYPE = "node"
MOST_S = 20 * 365 * 86_400  # of a trace; an instant since 1970 is later


@dataclass(frozen=True, eq=False)
class Trace:
    """counts[i] nodes are live from i x tick_s on; price in micro-dollars per node hour."""

    market: Market
    tick_s: int
    counts: Ints
    price: int = 0

    @property
    def end_s(self) -> int:
        return len(self.counts) * self.tick_s

    @cached_property
    def _changes(self) -> list[int]:
        return ((np.flatnonzero(np.diff(self.counts)) + 1) * self.tick_s).tolist()

    @cached_property
    def _count_list(self) -> list[int]:
        return self.counts.tolist()

    def count_at(self, now_s: int) -> int:
        """Live nodes at an instant; after the end as at the end."""
        return self._count_list[min(now_s // self.tick_s, len(self._count_list) - 1)]

    def next_change_s(self, now_s: int) -> int:
        index = bisect_right(self._changes, now_s)
        return self._changes[index] if index < len(self._changes) else NEVER_S


def read_trace(path: Path | str) -> Trace:
    """One pool, named after its file; raises HistoryError with one sentence."""
    path = Path(path)
    market = Market(POOL_TYPE, path.name.split(".")[0])
    with reading(path):
        if not path.is_file():
            raise HistoryError(f"{path}: no such file")
        with open_text(path) as text:
            if ".json" in path.suffixes:
                return _from_json(path, market, load_json(path, text))
            return _from_events(path, market, list(csv.reader(text)))


def _from_json(path: Path, market: Market, document: object) -> Trace:
    data = document.get("data") if isinstance(document, dict) else None
    metadata = document.get("metadata") if isinstance(document, dict) else None
    tick = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not isinstance(data, list) or not data or not isinstance(tick, int | float) or not 0 < tick < NEVER_S:
        raise HistoryError(
            f"{path}: not an availability trace (expected metadata.gap_seconds, above 0, and data, a list of counts)"
        )
    if tick != int(tick):
        raise HistoryError(f"{path}: metadata.gap_seconds is {tick}, expected whole seconds")
    for number, count in enumerate(data):
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < NEVER_S:
            raise HistoryError(f"{path}: data[{number}] is {count!r}, expected a count of nodes")
    return Trace(market, int(tick), np.array(data, np.int64))


def _from_events(path: Path, market: Market, rows: Sequence[Sequence[str]]) -> Trace:
    live: set[str] = set()
    events: list[tuple[int, int]] = []
    for number, row in enumerate(rows, 1):
        where = f"{path} line {number}"
        if not row:
            continue
        try:
            ms, action, node = row
            at_s = int(ms) // 1000
        except ValueError:
            raise HistoryError(f"{where}: {','.join(row)[:60]!r} (expected ms,add or remove,node)") from None
        if action not in ("add", "remove") or (action == "remove" and node not in live):
            raise HistoryError(f"{where}: {action} {node!r} (expected add, or remove of a node that is live)")
        if not 0 <= at_s <= MOST_S:
            raise HistoryError(
                f"{where}: {ms} ms, expected milliseconds since the trace began, at most 20 years"
            )
        if events and at_s < events[-1][0]:
            raise HistoryError(f"{where}: time runs backwards ({ms} ms)")
        if action == "add":
            live.add(node)
        else:
            live.discard(node)
        events.append((at_s, len(live)))
    if not events:
        raise HistoryError(f"{path}: no events")
    ticks = np.arange(0, events[-1][0] + 1, TICK_S)
    index = np.searchsorted(np.array([at for at, _ in events]), ticks, side="right") - 1
    counts = [events[i][1] if i >= 0 else 0 for i in index.tolist()]
    return Trace(market, TICK_S, np.array(counts, np.int64))
