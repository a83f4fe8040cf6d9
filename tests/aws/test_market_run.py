"""A run on EC2 by moto: real controller, machines as threads, instances for nodes, an interruption, an eviction."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.cluster.ray_cluster import TieredNode
from agileml.config.job import from_values
from agileml.config.market import Ec2MarketConfig
from agileml.config.text import ConfigError
from agileml.events.market import AllocationEnded, InstanceNoticed, InstancesBought
from agileml.events.run import MembershipChanged
from agileml.events.schema import Log, events_of
from agileml.market.nodes import tier_of
from agileml.market.setup import set_up
from bidbrain.aws.ec2 import Ec2, Place
from bidbrain.aws.notices import SqsNotices
from bidbrain.live.cloud import Cloud, Instance
from bidbrain.live.job import EXIT_FINISHED, Timekeeper
from bidbrain.live.journal import Opened
from bidbrain.live.unix_clock import UnixClock
from tests.agileml.market.market_rig import HELD, NODE_IP, InstantNodes, MarketRig, reference
from tests.aws.layer import Ec2Layer
from tests.aws.stack_rig import plain_aws

pytestmark = pytest.mark.aws
HOLD_AT = 40  # the clock at which the run waits for what is to happen to its machines


JOB: dict[str, Any] = {
    "application": HELD,
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 60,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "max": 5},
    "stage_thresholds": [1, 2],
    "address": "auto",
    "checkpoint": {"path": "replaced", "every_s": 60},
    "market": {
        "kind": "ec2",
        "region": "us-east-1",
        "zones": ["us-east-1a", "us-east-1b"],
        "types": ["c5.xlarge"],
        "reliable_type": "m5.xlarge",
        "job_vcpus": 12,
        "job_hours": 0.1,
        "budget_usd": 5.0,
    },
}


class Instances(InstantNodes):
    """A node is there as long as its instance runs; the run's process on it ends with it."""

    def __init__(self, layer: Ec2Layer) -> None:
        super().__init__(0)
        self._layer = layer

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        alive = self.alive()
        for instance_id in wanted:
            if instance_id in alive and instance_id not in self._there:
                self.start(wanted[instance_id])
        for instance_id in set(self._there) - alive:
            self.kill(instance_id)
        return {
            name: TieredNode(name, NODE_IP, tier_of(wanted[name]), wanted[name].token)
            for name in wanted
            if name in alive
        }

    def alive(self) -> set[str]:
        pages = self._layer.client.describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )
        return {each["InstanceId"] for r in pages["Reservations"] for each in r["Instances"]}


class MotoGround:
    """EC2 with a clock that looks more often."""

    warm = 0
    leave_s = 5.0

    def __init__(self, layer: Ec2Layer, rig: MarketRig, queue: SqsNotices) -> None:
        plan = rig.setup.plan
        place = Place(plan.name, *layer.template(), layer.subnets, {})
        self.nodes = Instances(layer)
        self._cloud = Ec2(layer, place, plan.setting, lambda: int(time.time()), queue)

    def __enter__(self) -> MotoGround:
        return self

    def __exit__(self, *what: object) -> None:
        self.nodes.present({}, 0)
        assert not self.nodes.processes, "every machine was given back"

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return {}

    def check(self) -> None:
        pass  # there is no head

    def risk_keeper(self) -> None:
        return None

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        clock = UnixClock()
        clock.sleep = lambda seconds: stopping.wait(min(0.2, seconds))
        return self._cloud, clock


def test_a_job_lives_through_an_interruption_and_an_eviction(
    ec2: Ec2Layer, moto_url: str, tmp_path: Path
) -> None:
    """One machine is announced and taken, one taken without a word; others are bought; at the end nothing is left."""
    values = {**JOB, "checkpoint": {"path": str(tmp_path / "checkpoints"), "every_s": 60}}
    for zone in ("us-east-1a", "us-east-1b"):
        ec2.prices[("c5.xlarge", zone)] = 0.05
    sqs = plain_aws(moto_url).client("sqs")
    queue_url = sqs.create_queue(QueueName="market-run")["QueueUrl"]
    rig = MarketRig(
        values, tmp_path, backend=lambda rig: MotoGround(ec2, rig, SqsNotices(sqs, queue_url)), unit_s=0.01
    )
    done: list[str] = []

    def meddle(log: Log) -> None:
        """A warning for the first machine; once the run has heard of it, its end and that of another one."""
        spot = [m["InstanceId"] for m in ec2.alive(rig.setup.plan.name) if m["InstanceType"] == "c5.xlarge"]
        if not done and max((view.transient for view in events_of(log, MembershipChanged)), default=0) >= 3:
            done.extend(spot[:2])
            detail = {"instance-id": done[0], "instance-action": "terminate"}
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            event = {"detail-type": "EC2 Spot Instance Interruption Warning", "time": now, "detail": detail}
            sqs.send_message(QueueUrl=queue_url, MessageBody=json.dumps(event))
        elif done and events_of(log, InstanceNoticed) and set(done) <= set(spot):
            for machine in done:
                ec2.evict(machine)

    def over(log: Log) -> bool:
        """Whether both evictions are known, and others were bought."""
        meddle(log)
        ended = [event for event in events_of(log, AllocationEnded) if event.ending == "evicted"]
        bought = [machine for event in events_of(log, InstancesBought) for machine in event.instances]
        return len(ended) >= 2 and len(bought) >= 1 + 3 + 2

    rig.hold(HOLD_AT, over)
    ran = rig.run()
    assert len(done) == 2
    assert (ran.settlement.closing.code, ran.settlement.closing.finished) == (EXIT_FINISHED, True)
    assert ran.sha256 == reference(rig.config)
    assert ran.settlement.bill.evictions == 2
    assert ran.settlement.bill.standard is None, "there are no recorded prices to simulate on"
    bought = [machine for event in ran.of(InstancesBought) for machine in event.instances]
    assert len(bought) >= 1 + 3 + 2, "one reliable, three, and two instead of those that went"
    assert [event.instance for event in ran.of(InstanceNoticed)] == done[:1]
    assert not ec2.alive(rig.setup.plan.name)


def test_names_of_jobs_are_never_used_twice() -> None:
    """EC2 answers a token that it has seen with the machines of then."""
    config = from_values(JOB)
    assert isinstance(config.market, Ec2MarketConfig)
    first, second = (set_up(config, "my job", run, 1_800_000_000).plan.name for run in ("a1", "b2"))
    assert (first, second) == ("my-job-a1", "my-job-b2")


def test_a_run_that_begins_again_is_the_same_job() -> None:
    """By its name the buyer knows its machines; its deadline counts from the first start."""
    before = Opened("my-job-a1", "expected_cost", 1_800_000_000)
    plan = set_up(from_values(JOB), "my job", "b2", 1_800_000_600, before).plan
    assert (plan.name, plan.start_s) == ("my-job-a1", 1_800_000_000)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget_usd": None}, "market.budget_usd: missing, expected the most that this job may cost"),
        ({"types": ["c5.xlarg"]}, "no on-demand price is known for the machine type 'c5.xlarg'"),
        ({"policy": "proteus"}, "market.policy: found proteus, which learns from a history of bids"),
    ],
)
def test_what_cannot_be_on_ec2_is_said(change: dict[str, Any], sentence: str) -> None:
    market = {key: value for key, value in {**JOB["market"], **change}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        set_up(from_values({**JOB, "market": market}), "job", "run", 1_800_000_000)
    assert sentence in str(caught.value)


def test_a_market_on_ec2_wants_a_cluster() -> None:
    with pytest.raises(
        ConfigError, match="address: missing, expected the cluster that machines from EC2 join"
    ):
        from_values({key: value for key, value in JOB.items() if key != "address"})
