"""Price history: for every market the steps of its price, and the holes in the recording.

A market is one machine type in one zone under one product. Its price holds from a change until the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bidbrain.history.locations import location_of
from bidbrain.instants import DAY_S, Interval, show_instant

Ints = npt.NDArray[np.int64]
NEVER_S = 1 << 60
# AWS repeats a price that stays once a day, up to a minute late: such a day is recorded.
HOLE_S = DAY_S + 3600
DEFAULT_PRODUCT = "Linux/UNIX"
ON_DEMAND_ZONE = "on-demand"


@dataclass(frozen=True, order=True)
class Market:
    """One market; prints as `type@zone`, with `/product` after it if that is not plain Linux."""

    instance_type: str
    zone: str
    product: str = DEFAULT_PRODUCT

    def __hash__(self) -> int:
        # Markets are the keys of most tables, and hashing three texts anew for each look-up is what it would cost.
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = hash((self.instance_type, self.zone, self.product))
        return found

    def __reduce__(self) -> tuple[type[Market], tuple[str, str, str]]:
        """Without the kept hash: the hashes of texts differ from process to process."""
        return Market, (self.instance_type, self.zone, self.product)

    @property
    def region(self) -> str:
        """The region that the zone's name holds; empty: none."""
        place = location_of(self.zone)
        return "" if place is None else place.region

    def __str__(self) -> str:
        tail = "" if self.product == DEFAULT_PRODUCT else f"/{self.product}"
        return f"{self.instance_type}@{self.zone}{tail}"

    @staticmethod
    def parse(text: str) -> Market:
        """The inverse of `str`; raises ValueError."""
        kind, found, rest = text.partition("@")
        zone, _, product = rest.partition("/")
        if not found or not kind or not zone:
            raise ValueError(f"{text!r} is not a market (expected type@zone)")
        return Market(kind, zone, product or DEFAULT_PRODUCT)


@dataclass(frozen=True, eq=False)
class Steps:
    """The price of one market: `prices[i]` micro-dollars/h from `times[i]` (s, increasing) to `times[i + 1]`."""

    times: Ints
    prices: Ints

    def __post_init__(self) -> None:
        assert len(self.times) == len(self.prices) > 0
        assert bool(np.all(np.diff(self.times) > 0)), "times must increase"

    @staticmethod
    def from_rows(times: Iterable[int], prices: Iterable[int]) -> Steps:
        """Steps from rows in the order of the file: sorted, of several rows in a second the last counts.

        Rows that repeat the price before them are no change and are dropped.
        """
        when = np.fromiter(times, np.int64)
        price = np.fromiter(prices, np.int64)
        order = np.argsort(when, kind="stable")
        when, price = when[order], price[order]
        last = np.append(when[1:] != when[:-1], True)
        when, price = when[last], price[last]
        changed = np.append(True, price[1:] != price[:-1])
        return Steps(when[changed], price[changed])

    def index_at(self, now_s: int) -> int:
        """Index of the step that holds at `now_s`; -1 before the first."""
        return int(np.searchsorted(self.times, now_s, side="right")) - 1

    def price_at(self, now_s: int) -> int | None:
        """Micro-dollars/h at `now_s`: the last change at or before it; None before the first."""
        index = self.index_at(now_s)
        return None if index < 0 else int(self.prices[index])

    def next_change_s(self, now_s: int) -> int:
        """The first change after `now_s`; NEVER_S if there is none."""
        index = self.index_at(now_s) + 1
        return int(self.times[index]) if index < len(self.times) else NEVER_S

    def eviction_s(self, grant_s: int, bid_micro_usd: int) -> int:
        """The first instant after `grant_s` with a price above the bid; NEVER_S if there is none."""
        first = self.index_at(grant_s) + 1
        above = np.flatnonzero(self.prices[first:] > bid_micro_usd)
        return int(self.times[first + above[0]]) if len(above) else NEVER_S

    def highest(self, start_s: int, end_s: int) -> int | None:
        """The highest price over [start_s, end_s], both ends included; None if no price is known by then."""
        last = self.index_at(end_s)
        first = max(0, self.index_at(start_s))
        return None if last < 0 else int(self.prices[first : last + 1].max())

    def seconds_by_step(self, window: Interval) -> Ints:
        """Seconds of `window` during which each step holds; int64, one per step."""
        ends = np.append(self.times[1:], NEVER_S)
        held = np.minimum(ends, window.end_s) - np.maximum(self.times, window.start_s)
        return np.maximum(held, 0)


@dataclass(frozen=True)
class History:
    """Markets with their steps. `holes`: times of over 25 h in which no market had a row.

    `end_s` is the last row's instant: nothing is known after it. `gone`: markets whose own rows end over 25 h before
    the recording does, and when; their last price is taken to hold. `gaps`: markets that alone have no row for over
    25 h, and the longest such time; the price before it is taken to hold.
    """

    steps: Mapping[Market, Steps]
    end_s: int
    holes: tuple[Interval, ...] = ()
    sources: tuple[str, ...] = field(default=(), compare=False)
    gone: Mapping[Market, int] = field(default_factory=dict)
    gaps: Mapping[Market, Interval] = field(default_factory=dict)

    @cached_property
    def start_s(self) -> int:
        return min(int(steps.times[0]) for steps in self.steps.values())

    @property
    def window(self) -> Interval:
        return Interval(self.start_s, self.end_s)

    @property
    def markets(self) -> tuple[Market, ...]:
        return tuple(sorted(self.steps))

    def select(self, markets: Iterable[Market]) -> History:
        """The same recording with only these markets; holes and end stay those of the recording."""
        steps = {market: self.steps[market] for market in markets}
        gone = {market: at_s for market, at_s in self.gone.items() if market in steps}
        gaps = {market: gap for market, gap in self.gaps.items() if market in steps}
        return History(steps, self.end_s, self.holes, self.sources, gone, gaps)

    @property
    def market_notes(self) -> tuple[str, ...]:
        """A sentence for each market that ends early, and one for each that has a gap of its own."""
        ends = (
            f"{market} has no row after {show_instant(at_s)}, {(self.end_s - at_s) / DAY_S:.1f} days before the "
            "recording ends: its last price is taken to hold"
            for market, at_s in self.gone.items()
        )
        gaps = (
            f"{market} has no row from {show_instant(gap.start_s)} to {show_instant(gap.end_s)}, "
            f"{gap.seconds / DAY_S:.1f} days, where others have: its price before is taken to hold"
            for market, gap in self.gaps.items()
        )
        return (*ends, *gaps)

    def usable(self, window: Interval) -> tuple[Interval, ...]:
        """`window` without the holes, cut to the recording."""
        return window.overlap(self.window).minus(self.holes)


def find_holes(times: Ints, hole_s: int = HOLE_S) -> tuple[Interval, ...]:
    """Stretches of more than `hole_s` between neighbouring `times` (s, sorted), the rows of all markets together."""
    gaps = np.flatnonzero(np.diff(times) > hole_s)
    return tuple(Interval(int(times[i]), int(times[i + 1])) for i in gaps)
