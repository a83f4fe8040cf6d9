"""Settings and histories that tests make for themselves."""

from __future__ import annotations

import gzip
from collections.abc import Sequence

import numpy as np

from bidbrain.history.availability import POOL_TYPE, TICK_S, Trace
from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import Interval
from bidbrain.setting import Bidding, Listing, Reliable, Setting, Workload

ON_DEMAND = {"c4.xlarge": 209_000, "c4.2xlarge": 419_000}
VCPUS = {"c4.xlarge": 4, "c4.2xlarge": 8}
TRAIN = Interval.parse("2016-03-01/2016-03-20")
EVALUATE = Interval.parse("2016-03-20/2016-04-05")
HOUR = 3600
TICK = 300


def make_setting(
    history: History,
    job: Workload | None = None,
    bidding: Bidding | None = None,
    rules: str = "hourly_2016",
    train: Interval = TRAIN,
    scale: int = 1,
) -> Setting:
    """All markets of `history`, on-demand prices of 2016 times `scale`, 3 reliable c4.xlarge."""
    listings = tuple(
        Listing(m, scale * ON_DEMAND[m.instance_type], VCPUS[m.instance_type]) for m in history.markets
    )
    reliable = Reliable("c4.xlarge", 12, scale * ON_DEMAND["c4.xlarge"], 4)
    return Setting(
        job or Workload(hours=4.0),
        listings,
        history,
        train,
        reliable,
        scale * ON_DEMAND["c4.xlarge"],
        bidding or Bidding(),
        rules,
    )


def history_of(rows: dict[str, Sequence[tuple[int, int]]], end_s: int) -> History:
    """{type@zone: ((time, micro-dollars), ...)}."""
    steps = {
        Market.parse(name): Steps.from_rows([t for t, _ in own], [p for _, p in own])
        for name, own in rows.items()
    }
    return History(steps, end_s)


def pool(name: str, counts: Sequence[int]) -> Trace:
    """A pool that has counts[i] nodes from i x 300 s on."""
    return Trace(Market(POOL_TYPE, name), TICK, np.array(counts, np.int64))


def made_trace(name: str, nodes: int, hours: float, up_h: float, down_h: float, seed: int) -> Trace:
    """A made pool: two states (up: all nodes or nearly all; down: few or none), exponential stays of these means."""
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    counts: list[int] = []
    up = rng.random() < up_h / (up_h + down_h)
    while len(counts) * TICK_S < hours * 3600:
        stay = max(1, round(rng.exponential(up_h if up else down_h) * 3600 / TICK_S))
        level = nodes - (rng.integers(0, nodes // 3 + 1) if rng.random() < 0.2 else 0) if up else 0
        if not up and rng.random() < 0.2:
            level = rng.integers(0, nodes // 3 + 1)
        counts += [int(level)] * stay
        up = not up
    return Trace(Market(POOL_TYPE, name), TICK_S, np.array(counts[: int(hours * 3600 / TICK_S)], np.int64))


def broken_gzip(data: bytes) -> bytes:
    """A packed file that begins well, and is no deflate stream."""
    packed = gzip.compress(data, mtime=0)
    return packed[:10] + b"\xff" * (len(packed) - 10)
