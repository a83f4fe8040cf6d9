"""The data of the live page, folded from a run's events one at a time; its size does not grow with the run's length."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from agileml.events.market import Billed, MarketOpened
from agileml.events.run import (
    BytesSent,
    ClockDone,
    MembershipChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    WorkDone,
)
from agileml.events.schema import Logged, RunEvent
from agileml.events.sums import ClocksDone, Standing
from agileml.runs.lanes import MachineLanes
from agileml.runs.live.shares import MarketPrices, WorkShares
from agileml.runs.progress import Rate
from agileml.runs.report.market import sentence as market_sentence
from agileml.runs.report.page import sentence

MOST_POINTS = 600
MOST_LANES = 600
MOST_NEWS = 40
MOST_MARKETS = 40
HOUR_S = 3600.0
LINE_S = 5.0  # between two lines of progress


class Series:
    """Points in the order of time. Beyond twice `MOST_POINTS` every second one goes, but never the newest."""

    def __init__(self) -> None:
        self._points: list[tuple[float, ...]] = []
        self._step, self._skipped = 1, 0
        self._newest: tuple[float, ...] | None = None

    def add(self, *point: float) -> None:
        """Add (t_s, value, ...); points that are not finite are left out."""
        if not all(map(math.isfinite, point)):
            return
        self._newest = point
        self._skipped += 1
        if self._skipped >= self._step:
            self._skipped = 0
            self._points.append(point)
        if len(self._points) > 2 * MOST_POINTS:
            self._points = self._points[::2]
            self._step *= 2

    def points(self) -> list[tuple[float, ...]]:
        """The points that are kept."""
        if self._newest is None or (self._points and self._points[-1] == self._newest):
            return list(self._points)
        return [*self._points, self._newest]


class PageView:
    """Takes events; `as_json` is what the page gets. `version` grows with every change."""

    def __init__(self, name: str) -> None:
        self.name, self.state, self.version, self.t_s = name, "running", 0, 0.0
        self._now: dict[str, Any] = {}
        self._loss, self._speed, self._items, self._spend = Series(), Series(), Series(), Series()
        self._rate = Rate()
        self._told_speed: float | None = None
        self._lanes = MachineLanes(MOST_LANES)
        self._stages: deque[tuple[float, int]] = deque(maxlen=MOST_POINTS)
        self._news: deque[tuple[float, str, str]] = deque(maxlen=MOST_NEWS)
        self._bytes: dict[str, int] = {}
        self._shares, self._waiting, self._prices = WorkShares(), Series(), MarketPrices()
        self._market: tuple[float, MarketOpened] | None = None

    def add(self, logged: Logged[RunEvent]) -> None:
        """Take the next event of the log."""
        t_s, event = logged.t_s, logged.event
        self.version += 1
        self.t_s = max(self.t_s, t_s)
        self._shares.add(event)
        self._prices.add(event)
        match event:
            case RunStarted(config_name):
                self.name = config_name
            case Standing():
                self._now = dict(vars(event))
            case ClockDone() | ClocksDone():
                self._clock(t_s, event)
            case MembershipChanged(stage=stage):
                if not self._stages or self._stages[-1][1] != stage:
                    self._stages.append((t_s, stage))
            case BytesSent(by_kind):
                self._bytes = dict(by_kind)
            case WorkDone() if self._shares.waiting is not None:
                self._waiting.add(t_s, self._shares.waiting)
            case MarketOpened():
                self._market = t_s, event
            case Billed(usd=usd):
                self._spend.add(t_s, usd, self._on_demand_usd(t_s))
            case RunStopped():
                self.state = "stopped"
            case RunFailed():
                self.state = "failed"
            case RunFinished() if self.state == "running":
                self.state = "done"
            case _:
                self._lanes.add(t_s, event)
        self._tell(t_s, event)

    def standing(self, event: Standing, clocks_per_s: float | None) -> None:
        """Take a line of progress without a time of its own: the next one comes `LINE_S` later."""
        self.t_s += LINE_S
        if event.loss is not None:
            self._loss.add(self.t_s, event.loss)
        if clocks_per_s is not None:
            self._speed.add(self.t_s, clocks_per_s)
        if event.spent_usd is not None:
            self._spend.add(self.t_s, event.spent_usd)
        self._told_speed = clocks_per_s
        self.add(Logged(self.t_s, event))

    def say(self, text: str) -> None:
        """Show a sentence, once."""
        if not any(text == told for _, _, told in self._news):
            self._news.append((self.t_s, "said", text))
            self.version += 1

    def end(self, state: str) -> None:
        """Show an end of the run that its log does not hold."""
        self.state = state
        self.version += 1

    def _clock(self, t_s: float, event: ClockDone | ClocksDone) -> None:
        self._rate.add(t_s, event.clock)
        self._loss.add(t_s, event.loss)
        if (speed := self._rate.clocks_per_s) is not None:
            self._speed.add(t_s, speed)
            count = event.clock - event.first + 1 if isinstance(event, ClocksDone) else 1
            self._items.add(t_s, speed * event.examples / count)

    def _on_demand_usd(self, t_s: float) -> float:
        """Dollars that on-demand machines of the job's size would have cost by now; NaN without a market."""
        if self._market is None:
            return math.nan
        opened_s, market = self._market
        return (t_s - opened_s) * market.speed / HOUR_S * market.on_demand_usd_per_h

    def _tell(self, t_s: float, event: RunEvent) -> None:
        told = market_sentence(event)
        if told is not None:
            self._news.append((t_s, told[1], told[2]))
        elif (text := sentence(event)) is not None:
            self._news.append((t_s, event.kind, text))

    def as_json(self) -> dict[str, Any]:
        """The page's data, ready for JSON."""
        return {
            "name": self.name,
            "state": self.state,
            "version": self.version,
            "t_s": self.t_s,
            "now": self._now,
            "clocks_per_s": self._rate.clocks_per_s or self._told_speed,
            "loss": self._loss.points(),
            "speed": self._speed.points(),
            "items": self._items.points(),
            "spend": self._spend.points(),
            "stages": list(self._stages),
            "lanes": [
                [lane.machine, lane.tier, lane.from_s, lane.to_s, lane.end, lane.marks[-8:]]
                for lane in self._lanes.all
            ],
            "bytes": self._bytes,
            "waiting": self._waiting.points(),
            "work": self._shares.by_machine(),
            "market": self._prices.rows(MOST_MARKETS),
            "news": list(self._news)[::-1],
        }
