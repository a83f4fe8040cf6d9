"""The buyer of a stack in two regions that `up` made: it buys, looks and ends in both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bidbrain.aws.buyer.buyer import Buyer, BuyerPlace
from bidbrain.aws.buyer.messages import (
    AskHeld,
    AskPurchase,
    AskQuotes,
    EndOthers,
    InstancesAre,
    OpenJob,
    OthersEnded,
    QuotesAre,
)
from bidbrain.aws.calls import ATTEMPTS
from bidbrain.aws.ec2 import UNSEEN_S
from bidbrain.aws.regions import SILENT_S
from bidbrain.history.prices import Market
from bidbrain.live.cloud import CredentialsError, Order, RefusedError, UnknownOutcomeError
from bidbrain.live.unix_clock import UnixClock
from tests.aws.layer import ENVIRONMENT, IMAGE, Ec2Layer
from tests.aws.stack_rig import OTHER_REGIONS, StackRig, plain_aws

pytestmark = pytest.mark.aws

WEST = "us-west-2"
HERE, THERE = Market("c5.xlarge", "us-east-1a"), Market("c5.xlarge", "us-west-2a")
ORPHAN_AFTER_S = 300


class Wide:
    """Clients of both regions, whose EC2 is moto's with what moto leaves out."""

    def __init__(self, url: str, region: str = "us-east-1") -> None:
        self._url, self._region = url, region
        self.layer = Ec2Layer(url, region=region)
        self._elsewhere: dict[str, Wide] = {}
        for zone in "ab":
            self.layer.prices[("c5.xlarge", f"{region}{zone}")] = 0.06

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        home = plain_aws(self._url)
        aws = home if self._region == "us-east-1" else home.at(self._region)
        return self.layer if service == "ec2" else aws.client(service, attempts)

    def at(self, region: str) -> Wide:
        if region not in self._elsewhere:
            self._elsewhere[region] = Wide(self._url, region)
        return self._elsewhere[region]


class Rig:
    def __init__(self, url: str, folder: Path, stack: StackRig, host: str) -> None:
        self.stack, self.host = stack, host
        self.aws = Wide(url)
        self.west = self.aws.at(WEST).layer
        self.at_s = int(time.time()) + 600
        self.said: list[str] = []
        self.place = BuyerPlace(self.stack.want.names, self.host, folder / "state", ORPHAN_AFTER_S)
        self.buyer = self.again()

    def again(self) -> Buyer:
        """As the service manager starts it: on the same folder."""
        clock = UnixClock(lambda: float(self.at_s), lambda: float(self.at_s))
        self.buyer = Buyer(self.place, self.aws, clock, self.said.append)
        return self.buyer

    def buy(self, token: str, market: Market) -> list[str]:
        answer = self.buyer.answer(AskPurchase(Order(token, market, 4, 4, 170_000)), 1)
        assert isinstance(answer, InstancesAre)
        return [each.instance_id for each in answer.instances]

    def look(self, seconds: int) -> None:
        """So much later the buyer looks around."""
        self.at_s += seconds
        self.buyer.look()

    def bought(self) -> set[str]:
        return {each["InstanceId"] for each in self.stack.instances()} - {self._head()}

    def _head(self) -> str:
        (head,) = (each for each in self.stack.instances() if each.get("PrivateIpAddress") == self.host)
        return str(head["InstanceId"])


@pytest.fixture(scope="module")
def stack(moto_url: str) -> Iterator[tuple[StackRig, str]]:
    """A stack that is up, and its head's address: it takes seconds to make and to remove."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        rig = StackRig(moto_url, "widebuyer", regions=dict(OTHER_REGIONS))
        yield rig, rig.up().ip
        rig.down()
        assert not rig.leftovers()


@pytest.fixture
def rig(moto_url: str, tmp_path: Path, stack: tuple[StackRig, str]) -> Iterator[Rig]:
    rig = Rig(moto_url, tmp_path, *stack)
    yield rig
    rig.stack.end(rig.bought())


def test_it_buys_in_both_regions_and_ends_what_no_driver_comes_back_for(rig: Rig) -> None:
    opened = rig.buyer.open(OpenJob("widebuyer", "job"), 1)
    assert {HERE, THERE} <= set(opened.markets)
    both = {*rig.buy("a", HERE), *rig.buy("b", THERE)}
    assert rig.bought() == both and len(rig.west.alive("widebuyer/job")) == 1
    held = rig.buyer.answer(AskHeld(), 1)
    assert isinstance(held, InstancesAre) and {each.instance_id for each in held.instances} == both
    assert (rig.place.folder / "us-west-2.csv.gz").exists(), "each region's prices are archived"
    rig.buyer.left(1)
    rig.at_s += ORPHAN_AFTER_S + 1
    rig.west.is_silent = True
    with pytest.raises(UnknownOutcomeError, match=r"ending machines: i-.*us-west-2"):
        rig.buyer.look()
    assert len(rig.bought()) == 1, "at home it ended"
    rig.at_s += 100
    rig.west.is_silent = False
    rig.buyer.look()
    assert not rig.bought()


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_it_ends_what_an_earlier_job_left_in_another_region(rig: Rig, is_lost: bool) -> None:
    """The region does not answer when the next job begins, and is asked again while that job is driven."""
    rig.buyer.open(OpenJob("widebuyer", "first"), 1)
    home = rig.buy("a", HERE)
    rig.west.lost = float(is_lost)
    with pytest.raises(UnknownOutcomeError) if is_lost else nullcontext():
        rig.buy("b", THERE)
    rig.again().open(OpenJob("widebuyer", "second"), 1)
    rig.west.is_silent = True
    ended = rig.buyer.answer(EndOthers(), 1)
    assert isinstance(ended, OthersEnded) and [each.instance_id for each in ended.machines] == home
    assert "what earlier jobs left running in us-west-2 could not be ended" in rig.said[-1]
    quotes = rig.buyer.answer(AskQuotes(), 1)
    assert isinstance(quotes, QuotesAre) and {each.market.zone for each in quotes.offers} == {
        "us-east-1a",
        "us-east-1b",
    }
    assert "the region us-west-2 does not answer" in quotes.troubles[0]
    asked = rig.west.seen["silent"]
    rig.look(30)
    assert rig.west.seen["silent"] == asked, "a region that is silent is left alone for a while"
    assert len(rig.bought()) == 1
    rig.west.is_silent = False
    rig.look(60)
    assert not rig.bought()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_new", [False, True], ids=["one connection", "another connection"])
def test_a_driver_hears_of_machines_that_were_ended_before_it_asked(
    rig: Rig, is_known: bool, is_new: bool
) -> None:
    """The buyer looks by itself too. It knows what it bought, unless its records went with the head."""
    rig.buyer.open(OpenJob("widebuyer", "first"), 1)
    left = rig.buy("a", HERE)
    if not is_known:
        for file in rig.place.folder.iterdir():
            file.unlink()
    rig.again().open(OpenJob("widebuyer", "second"), 1)
    rig.look(1)
    assert not rig.bought()
    if is_new:
        rig.buyer.left(1)
        rig.buyer.open(OpenJob("widebuyer", "second"), 1)
    ended = rig.buyer.answer(EndOthers(), 1)
    assert isinstance(ended, OthersEnded) and [each.instance_id for each in ended.machines] == left
    assert {each.job for each in ended.machines} == {"widebuyer/first"}
    assert rig.buyer.answer(EndOthers(), 1) == OthersEnded(())


def test_a_driver_hears_of_machines_whose_end_was_not_answered(rig: Rig) -> None:
    """They end all the same, and are not found as left behind when EC2 is asked again."""
    rig.buyer.open(OpenJob("widebuyer", "first"), 1)
    left = rig.buy("a", HERE)
    rig.again().open(OpenJob("widebuyer", "second"), 1)
    rig.aws.layer.ends_unanswered = True
    with pytest.raises(UnknownOutcomeError, match="ending machines"):
        rig.buyer.answer(EndOthers(), 1)
    rig.aws.layer.ends_unanswered = False
    ended = rig.buyer.answer(EndOthers(), 1)
    assert isinstance(ended, OthersEnded) and [each.instance_id for each in ended.machines] == left


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "answer lost"])
def test_it_ends_what_an_earlier_job_bought_a_moment_ago(rig: Rig, is_lost: bool) -> None:
    """EC2 does not list the machine yet when the next job begins."""
    rig.buyer.open(OpenJob("widebuyer", "first"), 1)
    rig.aws.layer.lost = float(is_lost)
    with pytest.raises(UnknownOutcomeError) if is_lost else nullcontext():
        rig.buy("a", HERE)
    rig.aws.layer.lost, rig.aws.layer.unlisted = 0.0, rig.bought()
    rig.again().open(OpenJob("widebuyer", "second"), 1)
    assert rig.buyer.answer(EndOthers(), 1) == OthersEnded(())
    mine = rig.buy("c", HERE)
    rig.look(60)
    assert len(rig.bought()) == 2
    rig.aws.layer.unlisted = set()
    rig.look(60)
    assert rig.bought() == set(mine)
    rig.look(UNSEEN_S)
    asked = rig.aws.layer.seen["describe_instances"]
    rig.look(60)
    assert rig.aws.layer.seen["describe_instances"] == asked, "by now EC2 lists everything"
    assert rig.bought() == set(mine)


def test_it_buys_from_the_template_that_up_made_since_the_job_began(rig: Rig) -> None:
    """With another image: the head's role may not buy the one before any more, in no region."""
    rig.buyer.open(OpenJob("widebuyer", "job"), 1)
    first = {*rig.buy("a", HERE), *rig.buy("b", THERE)}
    for layer in (rig.aws.layer, rig.west):
        made = layer.client.create_launch_template_version(
            LaunchTemplateName=rig.stack.want.names.plain,
            SourceVersion="1",
            LaunchTemplateData={"ImageId": IMAGE},
        )
        layer.right_version = str(made["LaunchTemplateVersion"]["VersionNumber"])
    with pytest.raises(CredentialsError, match="UnauthorizedOperation"):
        rig.buy("c", HERE)
    second = rig.buy("c", HERE)
    with pytest.raises(RefusedError, match="UnauthorizedOperation"):
        rig.buy("d", THERE)
    rig.at_s += SILENT_S + 1
    third = rig.buy("e", THERE)
    assert len(second) == len(third) == 1 and rig.bought() == {*first, *second, *third}
