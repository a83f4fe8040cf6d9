"""A job on EC2 by moto, with a clock that jumps and an engine that is a model."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bidbrain.aws.clients import Clients
from bidbrain.aws.ec2 import Ec2, NoticeQueue, Place
from bidbrain.aws.regions import Ec2Regions
from bidbrain.aws.site import Site
from bidbrain.aws.stack.attach import attach
from bidbrain.history.prices import History, Market, Steps
from bidbrain.instants import Interval
from bidbrain.live.cloud import Cloud, Order
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan, Log
from bidbrain.live.journal import Closing
from bidbrain.live.service import Service
from bidbrain.policy.today import Elastic
from bidbrain.setting import Engine, Listing, Reliable, Setting, Workload
from tests.aws.layer import Ec2Layer
from tests.bidbrain.live.makers import ModelTrainer

USD = 1_000_000
TYPES = {"c5.xlarge": 170_000, "m5.xlarge": 192_000}
ZONES = ("us-east-1a", "us-east-1b")
POLL_S = 120


def make_setting(nodes: int = 6, hours: float = 0.7, zones: Sequence[str] = ZONES) -> Setting:
    """Nodes stand for vCPUs: all types are worth one node."""
    listings = tuple(Listing(Market(kind, zone), price, 1) for kind, price in TYPES.items() for zone in zones)
    job = Workload(nodes, hours, 1.0, 1.0, None, Engine(120, 60))
    never = Steps.from_rows([0], [1])
    history = History({each.market: never for each in listings}, 1 << 40)
    reliable = Reliable("c5.xlarge", 2, TYPES["c5.xlarge"], 1)
    return Setting(job, listings, history, Interval(0, 1), reliable, 680_000, rules="per_second")


def bought_by(job: str, site: Site, aws: Clients, machines: int = 1) -> list[str]:
    """Spot machines of a job of a stack, and nobody who drives it."""
    setting, attached = make_setting(), attach(site, job, aws)
    listing = setting.listings[0]
    cloud = Ec2(attached.ec2, attached.place, setting, lambda: int(time.time()))
    order = Order(f"{job}-1", listing.market, machines, 1, listing.on_demand)
    return [machine.instance_id for machine in cloud.acquire(order)]


class AwsGround:
    """EC2, engine and clock: what goes on while services come and go. `events`: market time -> what happens then."""

    trouble = ""

    def __init__(
        self,
        layer: Ec2Layer,
        job: str,
        queue: NoticeQueue | None = None,
        place: Place | None = None,
        zones: Sequence[str] = ZONES,
        **size: float,
    ) -> None:
        self.layer, self.job = layer, job
        self.setting = make_setting(zones=zones, **size)  # type: ignore[arg-type]
        # moto launches machines by the wall clock, and that must not come after the ground's own time.
        self.start_s = self.at_s = int(time.time()) + 600
        for number, listing in enumerate(self.setting.listings):
            layer.prices[(listing.market.instance_type, listing.market.zone)] = 0.05 + 0.005 * number
        if place is None:
            place = Place(job, *layer.template(), layer.subnets, {"proteus:owner": "bidbrain"})
        self._what = (layer, place, self.setting, self.now_s, queue)
        self.cloud = self.new_cloud()
        self.engine = ModelTrainer(self.setting, self.start_s)
        self.service: Service | None = None
        self.events: dict[int, object] = {}

    def new_cloud(self) -> Ec2 | Ec2Regions:
        """As a new process sees EC2: it remembers nothing."""
        return Ec2(*self._what)

    def now_s(self) -> int:
        return self.at_s

    def wait(self, until_s: int, market: bool) -> None:
        assert self.service is not None
        account = self.service.state.account
        workers = [a for a in account.open if a.number >= 0 and a.phase.value != "requested"]
        due = [at_s for at_s in self.events if at_s > self.at_s]
        then_s = max(self.at_s + 1, min([until_s, self.at_s + POLL_S, *due]))
        done_s = self.engine.progress.advance(self.at_s, then_s, workers)
        self.engine.done_s = done_s
        self.at_s = then_s if done_s is None else done_s
        if callable(event := self.events.pop(self.at_s, None)):
            event()

    def play(self, log: Log, cloud: Cloud | None = None, guards: Guards | None = None) -> Closing:
        policy = Elastic(self.setting, self.start_s)
        plan = JobPlan(self.job, "elastic", self.setting, policy, self.start_s, True, guards or Guards())
        self.service = Service(plan, cloud or self.cloud, self.engine, self, log)
        return self.service.run()
