"""A market on EC2: machines join the Ray cluster of the head that this runs on, labelled with their instance ids.

This process imports the user's application, so it has no right to buy: it asks the head's buyer (`bidbrain.aws.buyer`).
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from agileml.config.market import Ec2MarketConfig
from agileml.market.drain_notices import DrainNotices
from agileml.market.joined import JoinedCluster
from agileml.market.nodes import JoinedNodes
from agileml.market.service import pause
from agileml.market.setup import LEAVE_S, MarketSetup, first_decision
from agileml.process.spec import RunSpec
from agileml.runs.progress import Screen
from bidbrain.aws.buyer.client import BuyerCloud, buyer_socket
from bidbrain.aws.buyer.messages import JobOpened, LeftBehind
from bidbrain.aws.objects import BucketObjects
from bidbrain.aws.stack.attach import risk_of
from bidbrain.live.cloud import Cloud, CloudError
from bidbrain.live.guards import Guards
from bidbrain.live.job import Timekeeper
from bidbrain.live.keeping import RiskKeeper
from bidbrain.money import show_usd
from bidbrain.setting import Setting


def _say_ended(machines: tuple[LeftBehind, ...]) -> None:
    if machines:
        named = ", ".join(f"{machine.instance_id} of {machine.job}" for machine in machines)
        print(f"proteus: ended machines that an earlier job left running: {named}", file=Screen())


def check_offers(setting: Setting, opened: JobOpened) -> None:
    """Raise CloudError where the stack may not buy what the config offers, or knows its machines by another size."""
    may = dict(zip(opened.markets, opened.vcpus, strict=True))
    since = "at the last `proteus aws up`"
    for market in (*setting.markets, setting.reliable.market):
        if market not in may:
            offered = ", ".join(sorted(str(each) for each in may))
            raise CloudError(
                f"market.types: found {market}, expected one of {offered}: "
                f"the stack buys what its config said {since}"
            )
        if (found := setting.vcpus_per_machine(market)) != may[market]:
            kind = market.instance_type
            raise CloudError(
                f"market.vcpus: found {found} for {kind}, expected {may[market]}, as the stack's config said {since}"
            )


def check_limits(guards: Guards, opened: JobOpened) -> None:
    """Raise CloudError for a job with higher limits than its stack's: it would be refused machines that it counts on,
    and at the stack's budget all of them would end at once, without a last checkpoint."""
    since = "as the stack's config said at the last `proteus aws up`: say it again with this config"
    if (
        guards.max_machines is not None
        and opened.machines is not None
        and guards.max_machines > opened.machines
    ):
        raise CloudError(
            f"machines.max: found {guards.max_machines}, expected at most {opened.machines}, {since}"
        )
    if guards.budget is None:
        return
    found = f"market.budget_usd: found {show_usd(guards.budget)} $, expected at most"
    if opened.micro_usd is not None and guards.budget > opened.micro_usd:
        raise CloudError(f"{found} {show_usd(opened.micro_usd)} $, {since}")
    if opened.left_micro_usd is not None and guards.budget > opened.left_micro_usd:
        raise CloudError(
            f"{found} {show_usd(opened.left_micro_usd)} $, which earlier jobs have left of market.stack_budget_usd: "
            "there all machines end at once"
        )


def open_market(
    socket: Path, market: Ec2MarketConfig, setup: MarketSetup
) -> tuple[BuyerCloud, BucketObjects]:
    """The stack's market for a job, through the buyer at `socket`, and what the stack's jobs know of its pools. What
    earlier jobs left running ends.

    Raises CloudError where the stack allows less than the job asks for, ConfigError for a first decision that fails.
    """
    cloud = BuyerCloud(socket, market.name, setup.plan.name, DrainNotices())
    try:
        check_offers(setup.plan.setting, cloud.opened)
        check_limits(setup.plan.guards, cloud.opened)
        risk = risk_of(market)
        first_decision(setup, cloud)
        _say_ended(cloud.end_others())
    except BaseException:
        cloud.close()
        raise
    return cloud, risk


class Ec2Backend(JoinedCluster):
    """The cluster behind `address`, and EC2 in the regions of the stack. Raises ClusterError: no cluster, no buyer, or
    no stack."""

    leave_s = LEAVE_S

    def __init__(self, setup: MarketSetup, spec: RunSpec) -> None:
        market = spec.config.market
        assert isinstance(market, Ec2MarketConfig)
        super().__init__(spec)
        self._setup = setup
        self.nodes = JoinedNodes()
        with self.attaching():
            self._cloud, self._risk = open_market(buyer_socket(), market, setup)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._cloud.close()

    def risk_keeper(self) -> RiskKeeper:
        """In the stack's bucket, beside that of the stack's other jobs."""
        return RiskKeeper(self._risk, self._setup.plan.name)

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        """EC2, and Unix time."""
        self.clock.sleep = lambda seconds: pause(stopping, seconds)
        return self._cloud, self.clock
