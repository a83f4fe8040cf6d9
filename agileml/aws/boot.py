"""The first thing of ours that runs on a machine of EC2, as root, from its user data: it joins or begins the cluster.

    python -m agileml.aws.boot node --stack demo --region us-east-1 --orphan-after 300

The cluster's token and the authority of its certificates come from SSM by the machine's role. The machine issues itself
a certificate for its own address and forgets the authority's private key; the token and its own key are in files that
only Ray's user reads. So Ray's processes talk TLS, and send the token to no host that has not shown a certificate of
the same authority. A node's watchdog is there before Ray is, and only when all of it runs is the shutdown taken back
that the user data began with. Ray and the watchers are services of systemd: they restart, and their output is in the
journal (`journalctl -u 'proteus-*'`).
"""

from __future__ import annotations

import argparse
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.cluster.watchdog import LIVENESS_PORT
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.notices import IMDS, Metadata
from bidbrain.aws.stack.authority import Authority
from bidbrain.aws.stack.names import Names
from bidbrain.live.cloud import CloudError

USER = "proteus"
HOME = Path("/var/lib/proteus")
GCS_PORT = 6379
DASHBOARD_PORT = 8265
TRY_S, TRY_EVERY_S = 600.0, 5.0
# A raylet that died is found dead after about a second (Ray's own default: 15 s).
HEALTH_CHECK = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 2000, "failure_threshold": 3}

Run = Callable[[Sequence[str]], None]
Files = Mapping[Path, bytes]


@dataclass(frozen=True)
class InstanceIdentity:
    """This instance as its metadata service describes it."""

    instance_id: str
    ip: str
    is_spot: bool


@dataclass(frozen=True)
class Installation:
    """The installed package and its files on this instance. python: the interpreter that has the package."""

    python: str = sys.executable
    home: Path = HOME

    @property
    def token(self) -> Path:
        return self.home / "token"

    @property
    def authority(self) -> Path:
        """The certificate of the cluster's authority, without its key."""
        return self.home / "authority.pem"

    @property
    def certificate(self) -> Path:
        return self.home / "certificate.pem"

    @property
    def key(self) -> Path:
        """The private key of this instance's certificate."""
        return self.home / "key.pem"

    @property
    def cluster_variables(self) -> dict[str, str]:
        """With these in its environment a process of Ray's joins the stack's cluster; they hold no secret."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_USE_TLS": "1",
            "RAY_TLS_CA_CERT": str(self.authority),
            "RAY_TLS_SERVER_CERT": str(self.certificate),
            "RAY_TLS_SERVER_KEY": str(self.key),
        }

    @property
    def ray(self) -> str:
        return str(Path(self.python).with_name("ray"))


def identity(metadata: Metadata) -> InstanceIdentity:
    """Raises OSError where there is no metadata service."""
    found = [metadata.get(path) for path in ("instance-id", "local-ipv4", "instance-life-cycle")]
    if found[0] is None or found[1] is None:
        raise OSError("the metadata service knows neither this machine's id nor its address")
    return InstanceIdentity(found[0], found[1], found[2] == "spot")


def head_command(here: Installation, me: InstanceIdentity) -> list[str]:
    """Ray's head: dashboard and job port on loopback, the rest inside the security group. It does no work."""
    return [
        *(here.ray, "start", "--head", "--block", f"--node-ip-address={me.ip}", f"--port={GCS_PORT}"),
        *("--num-cpus=0", "--num-gpus=0", "--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD_PORT}"),
    ]


def node_command(here: Installation, me: InstanceIdentity, head: str) -> list[str]:
    """A machine that joins: labelled with its tier, and with its id as EC2 calls it."""
    tier = "transient" if me.is_spot else "reliable"
    labels = f"tier={tier},allocation={me.instance_id},machine={me.instance_id}"
    address = f"--address={head}:{GCS_PORT}"
    return [here.ray, "start", "--block", address, f"--node-ip-address={me.ip}", f"--labels={labels}"]


def watchdog_command(here: Installation, head: str, after_s: int) -> list[str]:
    """Ends this machine when the head, or who drives the market on it, is silent."""
    gcs = (f"--tls-head={head}:{GCS_PORT}", f"--authority={here.authority}")
    heads = (*gcs, f"--head={head}:{LIVENESS_PORT}")
    return [here.python, "-m", "agileml.cluster.watchdog", "--shutdown", f"--after={after_s}", *heads]


def notice_command(here: Installation, head: str) -> list[str]:
    """Tells Ray what the metadata service says of an interruption."""
    return [here.python, "-m", "agileml.aws.preemption", f"--address={head}:{GCS_PORT}"]


def service(name: str, command: Sequence[str], here: Installation, user: str | None = None) -> list[str]:
    """A command as a service of systemd that is restarted when it ends. Raises nothing; holds no secret."""
    variables = {
        **here.cluster_variables,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(here.home),
        "PATH": f"{Path(here.python).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        **{f"RAY_health_check_{key}": str(value) for key, value in HEALTH_CHECK.items()},
    }
    return [
        *("systemd-run", f"--unit=proteus-{name}", "--property=Restart=always", "--property=RestartSec=5"),
        *("--property=LimitNOFILE=65536", f"--working-directory={here.home}"),
        *((f"--uid={user}",) if user else ()),
        *(f"--setenv={key}={value}" for key, value in variables.items()),
        "--",
        *command,
    ]


def parameter(aws: Clients, name: str, sleep: Callable[[float], None], limit_s: float = TRY_S) -> str:
    """A value from SSM, asked for until it is there: rights and values of a new stack take a while to arrive."""
    waited_s = 0.0
    while True:
        try:
            with errors(f"parameter {name}"):
                answer: Any = aws.client("ssm").get_parameter(Name=name, WithDecryption=True)
                return str(answer["Parameter"]["Value"])
        except CloudError:
            if waited_s >= limit_s:
                raise
        sleep(TRY_EVERY_S)
        waited_s += TRY_EVERY_S


def credentials(
    token: str, authority: Authority, me: InstanceIdentity, here: Installation, now_s: float
) -> Files:
    """The files by which this instance joins the cluster; the authority's private key is in none of them."""
    host = authority.issued(me.ip, now_s)
    return {
        here.token: token.encode(),
        here.authority: authority.certificate,
        here.certificate: host.certificate,
        here.key: host.key,
    }


def keep(files: Files, here: Installation, user: str | None) -> None:
    """Write files of mode 0600 that belong to Ray's user."""
    here.home.mkdir(mode=0o755, parents=True, exist_ok=True)
    for path, content in files.items():
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    if user is not None:
        entry = pwd.getpwnam(user)
        for path in (here.home, *files):
            os.chown(path, entry.pw_uid, entry.pw_gid)


def boot(
    role: str,
    names: Names,
    after_s: int,
    aws: Clients,
    metadata: Metadata,
    run: Run,
    here: Installation,
    *,
    user: str | None = USER,
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.time,
) -> None:
    """Join or begin the cluster.

    Raises CloudError, AuthorityError, OSError, CalledProcessError: the set shutdown stays then.
    """
    me = identity(metadata)
    if user is not None and not _exists(user):
        run(["useradd", "--system", "--home-dir", str(here.home), "--shell", "/usr/sbin/nologin", user])
    token = parameter(aws, names.token, sleep)
    authority = Authority.parsed(parameter(aws, names.authority, sleep))
    keep(credentials(token, authority, me, here, now_s()), here, user)
    if role == "head":
        run(service("ray", head_command(here, me), here, user))
    else:
        head = parameter(aws, names.address, sleep)
        run(service("watchdog", watchdog_command(here, head, after_s), here))
        run(service("ray", node_command(here, me, head), here, user))
        run(service("notices", notice_command(here, head), here, user))
    run(["shutdown", "-c"])


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main(arguments: list[str] | None = None) -> None:
    """The command line of a machine's start."""
    parser = argparse.ArgumentParser(description="Join or begin the cluster of a stack.")
    parser.add_argument("role", choices=("head", "node"))
    parser.add_argument("--stack", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--orphan-after", type=int, required=True, metavar="SECONDS")
    options = parser.parse_args(arguments)
    names = Names(options.stack, options.region)
    boot(options.role, names, options.orphan_after, Aws(options.region), Metadata(IMDS), _run, Installation())


if __name__ == "__main__":
    main()
