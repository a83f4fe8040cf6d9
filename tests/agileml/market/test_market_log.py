"""The market's events of a run that begins again: what an earlier process wrote is known, and not repeated."""

from __future__ import annotations

from pathlib import Path

from agileml.events.market import EstimatesChanged, InstancesBought
from agileml.events.run import Warned
from agileml.events.schema import RunEvent
from agileml.market.log import MarketLog, last_measured
from agileml.runs.event_log import EVENTS, EventLog
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Instance
from bidbrain.live.decide import Measurements
from bidbrain.live.journal import Answered, Opened, Ordered, Troubled

MARKET = Market("c5.xlarge", "us-east-1a")


class Written:
    """A log that keeps what is written."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def write(self, event: RunEvent, *, t_s: float | None = None) -> None:
        self.events.append(event)


def test_an_order_of_an_earlier_process_is_answered() -> None:
    written = Written()
    log = MarketLog(written)
    ordered = Ordered(10, 0, MARKET, 4, 1, 200_000, 10)
    log.recall([Opened("job", "elastic", 5), ordered, Troubled(10, ("prices are old",))])
    assert not written.events, "nothing is written twice"
    log.tell(Answered(20, 0, 70_000, (Instance("i-1", "job-0", MARKET, 20),)))
    log.tell(Troubled(30, ()))
    bought, over = written.events
    assert isinstance(bought, InstancesBought) and bought.instances == ("i-1",)
    assert over == Warned("market: no longer so: prices are old")


def test_the_log_says_what_was_measured_last(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS)
    log.write(Warned("nothing is measured yet"))
    assert last_measured(log.path) == Measurements()
    log.write(EstimatesChanged(10, None, None, None, {"c5.xlarge": 3.5}))
    log.write(EstimatesChanged(20, 0.8, 33.0, None, {"c5.xlarge": 3.25, "m5.xlarge": 4.0}))
    log.write(Warned("something else"))
    assert last_measured(log.path) == Measurements(0.8, 33.0, None, {"c5.xlarge": 3.25, "m5.xlarge": 4.0})
    log.close()
