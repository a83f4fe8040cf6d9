"""Before a job on EC2 begins, over HTTP: the first decision, a purchase that is made once, what a killed job left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.cli import main
from bidbrain.aws.calls import client
from bidbrain.aws.ec2 import Ec2
from bidbrain.aws.site import Site
from bidbrain.aws.stack.attach import attach, left_behind
from bidbrain.billing import Ending
from bidbrain.live.cloud import Order
from tests.aws.front import Front, front_of
from tests.aws.ground import ZONES, bought_by, make_setting
from tests.aws.layer import REGION
from tests.aws.stack_rig import StackRig, plain_aws

pytestmark = pytest.mark.aws

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "aws.yaml"
HEAD = [{"Name": "tag:proteus:stack", "Values": ["shown"]}, {"Name": "tag:proteus:part", "Values": ["head"]}]
SHOWN = [
    "policy expected_cost: 0 vCPUs stay, 24 missing, c5.xlarge@us-east-1b first: 0.0600 $/h, 0.0% lost per hour, "
    "E 0.0235 $ per vCPU h",
    "  buy 1 x m5.xlarge on demand at 0.1920 $/h (reliable)",
    "  buy 24 vCPUs of c5.xlarge@us-east-1b, bid 0.1500 $/h (of 48; 24 vCPUs of spot are wanted)",
]


@pytest.fixture
def front(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Front]:
    """A stack with prices, and a working folder to leave nothing in."""
    stack = StackRig(moto_url, "shown")
    stack.up()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    with front_of(moto_url) as front:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", front.url)
        front.prices = {("c5.xlarge", "us-east-1a"): 0.07, ("c5.xlarge", "us-east-1b"): 0.06}
        yield front
    stack.down()


def proteus(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", str(CONFIG), "--set", "market.name=shown", *flags])
    return int(ended.value.code or 0)


def test_the_first_decision_is_shown_and_nothing_is_bought(
    front: Front,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert proteus("--dry-run") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == SHOWN
    # The reliable machine, and six of 4 vCPUs: 0.192 + 6 * 0.06.
    assert said[-2:] == ["first hour $0.5520 for 24 vCPUs: $0.02300 per vCPU hour of work", "budget $3.00"]

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    assert proteus() == 1, "as docs/guides/commands.md says of who declines"
    assert capsys.readouterr().out.splitlines()[:3] == SHOWN

    assert front.seen["fleets"] == 0
    assert not list((tmp_path / "work").iterdir())


def test_an_answer_that_is_lost_on_the_way_buys_nothing_twice(front: Front) -> None:
    """The same token over HTTP, and who ended a machine: what a job's own process is told beyond moto."""
    site = Site(name="shown", region=REGION, zones=ZONES, types=("c5.xlarge",))
    setting = make_setting()
    market = setting.listings[0].market
    cloud = Ec2(
        client("ec2", REGION, front.url), attach(site, "lost").place, setting, lambda: int(time.time())
    )
    front.lost = 1
    machines = cloud.acquire(Order("lost-1", market, 2, 1, setting.listings[0].on_demand))
    assert front.seen == {"fleets": 1, "answer lost": 1, "same token": 1}
    assert sorted(cloud.held(), key=str) == sorted(machines, key=str) and len(machines) == 2
    # EC2 refuses the token of an order in other words: what the order was sold is found by its tag.
    again = cloud.acquire(Order("lost-1", market, 3, 1, setting.listings[0].on_demand))
    assert sorted(again, key=str) == sorted(machines, key=str) == sorted(cloud.held(), key=str)

    taken, given_back = (machine.instance_id for machine in machines)
    front.evict(taken)
    cloud.release((given_back,))
    fates = {fate.instance_id: fate.ending for fate in cloud.ended((taken, given_back))}
    assert fates == {taken: Ending.EVICTED, given_back: Ending.TERMINATED}


def test_machines_of_a_killed_job_are_found_by_the_next_one_on_the_same_head(
    front: Front, moto_url: str
) -> None:
    """Where the head is somebody else's address, another job may drive them."""
    aws = plain_aws(moto_url)
    site = Site(name="shown", region=REGION, zones=ZONES, types=("c5.xlarge",))
    gone, mine = bought_by("gone", site, aws, machines=2), bought_by("mine", site, aws)
    found = aws.client("ec2").describe_instances(Filters=HEAD)["Reservations"]
    (head,) = (
        each
        for reservation in found
        for each in reservation["Instances"]
        if each["State"]["Name"] == "running"
    )
    front.move(head["InstanceId"], "10.0.0.5")
    attached = attach(site, "mine", aws)
    assert [machine.machine_id for machine in left_behind(attached, "shown", "10.0.0.5")] == sorted(gone)
    assert not left_behind(attached, "shown", "10.0.0.6")
    assert not left_behind(attached, "show", "10.0.0.5"), "another stack, though its name begins alike"
    aws.client("ec2").terminate_instances(InstanceIds=[*gone, *mine])
    assert not left_behind(attached, "shown", "10.0.0.5")
