"""The data of a run's page, folded from its events one at a time; its size does not grow with the run's length."""

from __future__ import annotations

from collections import deque
from typing import Any

from agileml.events.market import MarketLeftOpen
from agileml.events.run import (
    MembershipChanged,
    PlanFinished,
    PlanFired,
    RunFailed,
    RunFinished,
    RunRestarted,
    RunStarted,
    RunStopped,
    UserCodeFailed,
)
from agileml.events.schema import Logged, RunEvent
from agileml.events.sums import Standing
from agileml.runs.report.curves import Curves
from agileml.runs.report.lanes import MachineLanes
from agileml.runs.report.market import sentence as market_sentence
from agileml.runs.report.market_view import MarketView
from agileml.runs.report.sentences import sentence
from agileml.runs.report.work_view import WorkView

MOST_LANES = 600
MOST_MARKS = 8  # of a lane
MOST_CHANGES = 600
MOST_NEWS = 40
MOST_ERRORS = 5
LINE_S = 5.0  # between two lines of progress


class PageView:
    """Takes events; `as_json` is what the page gets. `version` grows with every change."""

    def __init__(self, name: str, most_news: int = MOST_NEWS) -> None:
        self.name, self.state, self.version, self.t_s = name, "running", 0, 0.0
        self._now: dict[str, Any] = {}
        self._base: int | None = None  # the clock that it began from
        self._curves, self._work, self._market = Curves(), WorkView(), MarketView()
        self._lanes = MachineLanes(MOST_LANES)
        self._members: deque[tuple[float, int, int, int]] = deque(maxlen=MOST_CHANGES)
        self._restarts: deque[float] = deque(maxlen=MOST_CHANGES)
        self._plan: dict[int, list[float | None]] = {}  # by index: fired, finished
        self._errors: deque[str] = deque(maxlen=MOST_ERRORS)
        self._news: deque[tuple[float, str, str, str]] = deque(maxlen=most_news)
        self._told = 0

    def add(self, logged: Logged[RunEvent]) -> None:
        """Take the next event of the log."""
        t_s, event = logged.t_s, logged.event
        self.version += 1
        self.t_s = max(self.t_s, t_s)
        for part in (self._curves, self._work, self._market, self._lanes):
            part.add(t_s, event)
        match event:
            case RunStarted(config_name):
                self.name = config_name
            case Standing():
                self._now = dict(vars(event))
                if event.stage:  # before its first view, a run that resumes is not at clock 0 but nowhere
                    self._begin(event.clock)
            case MembershipChanged(stage=stage, reliable=reliable, transient=transient):
                self._begin(event.base)
                self._members.append((t_s, stage, reliable, transient))
            case PlanFired(index):
                self._plan.setdefault(index, [t_s, None])
            case PlanFinished(index):
                self._plan.setdefault(index, [None, None])[1] = t_s
            case RunRestarted():
                self._restarts.append(t_s)
                self.state = "running"
            case RunStopped():
                self.state = "stopped"
            case RunFailed():
                self.state = "failed"
            case RunFinished() if self.state == "running":
                self.state = "done"
        self._tell(t_s, event)

    def _begin(self, clock: int) -> None:
        """Remember the clock that the run began from, which it is told of first."""
        self._base = clock if self._base is None else self._base

    def _projected_usd(self) -> float | None:
        """The cost of the whole run if its clocks go on to cost as much as before. Those before a checkpoint that it
        began from are on another bill."""
        spent_usd, base = self._now.get("spent_usd"), self._base or 0
        done, all_ = self._now.get("clock", 0) - base, self._now.get("clocks", 0) - base
        return spent_usd * all_ / done if spent_usd is not None and done > 0 else None

    def standing(self, event: Standing, clocks_per_s: float | None) -> None:
        """Take a line of progress without a time of its own: the next one comes `LINE_S` later."""
        self.t_s += LINE_S
        self._curves.standing(self.t_s, event, clocks_per_s)
        if event.spent_usd is not None:
            self._market.spent(self.t_s, event.spent_usd)
        self.add(Logged(self.t_s, event))

    def say(self, text: str) -> None:
        """Show a sentence, once."""
        if not any(text == shown for _, _, shown, _ in self._news):
            self._add_news(self.t_s, "said", text)
            self.version += 1

    def end(self, state: str) -> None:
        """Show an end of the run that its log does not hold."""
        self.state = state
        self.version += 1

    def _tell(self, t_s: float, event: RunEvent) -> None:
        if (news := market_sentence(event)) is not None:
            self._add_news(t_s, news[1], news[2], self._market.time_of(news[0]))
        elif (text := sentence(event)) is not None:
            self._add_news(t_s, event.kind, text)
            if isinstance(event, UserCodeFailed | MarketLeftOpen | RunFailed):
                self._errors.append(text)

    def _add_news(self, t_s: float, what: str, text: str, market_time: str = "") -> None:
        self._told += 1
        self._news.append((t_s, what, text, market_time))

    def as_json(self) -> dict[str, Any]:
        """The page's data, ready for JSON."""
        lanes = self._lanes.all
        return {
            "name": self.name,
            "state": self.state,
            "version": self.version,
            "t_s": self.t_s,
            "now": self._now,
            "projected_usd": self._projected_usd(),
            **self._curves.as_json(),
            **self._work.as_json({lane.machine for lane in lanes if lane.to_s is not None}),
            **self._market.as_json(),
            "members": list(self._members),
            "restarts": list(self._restarts),
            "lanes": [
                [
                    lane.machine,
                    lane.tier,
                    lane.from_s,
                    lane.to_s,
                    lane.end,
                    lane.marks[-MOST_MARKS:],
                    lane.is_sudden,
                ]
                for lane in lanes
            ],
            "plan": [[index, *times_s] for index, times_s in sorted(self._plan.items())],
            "errors": list(self._errors),
            "news": list(self._news)[::-1],
            "told": self._told,
        }
