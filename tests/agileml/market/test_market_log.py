"""The market's events of a run that begins again: what an earlier process wrote is known, and not repeated."""

from __future__ import annotations

from agileml.events.market import InstancesBought
from agileml.events.run import Warned
from agileml.events.schema import RunEvent
from agileml.market.log import MarketLog
from bidbrain.history.prices import Market
from bidbrain.live.cloud import Instance
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
