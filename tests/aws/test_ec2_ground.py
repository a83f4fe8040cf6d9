"""The command of a live job on EC2, whole: `proteus run` in a process of its own, with the real `Ec2Backend`.

AWS is moto's server; what it leaves out is put before it (`front`): tokens, spot prices, evictions. Instances are
Ray nodes of this machine that join the cluster with the words of `boot` (`instances`), over TLS with the stack's
certificates and its token, at an address that is not on loopback if there is one. Real here: the session, the fleet,
the service and its journal, the stack that `up` makes, the warning's way by rule and queue, code that travels to the
nodes, checkpoints and results in the stack's bucket, the watchdogs on the machines and the endpoint they ask. The buyer
is a process of its own; the driver has no credentials but those that it gives, of the node's role.

What moto cannot show: that EC2 lists a machine some time after it was bought, that a warned machine is taken by
itself (the test does it), what the machine's own metadata service says, and rights.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from agileml.aws.boot import HEALTH_CHECK, Installation, InstanceIdentity, credentials, keep
from agileml.cluster.watchdog import LIVENESS_PORT, WatchedHead
from agileml.events.market import AllocationEnded, InstanceNoticed, InstancesBought
from agileml.events.run import MachineLost, MachineReleased, MembershipChanged
from agileml.events.schema import E, events_of
from agileml.runs.event_log import read_events
from bidbrain.aws.buyer.messages import SOCKET
from bidbrain.aws.stack.authority import Authority
from tests.aws.front import Front, front_of
from tests.aws.ground import bought_by
from tests.aws.instances import Instances, instances_of
from tests.aws.layer import ENVIRONMENT
from tests.aws.stack_rig import ACCOUNT, StackRig, plain_aws
from tests.cluster.held_back import APPLICATION
from tests.cluster.started import Started, own_address, started_cluster

pytestmark = [pytest.mark.aws, pytest.mark.cluster, pytest.mark.slow]

STACK = "ground"
BUCKET = f"proteus-{STACK}-{ACCOUNT}-us-east-1"
HERE = own_address()
ORPHAN_AFTER_S = 8
LIMIT_S = 400.0
RAY_VARIABLES = {f"RAY_health_check_{key}": str(value) for key, value in HEALTH_CHECK.items()}
JOB: dict[str, Any] = {
    "application": "held_back:HeldBack",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.01},
    "clocks": 300,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "max": 3},
    "stage_thresholds": [1, 2],
    "verify": True,
    "address": "replaced",
    "checkpoint": {"path": f"s3://{BUCKET}/proteus/{STACK}/checkpoints", "every_s": 60},
    "market": {
        "kind": "ec2",
        "name": STACK,
        "region": "us-east-1",
        "zones": ["us-east-1a", "us-east-1b"],
        "types": ["c5.xlarge"],
        "reliable_type": "m5.xlarge",
        "job_vcpus": 8,
        "job_hours": 0.1,
        "budget_usd": 5.0,
    },
}
# How every line of a run begins that goes well; it waits for machines that boot, on a busy computer for half a minute.
SAYS = (
    *(
        "clock ",
        "proteus: trains the same job",
        "proteus: ended machines",
        "proteus: the run waits: ",
        "proteus: no process has printed an error to ",
        "kept s3://",
        "done: ",
        "params_sha256 ",
    ),
    *("the same bits as ", "bill $", "  on demand $", "report "),
)


@dataclass
class Rig:
    """A stack, its head, and a project on it."""

    stack: StackRig
    front: Front
    cluster: Started
    instances: Instances
    folder: Path
    moto_url: str
    left: str  # a machine of a job that was killed: it listens to the head's endpoint, whoever's that is
    driver: Mapping[str, str]  # the environment of a driver
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def proteus(self, out: str, *settings: str) -> subprocess.Popen[str]:
        """`proteus run` on the head."""
        command = [sys.executable, "-m", "agileml.cli", "run", "job.yaml", "--yes", "--out", out]
        for setting in settings:
            command += ["--set", setting]
        run = subprocess.Popen(
            command, env=dict(self.driver), cwd=self.folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.runs.append(run)
        return run

    def refused(self, *settings: str) -> str:
        """The sentence of a run that is refused before anything is made or bought."""
        run = self.proteus("refused", *settings)
        output, said = run.communicate(timeout=600)
        assert (run.returncode, output) == (2, ""), (output, said)
        assert said.startswith("proteus: ") and said.count("\n") == 1, said
        assert not (self.folder / "refused").exists()
        return said

    def events(self, out: str, kind: type[E]) -> list[E]:
        log = self.folder / out / "events.jsonl"
        return events_of(read_events(log), kind) if log.is_file() else []

    def spot(self) -> list[str]:
        """Spot machines that run, as EC2 says it."""
        running = [each for each in self.instances.running() if each["InstanceType"] == "c5.xlarge"]
        return [each["InstanceId"] for each in sorted(running, key=lambda each: each["LaunchTime"])]

    def transient(self, out: str) -> int:
        """Spot machines that take part in a run, as it says itself."""
        changes = self.events(out, MembershipChanged)
        return changes[-1].transient if changes else 0

    def settled(self) -> None:
        """Wait until machines that were ended are gone."""
        until_s = time.monotonic() + LIMIT_S
        while self.instances.there():
            assert time.monotonic() < until_s, self.instances.problem
            time.sleep(0.05)

    def let_go(self) -> None:
        """From now on the job is as fast as it can be."""
        (self.folder / "let_go").touch()

    def until(self, run: subprocess.Popen[str], condition: Callable[[], Any]) -> Any:
        """What `condition()` returns once it is true; the run goes on meanwhile."""
        until_s = time.monotonic() + LIMIT_S
        while not (found := condition()):
            assert self.instances.problem is None, self.instances.problem
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until_s, "this never came true"
            time.sleep(0.1)
        return found

    def warn(self, machine_id: str, seconds: int) -> None:
        """The warning, as EC2 puts it on the event bus; the machine goes so many seconds from now."""
        detail = json.dumps({"instance-id": machine_id, "instance-action": "terminate"})
        kind = "EC2 Spot Instance Interruption Warning"
        entry = {
            "Source": "aws.ec2",
            "DetailType": kind,
            "Detail": detail,
            "Time": time.time() + seconds - 120,
        }
        plain_aws(self.moto_url).client("events").put_events(Entries=[entry])


def joining(moto_url: str, place: Installation) -> Mapping[Path, bytes]:
    """The files by which an instance joins, made of the stack's secrets: the instances here share an address."""
    ssm, values = plain_aws(moto_url).client("ssm"), []
    for name in ("ray-token", "ray-authority"):
        answer = ssm.get_parameter(Name=f"/proteus/{STACK}/{name}", WithDecryption=True)
        values.append(answer["Parameter"]["Value"])
    me = InstanceIdentity("i-1", HERE, is_spot=True)
    return credentials(values[0], Authority.parsed(values[1]), me, place, time.time())


@contextlib.contextmanager
def buyer_of(folder: Path, environment: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """While it is open a buyer listens; the environment of a driver, whose one way to credentials is to ask it."""
    path, config = folder / "buyer.socket", folder / "aws-config"
    command = [
        *(sys.executable, "-m", "bidbrain.aws.buyer", f"--stack={STACK}", "--region=us-east-1"),
        *(f"--account={ACCOUNT}", f"--bucket={BUCKET}", f"--host={HERE}", f"--driver={getpass.getuser()}"),
        *(f"--socket={path}", f"--folder={folder / 'buyer'}", "--look-every=1"),
    ]
    asked = f"{sys.executable} -m bidbrain.aws.buyer.credentials {path}"
    config.write_text(f"[default]\nregion = us-east-1\ncredential_process = {asked}\n")
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    driver = {name: value for name, value in environment.items() if name not in keys}
    driver |= {SOCKET: str(path), "AWS_CONFIG_FILE": str(config), "AWS_EC2_METADATA_DISABLED": "true"}
    with subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True) as buyer:
        assert buyer.stdout is not None
        assert buyer.stdout.readline() == f"buys for the stack {STACK} at {path}\n"
        yield driver
        buyer.terminate()


@pytest.fixture(scope="module")
def rig(moto_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch, front_of(moto_url) as front:
        for name, value in {
            **ENVIRONMENT,
            "AWS_ENDPOINT_URL": moto_url,
            "AWS_ENDPOINT_URL_EC2": front.url,
        }.items():
            patch.setenv(name, value)
        stack = StackRig(moto_url, STACK, reliable_type="m5.xlarge")
        front.move(stack.up().instance_id, HERE)
        front.prices = {("c5.xlarge", "us-east-1a"): 0.06, ("c5.xlarge", "us-east-1b"): 0.07}
        place = Installation(sys.executable, folder / "instance")
        keep(joining(moto_url, place), place, None)
        variables = {**RAY_VARIABLES, **place.cluster_variables}
        with started_cluster([], variables=variables, ip=HERE) as cluster:
            (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "address": cluster.address}))
            (folder / "held_back.py").write_text(APPLICATION.format(let_go=str(folder / "let_go")))
            cluster.environment["PYTHONPATH"] = os.getcwd()
            ec2 = plain_aws(moto_url).client("ec2")
            (left,) = bought_by("gone-1", stack.site, plain_aws(moto_url))
            with (
                instances_of(ec2, cluster, place, STACK, ORPHAN_AFTER_S, asleep=[left]) as instances,
                buyer_of(folder, cluster.environment) as driver,
            ):
                rig = Rig(stack, front, cluster, instances, folder, moto_url, left, driver)
                yield rig
                for run in rig.runs:
                    run.kill()
                    run.communicate()
        stack.down()
        assert not stack.leftovers()


def endpoint_is_free() -> bool:
    try:
        socket.create_server((HERE, LIVENESS_PORT), reuse_port=False).close()
    except OSError:
        return False
    return True


def processes_of(cluster: Started) -> dict[int, str]:
    """What lives of the cluster: what it is by number."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == str(cluster.folder):
                found[process.pid] = " ".join(process.cmdline())[:120]
    return found


def test_what_cannot_run_is_one_sentence(rig: Rig) -> None:
    """No cluster at the address, no stack of that name, a budget that does not pay for an hour: nothing is bought."""
    nobody = rig.refused("address=127.0.0.1:9")
    assert "address: nobody listens at 127.0.0.1:9 (Connection refused), expected a Ray head node" in nobody
    no_stack = rig.refused("market.name=elsewhere")
    assert f"market.name: found elsewhere, expected {STACK}: this is the head of that stack" in no_stack
    other_type = rig.refused("market.types=[m5.large]")
    assert "market.types: found m5.large@us-east-1a, expected one of c5.xlarge@us-east-1a, " in other_type
    too_little = rig.refused("market.budget_usd=0.1")
    assert "market.budget_usd: found 0.100000 $, expected at least 0.192000 $" in too_little, too_little
    assert endpoint_is_free() and not rig.instances.booted and rig.front.seen["fleets"] == 0


def test_a_job_through_the_real_ground(rig: Rig) -> None:
    """Two spot machines; one is announced and taken, another bought instead; a second job is refused meanwhile."""
    assert endpoint_is_free(), f"something of this machine has port {LIVENESS_PORT}"
    head = processes_of(rig.cluster)
    rig.front.lost = 1  # the answer to the first purchase does not come: it is asked for again with its token
    run = rig.proteus("run")
    rig.until(run, lambda: rig.transient("run") == 2)
    assert WatchedHead(f"{HERE}:{LIVENESS_PORT}").speaks(2.0)
    assert f"market: port {LIVENESS_PORT} of {HERE} is taken (Address already in use)" in rig.refused()

    warned, stays = rig.spot()
    rig.warn(warned, 60)
    rig.until(run, lambda: rig.events("run", MachineReleased))
    rig.front.evict(warned)
    rig.until(run, lambda: [each for each in rig.spot() if each != stays])
    rig.until(run, lambda: rig.transient("run") == 2)
    rig.let_go()
    output, said = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said

    # It ends well: the same bits, nothing done again, a bill.
    summary = json.loads((rig.folder / "run" / "summary.json").read_text())
    market = summary["market"]
    assert summary["same_as_sequential"] is True and "the same bits as one process" in output
    assert (summary["clocks"], summary["clocks_redone"]) == (JOB["clocks"], 0)
    assert not rig.events("run", MachineLost), "what was announced had left before it was taken"
    assert market["finished"] and (market["evictions"], market["grants"]) == (1, 3)
    assert 0 < market["usd"] < 0.1 and "bill $0.0" in output
    assert [event.instance for event in rig.events("run", InstanceNoticed)] == [warned]
    bought = [machine for event in rig.events("run", InstancesBought) for machine in event.instances]
    assert sorted(bought) == sorted(rig.instances.booted) and len(bought) == 1 + 2 + 1
    endings = [event.ending for event in rig.events("run", AllocationEnded)]
    assert sorted(endings) == ["evicted", "job_end", "job_end", "job_end"]
    assert rig.front.seen["fleets"] == 3, (
        "one order for the reliable machine, one for two, one for the one instead"
    )

    # Nothing is left: no machine, no endpoint, no process beside the head's, and the watchdogs had nothing to do.
    assert not rig.instances.running()
    rig.settled()
    assert endpoint_is_free()
    assert not rig.instances.orphaned
    more = {pid: what for pid, what in processes_of(rig.cluster).items() if pid not in head}
    assert not more
    ended = f"proteus: ended machines that an earlier job left running: {rig.left} of {STACK}/gone-1"
    assert said.splitlines().count(ended) == 1
    told = [line for line in (output + said).splitlines() if line and not line.startswith(SAYS)]
    assert not told, "nothing of Ray's, no trace"

    # What it leaves is in the stack's bucket: the head goes with `down`.
    s3 = plain_aws(rig.moto_url).client("s3")
    kept = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"proteus/{STACK}/runs/run/")["Contents"]
    assert f"proteus/{STACK}/runs/run/summary.json" in {entry["Key"] for entry in kept}
    assert f"kept s3://{BUCKET}/proteus/{STACK}/runs/run" in output


def test_machines_end_by_themselves_when_the_driver_is_killed(rig: Rig) -> None:
    """SIGKILL: nobody gives anything back, but nobody answers the watchdogs either."""
    (rig.folder / "let_go").unlink(missing_ok=True)
    run = rig.proteus("killed", f"checkpoint.path={JOB['checkpoint']['path']}/killed")
    rig.until(run, lambda: rig.transient("killed") == 2)
    run.kill()
    run.communicate()
    killed_s = time.monotonic()
    while rig.instances.running():
        assert time.monotonic() - killed_s < ORPHAN_AFTER_S + 5
        time.sleep(0.1)
    print(
        f"no machine runs {time.monotonic() - killed_s:.1f} s after the driver's end (limit {ORPHAN_AFTER_S} s)"
    )
    assert len(rig.instances.orphaned) == 3
    assert endpoint_is_free()
