"""`proteus machines --aws`: what carries our tag is found and ended, and nothing else is."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from agileml.cli import main
from bidbrain.aws.answers import TAG_JOB, TAG_MARKET
from bidbrain.aws.ec2 import UNSEEN_S
from bidbrain.live.cloud import Order, UnknownOutcomeError
from tests.aws.ground import AwsGround
from tests.aws.layer import IMAGE, REGION, Ec2Layer

pytestmark = pytest.mark.aws


def start(ec2: Ec2Layer, count: int, **tags: str) -> list[str]:
    labels = [{"Key": key, "Value": value} for key, value in tags.items()]
    started = ec2.client.run_instances(
        ImageId=IMAGE,
        InstanceType="c5.xlarge",
        MinCount=count,
        MaxCount=count,
        TagSpecifications=[{"ResourceType": "instance", "Tags": labels}],
    )
    return [each["InstanceId"] for each in started["Instances"]]


def proteus(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["machines", *arguments])
    said = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, said.out, said.err


def states(ec2: Ec2Layer, ids: list[str]) -> set[str]:
    pages = ec2.client.describe_instances(InstanceIds=ids)["Reservations"]
    return {each["State"]["Name"] for page in pages for each in page["Instances"]}


def test_ours_are_listed_and_ended_by_tag(
    ec2: Ec2Layer, moto_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    market = "c5.xlarge/us-east-1a"
    mine = start(ec2, 2, **{TAG_JOB: "machines-a", TAG_MARKET: market})
    other = start(ec2, 1, **{TAG_JOB: "machines-b"})
    foreign = start(ec2, 1, Name="somebody's")
    code, out, _ = proteus(capsys, "list", "--aws", REGION, "--job", "machines-a", "--json")
    shown: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {(each["machine_id"], each["job"], each["market"]) for each in shown} == {
        (each, "machines-a", market) for each in mine
    }
    assert all(each in proteus(capsys, "list", "--aws", REGION)[1] for each in [*mine, *other])
    code, _, err = proteus(capsys, "terminate", foreign[0], "--aws", REGION, "--yes")
    assert (code, "found no machine" in err) == (2, True)
    for answer in ("", "n\n"):  # nobody is there, or does not want to
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert proteus(capsys, "terminate", mine[0], "--aws", REGION)[0] != 0
    assert states(ec2, [*mine, *other, *foreign]) == {"running"}
    assert proteus(capsys, "terminate", mine[0], "--aws", REGION, "--yes")[0] == 0
    assert (states(ec2, mine[:1]), states(ec2, mine[1:])) == ({"terminated"}, {"running"})
    code, out, _ = proteus(capsys, "terminate", "--all", "--aws", REGION, "--job", "machines-a", "--yes")
    assert (code, "told EC2 to end 1 machines" in out) == (0, True)
    assert states(ec2, mine) == {"terminated"}
    assert states(ec2, [*other, *foreign]) == {"running"}
    ec2.client.terminate_instances(InstanceIds=[*other, *foreign])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["terminate", "--aws", REGION],
            "found no machine to terminate, expected ids or --all, and not both",
        ),
        (["list", "--address", "auto", "--aws", REGION], "found --address with --aws, expected one of them"),
        (
            ["terminate", "--all", "--address", "auto", "--aws", REGION],
            "found --address with --aws, expected one of them",
        ),
        (
            ["terminate", "--all", "--warning-s", "30", "--aws", REGION],
            "found --warning-s with --aws, expected it left out: EC2 ends machines at once",
        ),
        (["list", "--job", "a"], "--job: found it without --aws, expected both or neither"),
    ],
)
def test_what_is_missing_is_a_sentence(
    arguments: list[str],
    sentence: str,
    moto_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    assert proteus(capsys, *arguments) == (2, "", f"proteus: {sentence}\n")


def test_a_machine_whose_market_was_changed_by_hand_is_its_jobs_all_the_same(ec2: Ec2Layer) -> None:
    (name,) = start(ec2, 1, **{TAG_JOB: "changed", TAG_MARKET: "mine"})
    ground = AwsGround(ec2, "changed")
    (held,) = ground.cloud.held()
    assert held.instance_id == name and held.market.instance_type == "c5.xlarge"
    ground.cloud.release((name,))
    assert not ground.cloud.held()


def test_a_machine_that_somebody_has_protected_is_asked_for_until_it_ends(ec2: Ec2Layer) -> None:
    """EC2 ends none of a request that names one. The others end all the same, and this one is not taken for gone."""
    ground = AwsGround(ec2, "protected")
    market = ground.setting.listings[0].market
    bought = ground.cloud.acquire(Order("protected-1", market, 2, 1, 170_000))
    protected, other = (each.instance_id for each in bought)
    ec2.client.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": True})
    ground.at_s += UNSEEN_S
    with pytest.raises(UnknownOutcomeError, match=f"'{protected}' may not be terminated"):
        ground.cloud.release((protected, other))
    assert [each["InstanceId"] for each in ec2.alive("protected")] == [protected]
    ec2.client.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": False})
    ground.cloud.release((protected, other))
    assert not ec2.alive("protected")
