"""A cloud that evicts each machine on its own, and whose calls fail as a test says; a job on it, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bidbrain.billing import Ending
from bidbrain.billing.per_second import MINIMUM_S
from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import Interval
from bidbrain.live.cloud import CloudError, EndedInstance, Instance, InstanceNotice, Order, Quotes
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan, TrainerReport
from bidbrain.live.journal import Opened, Record
from bidbrain.live.service import Service
from bidbrain.policy.base import Decision, MarketView, Offer
from bidbrain.setting import ON_DEMAND_ZONE, Engine, Listing, Reliable, Setting, Workload
from tests.bidbrain.live.makers import Memory

SMALL, LARGE = Market("c5.xlarge", "us-east-1a"), Market("m5.xlarge", "us-east-1a")
ON_DEMAND = 170_000  # of either type, and of the reliable one, whose machines have one vCPU each here
SPOT = 50_000
BEGIN_S = 1_000_000

Answers = Callable[[int, MarketView], Decision]


def idle(now_s: int, view: MarketView) -> Decision:
    """A policy that buys nothing."""
    return Decision((), "nothing to do", now_s + 300)


class Policy:
    """A policy of one function."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def decide(self, now_s: int, view: MarketView) -> Decision:
        return self._answers(now_s, view)


class LoneCloud:
    """The cloud. fails: an error for each call by its name, and for orders also by their zone."""

    together = False

    def __init__(self, now_s: Callable[[], int]) -> None:
        self._now_s = now_s
        self.fails: dict[str, CloudError] = {}
        self.calls: list[tuple[int, str]] = []
        self.running: dict[str, Instance] = {}
        self.bought: dict[str, tuple[Instance, ...]] = {}
        self.over: dict[str, EndedInstance] = {}
        self.open_notices: tuple[InstanceNotice, ...] = ()
        self.most: dict[str, int] = {}  # of an order's instances, by zone
        self.is_answer_lost = False  # of orders in the zone "on-demand": they are bought all the same
        self.buying: Callable[[], None] = lambda: None  # what happens while an order is placed

    def _call(self, name: str) -> None:
        self.calls.append((self._now_s(), name))
        if name in self.fails:
            raise self.fails[name]

    def count(self, name: str) -> int:
        """How often a call was made."""
        return sum(each == name for _, each in self.calls)

    def quotes(self, now_s: int) -> Quotes:
        self._call("quotes")
        offers = tuple(Offer(market, SPOT, SPOT, ON_DEMAND, 1, 1.0) for market in (SMALL, LARGE))
        return Quotes(offers, "pulse")

    def price(self, market: Market, at_s: int) -> int:
        self._call("price")
        return SPOT

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        self._call("acquire")
        self.buying()
        zone = order.market.zone
        if zone in self.fails and not self.is_answer_lost:
            raise self.fails[zone]
        if order.token not in self.bought:
            count = min(order.instances, self.most.get(zone, order.instances))
            new = tuple(
                Instance(f"{order.token}-{i}", order.token, order.market, self._now_s()) for i in range(count)
            )
            self.bought[order.token] = new
            self.running |= {each.instance_id: each for each in new}
        if zone in self.fails:
            raise self.fails[zone]
        return self.bought[order.token]

    def release(self, instance_ids: tuple[str, ...]) -> None:
        self._call("release")
        for each in instance_ids:
            self.end(each, Ending.TERMINATED)

    def end(self, instance_id: str, ending: Ending) -> None:
        """An instance ends now."""
        if self.running.pop(instance_id, None) is not None:
            self.over[instance_id] = EndedInstance(instance_id, self._now_s(), ending)

    def held(self) -> tuple[Instance, ...]:
        self._call("held")
        return tuple(self.running.values())

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        self._call("ended")
        return tuple(self.over[each] for each in instance_ids if each in self.over)

    def notices(self) -> tuple[InstanceNotice, ...]:
        self._call("notices")
        return self.open_notices

    def paid(self) -> float:
        """Micro-dollars by the second for everything that was ever bought, known to the job or not."""
        paid = 0.0
        for each in (each for order in self.bought.values() for each in order):
            end = self.over.get(each.instance_id)
            used_s = (self._now_s() if end is None else end.at_s) - each.launched_s
            paid += used_s / 3600 * (ON_DEMAND if each.market.zone == ON_DEMAND_ZONE else SPOT)
        return paid

    def zones(self) -> list[str]:
        """Of the machines that run."""
        return sorted(each.market.zone for each in self.running.values())


class Engine0:
    """A trainer that says what a test sets, and remembers what it was told."""

    def __init__(self) -> None:
        self.finished_s: int | None = None
        self.done_vcpu_s = 0.0
        self.drain_by_s: int | None = None
        self.is_drained = False
        self.warned: list[str] = []
        self.lost_ids: list[str] = []
        self.leaving: Callable[[], None] = lambda: None  # what happens while machines leave

    def report(self, now_s: int) -> TrainerReport:
        return TrainerReport(self.done_vcpu_s, self.finished_s, self.is_drained)

    def hold(self, now_s: int, reliable: tuple[Instance, ...], transient: tuple[Instance, ...]) -> None:
        pass

    def warn(self, now_s: int, notice: InstanceNotice) -> None:
        self.warned.append(notice.instance_id)

    def lost(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        self.lost_ids += instance_ids

    def leave(self, now_s: int, instance_ids: tuple[str, ...]) -> None:
        self.leaving()

    def drain(self, now_s: int, deadline_s: int) -> None:
        self.drain_by_s = deadline_s


def lone_setting(reliable: int = 1, deadline: float | None = None) -> Setting:
    """A job of four vCPUs for an hour, paid by the second; all machines have one vCPU."""
    listings = (Listing(SMALL, ON_DEMAND, 1), Listing(LARGE, ON_DEMAND, 1))
    history = History({each.market: Steps.from_rows([0], [1]) for each in listings}, 1 << 40)
    job = Workload(4, 1.0, 1.0, 1.0, deadline, Engine(120, 60))
    machines = Reliable("c5.xlarge", reliable, ON_DEMAND, 1)
    return Setting(job, listings, history, Interval(0, 1), machines, 4 * ON_DEMAND, rules="per_second")


class LoneJob:
    """A job on a cloud of its own, which a test moves on by `after`. It is its own clock."""

    trouble = ""

    def __init__(
        self,
        answers: Answers = idle,
        guards: Guards | None = None,
        reliable: int = 1,
        drain_s: int = 120,
        setting: Setting | None = None,
    ) -> None:
        self.at_s = BEGIN_S
        self.setting = lone_setting(reliable) if setting is None else setting
        self.cloud, self.engine, self.log = LoneCloud(self.now_s), Engine0(), Memory()
        what = ("job", "test", self.setting, Policy(answers), BEGIN_S, True)
        self.plan = JobPlan(*what, guards or Guards(), drain_s)
        self.service = self.restarted()
        self.put(Opened("job", "test", BEGIN_S, MINIMUM_S))

    def now_s(self) -> int:
        return self.at_s

    def wait(self, until_s: int, market: bool) -> None:
        pass

    def put(self, record: Record) -> None:
        """A record that is in the journal before the service steps."""
        self.log.append(record)
        self.service.state.apply(record)

    def restarted(self) -> Service:
        """A new service on the same journal, which is the job's from now on."""
        self.service = Service(self.plan, self.cloud, self.engine, self, self.log)
        return self.service

    def with_policy(self, answers: Answers) -> None:
        """Another policy from now on."""
        self.plan = replace(self.plan, policy=Policy(answers))
        self.restarted()

    def after(self, seconds: int, times: int = 1) -> None:
        """One step after so many seconds, so many times."""
        for _ in range(times):
            self.at_s += seconds
            self.service.step()

    def of(self, kind: type[Record]) -> list[Record]:
        """The journal's records of a kind."""
        return [record for record in self.log.records if isinstance(record, kind)]
