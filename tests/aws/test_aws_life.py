"""A whole life on AWS as moto plays it: plan, up, machines, notices from both sides, evictions, the budget, down."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agileml.aws.preemption import watch
from agileml.cli import main
from agileml.market.drain_notices import DrainNotices
from bidbrain.accounts.ledger import EntryKind
from bidbrain.aws.notices import ImdsNotices
from bidbrain.aws.site import OtherRegion, Site
from bidbrain.aws.stack.attach import attach
from bidbrain.aws.stack.template import OPERATOR, REGION, STACK, text
from bidbrain.instants import show_instant
from bidbrain.live.cloud import Alert, InstanceNotice, NoticeSource
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Noticed
from tests.aws.ground import AwsGround
from tests.aws.layer import Ec2Layer
from tests.aws.metadata import Metadata
from tests.aws.stack_rig import StackRig, plain_aws
from tests.bidbrain.live.makers import Memory

pytestmark = pytest.mark.aws

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "aws.yaml"
PLACE = "s3://proteus-life-123456789012-us-east-1/proteus/life/checkpoints"
LIFE = ("--set", "market.name=life", "--set", f"checkpoint.path={PLACE}")


@pytest.fixture
def proteus(
    moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The command line; what it printed."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["aws", *arguments])
        said = capsys.readouterr()
        assert int(ended.value.code or 0) == code, said.err
        return said.out if code == 0 else said.err

    return run


class MergedNotices:
    """Several sources of notices as one."""

    troubles = ()

    def __init__(self, *sources: NoticeSource) -> None:
        self._sources = sources

    def notices(self) -> tuple[InstanceNotice, ...]:
        return tuple(notice for source in self._sources for notice in source.notices())


class Warned:
    """The market warns of two machines, each by another way, and takes them two minutes later."""

    def __init__(self, layer: Ec2Layer, url: str, metadata: Metadata) -> None:
        self._layer, self._url, self._metadata = layer, url, metadata
        self.ground: AwsGround
        self.draining: dict[str, float | None] = {}  # as Ray would say it
        self.nodes: list[dict[str, Any]] = []
        self.victims: list[str] = []

    def sources(self, queue: Any) -> MergedNotices:
        return MergedNotices(queue, DrainNotices(lambda: self.nodes, lambda: self.draining))

    def warn(self) -> None:
        by_queue, by_metadata = self.victims = sorted(self.ground.engine.held)[:2]
        kind = "EC2 Spot Instance Interruption Warning"
        detail = json.dumps({"instance-id": by_queue, "instance-action": "terminate"})
        entry = {"Source": "aws.ec2", "DetailType": kind, "Detail": detail, "Time": self.ground.at_s}
        plain_aws(self._url).client("events").put_events(Entries=[entry])

        self._metadata.values["/latest/meta-data/instance-id"] = by_metadata
        action = {"action": "terminate", "time": show_instant(self.ground.at_s + 120)}
        self._metadata.values["/latest/meta-data/spot/instance-action"] = json.dumps(action)
        self.nodes = [{"NodeID": "node-7", "Labels": {"machine": by_metadata}}]
        source = ImdsNotices(f"http://127.0.0.1:{self._metadata.server_port}")
        watch(source, "10.0.0.5:6379", self._ray_drain_node, now_s=self.ground.now_s)

    def _ray_drain_node(self, command: list[str]) -> bool:
        (left,) = [text for text in command if text.startswith("--deadline-remaining-seconds=")]
        self.draining["node-7"] = self.ground.at_s + float(left.partition("=")[2])
        return True

    def evict(self) -> None:
        for victim in self.victims:
            self._layer.evict(victim)
        self.draining.clear()


def test_from_plan_to_down(
    proteus: Callable[..., str], moto_url: str, metadata: Metadata, tmp_path: Path
) -> None:
    rig = StackRig(moto_url, "life")
    planned = proteus("plan", str(CONFIG), *LIFE)
    assert "make   head" in planned and '"Sid": "Buy"' in planned and "not checked" in planned
    assert not rig.leftovers(), "a plan makes nothing"

    made = proteus("up", str(CONFIG), *LIFE, "--yes")
    token = (
        plain_aws(moto_url).client("ssm").get_parameter(Name="/proteus/life/ray-token", WithDecryption=True)
    )
    secret = token["Parameter"]["Value"]
    assert "aws ssm start-session --region us-east-1 --target i-" in made and secret not in made
    kept = tmp_path / ".proteus" / "aws" / "us-east-1-life.token"
    assert kept.read_text() == secret and stat.S_IMODE(kept.stat().st_mode) == 0o600
    again = proteus("up", str(CONFIG), *LIFE, "--yes")
    assert "make" not in again.replace("to make", "") and len(rig.instances()) == 1

    # On the head: a service buys, is warned from both sides, loses two machines, buys others, reaches its budget.
    layer = Ec2Layer(moto_url)
    site = Site(
        name="life", region="us-east-1", zones=("us-east-1a", "us-east-1b"), types=("c5.xlarge", "m5.xlarge")
    )
    attached = attach(site, "digits", rig.plain)
    warned = Warned(layer, moto_url, metadata)
    ground = AwsGround(layer, "digits", warned.sources(attached.queue), attached.place, nodes=3, hours=10.0)
    warned.ground = ground
    ground.events = {ground.start_s + 1200: warned.warn, ground.start_s + 1320: warned.evict}
    log = Memory()
    closing = ground.play(log, guards=Guards(budget=900_000))
    assert closing.code == 3 and ground.engine.draining, "the budget ends it"

    noticed = [notice for r in log.records if isinstance(r, Noticed) for notice in r.notices]
    deadlines = {notice.instance_id: notice.deadline_s for notice in noticed}
    assert sorted(deadlines) == warned.victims and len(noticed) == 2
    assert {notice.alert for notice in noticed} == {Alert.TERMINATE}
    assert set(deadlines.values()) == {ground.start_s + 1320}

    assert ground.service is not None
    ledger = ground.service.state.ledger()
    grants = [e for e in ledger.entries if e.kind is EntryKind.GRANT]
    evictions = [e for e in ledger.entries if e.kind is EntryKind.EVICTION]
    assert len(evictions) == 2
    after = [e for e in grants if e.at_s >= ground.start_s + 1320]
    assert len(after) >= 2, "others are bought instead"
    assert 600_000 < ledger.micro_usd <= 900_000
    assert len(rig.instances()) == 1, "only the head is left of the job"

    shown = proteus("status", str(CONFIG), *LIFE)
    assert shown.count(" head") >= 2 and "launch template" in shown
    gone = proteus("down", str(CONFIG), *LIFE, "--yes")
    assert "Nothing of the stack life is left; " in gone and "still lists" not in gone
    assert not rig.leftovers()
    assert not kept.exists()
    assert "There is nothing of the stack life" in proteus("status", str(CONFIG), *LIFE)


BAD = [
    ("market.region=us-esat-1", "market.region: found us-esat-1, expected us-"),
    ("market.types=[c5.xlarg]", "found the machine type c5.xlarg, expected one that us-east-1 offers"),
    ("market.budget_usd=0.1", "market.budget_usd: found 0.100000, expected at least 0.30"),
    (
        "checkpoint.path=s3://elsewhere/x",
        "checkpoint.path: found s3://elsewhere/x, expected s3://proteus-bad-",
    ),
    (  # the node's role may not write there
        f"checkpoint.path={PLACE.replace('life', 'bad')}-2",
        "proteus/bad/checkpoints-2, expected s3://proteus-bad-",
    ),
    ("market.bucket=nobody-has-this-one", "market.bucket: nobody-has-this-one: found none of that name"),
    ("market.name=Life", "market.name: found 'Life', expected a name of 2 to 24 of a-z"),
]


@pytest.mark.parametrize(
    ("change", "said"),
    [pytest.param(*bad, marks=pytest.mark.slow if n % 3 else []) for n, bad in enumerate(BAD)],
)
def test_what_cannot_work_is_one_sentence_and_makes_nothing(
    proteus: Callable[..., str], moto_url: str, tmp_path: Path, change: str, said: str
) -> None:
    bad = ("--set", "market.name=bad", "--set", f"checkpoint.path={PLACE.replace('life', 'bad')}")
    error = proteus("up", str(CONFIG), *bad, "--set", change, "--yes", code=2)
    assert error.startswith("proteus: ") and error.count("\n") == 1 and said in error
    assert not StackRig(moto_url, "bad").leftovers()


def test_a_plan_for_programs(proteus: Callable[..., str]) -> None:
    said = proteus("plan", str(CONFIG), "--json")
    told = json.loads(said[said.index("{") :])  # moto prints as well
    assert told["account"] == "123456789012" and {step["action"] for step in told["steps"]} == {"make"}
    assert told["costs_micro_usd_per_h"][0]["per_h"] == 96_000, "m5.large"
    assert {statement["Sid"] for statement in told["policies"]["role proteus-demo-head"]["Statement"]} > {
        "Buy",
        "End",
    }
    assert "not checked" in {check["verdict"] for check in told["checks"]}, "moto has no quotas"


def test_the_templates_are_printed_as_they_are_used(proteus: Callable[..., str]) -> None:
    assert proteus("template") == text(STACK)
    assert proteus("template", "--operator") == text(OPERATOR)


def test_nobody_to_ask(proteus: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    said = proteus("up", str(CONFIG), *LIFE, code=2)
    assert "say --yes" in said and "Make the stack life in account 123456789012?" in said


def test_credentials_of_another_account_remove_nothing_and_say_so(
    proteus: Callable[..., str], tmp_path: Path
) -> None:
    """As in a shell without the profile: the head in the right account costs money, and its token is still needed."""
    token = tmp_path / ".proteus" / "aws" / "us-east-1-elsewhere.token"
    token.parent.mkdir(parents=True)
    token.write_text("of the other account's stack")
    elsewhere = ("--set", "market.name=elsewhere")
    assert "Account 123456789012 has nothing to remove" in proteus("down", str(CONFIG), *elsewhere)
    assert token.exists()
    assert "in us-east-1 of account 123456789012." in proteus("status", str(CONFIG), *elsewhere)


def test_another_market_is_refused(proteus: Callable[..., str]) -> None:
    demo = CONFIG.with_name("mlr.yaml")
    assert "market.kind: found no market, expected ec2" in proteus("plan", str(demo), code=2)


def test_no_credentials(proteus: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for command in ("up", "down"):
        assert "no AWS credentials were found" in proteus(command, str(CONFIG), *LIFE, code=2)
    said = proteus("plan", str(CONFIG), *LIFE, code=2)
    assert "no AWS credentials were found" in said and "--offline prints" in said and said.count("\n") == 1


def test_a_quota_of_nothing(proteus: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """moto has no EC2 quotas: a server of our own says what Service Quotas would."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Quotas(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["QuotaCode"]
            value = 0.0 if code == "L-34B43A08" else 64.0
            body = json.dumps({"Quota": {"QuotaCode": code, "QuotaName": "vCPUs", "Value": value}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Quotas)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SERVICE_QUOTAS", f"http://127.0.0.1:{server.server_port}")
        error = proteus("up", str(CONFIG), *LIFE, "--yes", code=2)
        assert (
            "quota L-34B43A08 (vCPUs): found 0 vCPUs, expected at least 4 for the smallest spot machine"
            in error
        )
        assert error.count("\n") == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_plan_and_a_stack_over_two_regions(proteus: Callable[..., str], moto_url: str) -> None:
    place = "s3://proteus-wide-123456789012-us-east-1/proteus/wide/checkpoints"
    west = '{"us-west-2": {"zones": ["us-west-2a"]}}'
    wide = (
        *("--set", "market.name=wide", "--set", f"checkpoint.path={place}"),
        *("--set", f"market.regions={west}"),
    )
    rig = StackRig(moto_url, "wide", regions={"us-west-2": OtherRegion(zones=("us-west-2a",))})
    planned = proteus("plan", str(CONFIG), *wide)
    assert "make   CloudFormation stack of a region proteus-wide in us-west-2" in planned
    assert "make   peering of networks  us-east-1 with us-west-2" in planned
    assert "us-west-2: 10.81.0.0/16" in planned and '"Sid": "PeerOurs"' in planned
    assert not rig.leftovers(), "a plan makes nothing"
    assert "peering of networks  us-east-1 with us-west-2" in proteus("up", str(CONFIG), "--yes", *wide)
    shown = proteus("status", str(CONFIG), *wide)
    assert "proteus-wide in us-west-2" in shown and "us-east-1 with us-west-2" in shown
    assert "interrupted" not in shown
    rig.down()  # moto's CloudFormation alone leaves a network
    assert not rig.leftovers()
    assert "Nothing of the stack wide is left" in proteus("down", str(CONFIG), "--yes", *wide)
    near = west.replace("us-west-2", "us-wst-2")
    said = proteus("plan", str(CONFIG), *wide, "--set", f"market.regions={near}", code=2)
    assert "market.regions" in said and "us-wst-2" in said


def test_the_template_of_another_region_is_printed(proteus: Callable[..., str]) -> None:
    assert proteus("template", "--region") == text(REGION)
    assert "expected one of them" in proteus("template", "--region", "--operator", code=2)
