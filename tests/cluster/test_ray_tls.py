"""Ray over TLS between hosts: a whole run, what a listener on its wire can read, and who gets the token.

The hosts are network namespaces, so what passes between them passes a wire, and what stays on one host does not.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agileml.aws.boot import Installation, InstanceIdentity, credentials, head_command, keep, node_command
from agileml.cluster.watchdog import KEEP_ENVIRONMENT
from bidbrain.aws.stack.authority import Authority
from tests.cluster.certificates import tls_variables
from tests.cluster.refusing_head import head as refusing_head
from tests.cluster.sniffer import Sniffer, may_sniff
from tests.cluster.started import kill_all_of, own_address

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hosts import Hosts, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LIMIT_S = 400.0
HEAD, NODE = 0, 1
JOB: dict[str, Any] = {
    "application": "mlr",
    "data": {"kind": "digits"},
    "optimizer": {"kind": "adam", "learning_rate": 0.05},
    "clocks": 40,
    "clocks_per_pass": 4,
    "slices": 8,
    "machines": {"reliable": 1, "transient": 1, "max": 3},
    "verify": True,
}
SHARED = ("--disable-usage-stats", "--dashboard-agent-listen-port=0")


@dataclass
class Cluster:
    """A cluster of EC2's instances, on hosts of this computer. `token`: its own."""

    hosts: Hosts
    folder: Path
    token: str
    is_tls: bool
    authority: Authority

    def environment(self, host: int) -> dict[str, str]:
        """The variables of an instance; without TLS those that are left without it."""
        place = self._place(host)
        if not place.token.exists():
            me = InstanceIdentity(f"i-{host}", self.hosts.address(host), host != HEAD)
            keep(credentials(self.token, self.authority, me, place, time.time()), place, None)
        joins = place.cluster_variables
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            **{key: value for key, value in joins.items() if self.is_tls or "TLS" not in key},
            "RAY_TMPDIR": str(self.folder),
            "HOME": str(self.folder),
            "PYTHONPATH": os.getcwd(),
            KEEP_ENVIRONMENT: "1",  # it is how `kill_all_of` knows them
        }

    def _place(self, host: int) -> Installation:
        return Installation(sys.executable, self.folder / f"host{host}")

    def start(self, host: int, command: list[str]) -> None:
        """Begin one of Ray's nodes, and wait until it runs."""
        log = self.folder / f"host{host}.log"
        with log.open("wb") as output:
            ray = self.hosts.start(host, command, env=self.environment(host), stdout=output, stderr=output)
        until_s = time.monotonic() + LIMIT_S
        while b"Ray runtime started" not in log.read_bytes():
            assert ray.poll() is None and time.monotonic() < until_s, log.read_text()
            time.sleep(0.1)

    def begin(self) -> None:
        """The head, a reliable node beside it, and a transient one behind the wire."""
        for host in (HEAD, NODE):  # Ray looks for the way to the internet; on EC2 there is one
            way = ["ip", "route", "add", "default", "via", self.hosts.here]
            assert self.hosts.start(host, way).wait() == 0
        gcs = self.hosts.address(HEAD)
        me = InstanceIdentity("i-0", gcs, is_spot=False)
        more = [*SHARED, f"--temp-dir={self.folder}"]
        self.start(HEAD, [*head_command(self._place(HEAD), me), *more])
        self.start(HEAD, [*node_command(self._place(HEAD), me, gcs), *SHARED, "--num-cpus=1"])
        far = InstanceIdentity("i-1", self.hosts.address(NODE), is_spot=True)
        self.start(NODE, [*node_command(self._place(NODE), far, gcs), *SHARED, "--num-cpus=1"])

    def run(self) -> dict[str, Any]:
        """The summary of a run of `proteus run` on the head."""
        values = {**JOB, "address": f"{self.hosts.address(HEAD)}:6379", "out": str(self.folder / "run")}
        config = self.folder / "job.yaml"
        config.write_text(yaml.safe_dump(values))
        run = self.hosts.start(
            HEAD,
            [sys.executable, "-m", "agileml.cli", "run", str(config)],
            env=self.environment(HEAD),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said, _ = run.communicate(timeout=LIMIT_S)
        assert run.returncode == 0, said
        return dict(json.loads((self.folder / "run" / "summary.json").read_text()))


@contextmanager
def cluster_of(hosts: Hosts, *, is_tls: bool) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as name:
        folder = Path(name)
        cluster = Cluster(hosts, folder, secrets.token_hex(32), is_tls, Authority.made("test", time.time()))
        try:
            cluster.begin()
            yield cluster
        finally:
            kill_all_of(folder)


@pytest.mark.skipif(
    why_not() is not None or not may_sniff(), reason=f"no hosts to listen between: {why_not()}"
)
@pytest.mark.parametrize("is_tls", [True, False], ids=["with TLS", "without"])
def test_what_is_read_between_hosts_of_a_whole_run(is_tls: bool) -> None:
    """Without TLS the same listener finds what it looks for, so with TLS it would have found it."""
    with Hosts(2) as hosts, Sniffer(hosts.space(NODE).replace("h", "v")) as wire:
        with cluster_of(hosts, is_tls=is_tls) as cluster:
            summary = cluster.run()
        token = cluster.token.encode()
    assert summary["clocks"] == JOB["clocks"] and summary["same_as_sequential"] is True
    assert wire.dropped == 0 and len(wire.seen) > 100_000
    found = {what for what in (token, b"learning_rate", b"raylet") if what in wire.seen}
    assert found == (set() if is_tls else {token, b"learning_rate", b"raylet"})


ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=2)
"""


@pytest.mark.parametrize("host_is", ["ours", "foreign", "in clear"])
def test_rays_own_client_sends_the_token_to_the_clusters_hosts_alone(tmp_path: Path, host_is: str) -> None:
    """A host that took the head's address over, and demands no certificate of others."""
    ip, token = own_address(), secrets.token_hex(32)
    ours = tls_variables(tmp_path / "ours", ip=ip)
    certificate_of = {"ours": ours, "foreign": tls_variables(tmp_path / "foreign", ip=ip), "in clear": None}
    variables = {**ours, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    variables["RAY_gcs_rpc_server_connect_timeout_s"] = "2"
    with refusing_head(certificate_of[host_is], demands=False, ip=ip) as (port, asked):
        done = subprocess.run(
            [sys.executable, "-c", ASK, f"{ip}:{port}"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert done.returncode != 0, "it answers nobody"
    assert any(token in line for line in asked.sent) == (host_is == "ours"), done.stderr
    assert bool(asked.sent) == (host_is == "ours")
