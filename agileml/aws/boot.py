"""The first thing of ours that runs on a machine of EC2, as root, from its user data: it joins or begins the cluster.

    python -m agileml.aws.boot node --stack demo --region us-east-1 --bucket BUCKET --orphan-after 300

On the head, besides root, two users run programs: `proteus` runs Ray and so the user's code, `proteus-buyer` the
process that buys. Only root and the buyer reach the metadata service, whose credentials may buy (`metadata_guard`); for
all else the buyer gives credentials of the node's role.

The cluster's token and the authority of its certificates come from SSM by the machine's role. The machine issues itself
a certificate for its own address and forgets the authority's private key; the token and its own key are in files that
only Ray's user reads. So Ray's processes talk TLS, and send the token to no host that has not shown a certificate of
the same authority. The watchdog starts before Ray. The user data begin with a scheduled shutdown, which is cancelled
once everything runs. Ray and the watchers are services of systemd: they restart, and their output is in the journal
(`journalctl -u 'proteus-*'`).
"""

from __future__ import annotations

import argparse
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agileml.aws import metadata_guard
from agileml.cluster.watchdog import LIVENESS_PORT
from bidbrain.aws.buyer.messages import SOCKET
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.notices import IMDS, Metadata
from bidbrain.aws.stack.authority import Authority
from bidbrain.aws.stack.names import Names
from bidbrain.live.cloud import CloudError

USER, BUYER = "proteus", "proteus-buyer"
HOME = Path("/var/lib/proteus")
BUYER_FOLDER = Path("/var/lib/proteus-buyer")  # mode 0700: systemd makes it, and the folder of the socket
BUYER_SOCKET = Path("/run/proteus-buyer/socket")
GCS_PORT = 6379
DASHBOARD_PORT = 8265
TRY_S, TRY_EVERY_S = 600.0, 5.0
# A raylet that died is found dead after about a second (Ray's own default: 15 s).
HEALTH_CHECK = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 2000, "failure_threshold": 3}
# A newer image has a newer Python 3.11 than the head, which goes on: Ray would not let such a machine join.
ANY_PATCH = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
# AWS' library gives up the metadata service, which has the machine's credentials, after one try of a second.
PATIENCE = {"AWS_METADATA_SERVICE_TIMEOUT": "5", "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "4"}

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
    def aws_config(self) -> Path:
        """The file by which AWS' tools on the head ask the buyer for credentials; it holds no secret."""
        return self.home / "aws-config"

    @property
    def head_variables(self) -> dict[str, str]:
        """For Ray's processes on the head, the drivers of jobs among them."""
        return {
            SOCKET: str(BUYER_SOCKET),
            "AWS_CONFIG_FILE": str(self.aws_config),
            "AWS_EC2_METADATA_DISABLED": "true",
        }

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


def first_identity(
    metadata: Metadata, sleep: Callable[[float], None], limit_s: float = TRY_S
) -> InstanceIdentity:
    """This instance as soon as its metadata service answers, which may be late on one that has just started. Raises
    OSError after `limit_s`."""
    waited_s = 0.0
    while True:
        try:
            return identity(metadata)
        except OSError:
            if waited_s >= limit_s:
                raise
        sleep(TRY_EVERY_S)
        waited_s += TRY_EVERY_S


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
    """Ends this machine when the head, or the driver of the market on it, sends nothing for too long."""
    gcs = (f"--tls-head={head}:{GCS_PORT}", f"--authority={here.authority}")
    heads = (*gcs, f"--head={head}:{LIVENESS_PORT}")
    return [here.python, "-m", "agileml.cluster.watchdog", "--shutdown", f"--after={after_s}", *heads]


def notice_command(here: Installation, head: str) -> list[str]:
    """Passes on interruption notices of the metadata service to Ray."""
    return [here.python, "-m", "agileml.aws.preemption", f"--address={head}:{GCS_PORT}"]


def joins_command(here: Installation, head: str) -> list[str]:
    """Fails where the head would not let this machine's Ray join."""
    return [here.python, "-m", "agileml.aws.joins", f"--address={head}:{GCS_PORT}"]


def aws_config(here: Installation, names: Names) -> bytes:
    """Has AWS' tools on the head ask the buyer for credentials."""
    asked = f"{here.python} -m bidbrain.aws.buyer.credentials {BUYER_SOCKET}"
    return f"[default]\nregion = {names.region}\ncredential_process = {asked}\n".encode()


def buyer_command(here: Installation, me: InstanceIdentity, names: Names, after_s: int) -> list[str]:
    """Buys for the jobs whose drivers are processes of Ray's user."""
    return [
        *(here.python, "-m", "bidbrain.aws.buyer", f"--stack={names.stack}", f"--region={names.region}"),
        *(f"--account={names.account}", f"--bucket={names.bucket}", f"--host={me.ip}", f"--driver={USER}"),
        *(f"--socket={BUYER_SOCKET}", f"--folder={BUYER_FOLDER}", f"--orphan-after={after_s}"),
    ]


# Folders of its own, no way to more rights, nothing of its memory on disk.
BUYER_PROPERTIES = (
    *("RuntimeDirectory=proteus-buyer", "StateDirectory=proteus-buyer", "StateDirectoryMode=0700"),
    *("NoNewPrivileges=yes", "PrivateTmp=yes", "ProtectHome=yes", "LimitCORE=0"),
)


def buyer_service(command: Sequence[str], here: Installation) -> list[str]:
    """The buyer as a service of a user of its own, without the cluster's token and key."""
    return [
        *("systemd-run", "--unit=proteus-buyer", "--property=Restart=always", "--property=RestartSec=5"),
        *(f"--property={each}" for each in BUYER_PROPERTIES),
        *(
            f"--uid={BUYER}",
            f"--setenv=PATH={Path(here.python).parent}:/usr/bin",
            "--setenv=PYTHONUNBUFFERED=1",
            *(f"--setenv={key}={value}" for key, value in PATIENCE.items()),
        ),
        *("--", *command),
    ]


def service(
    name: str,
    command: Sequence[str],
    here: Installation,
    user: str | None = None,
    more: Mapping[str, str] | None = None,
    *,
    once: bool = False,
) -> list[str]:
    """A command as a service of systemd that is restarted when it ends. Raises nothing; holds no secret. more:
    variables of its environment. once: it is waited for instead, and its exit status counts.

    One of root works in `/`: Python imports from the folder that it is started in, and the user's code, which runs as
    `user`, may write in the home folder.
    """
    variables = {
        **here.cluster_variables,
        **(more or {}),
        **ANY_PATCH,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        **({"HOME": str(here.home)} if user else {}),
        "PATH": f"{Path(here.python).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        **{f"RAY_health_check_{key}": str(value) for key, value in HEALTH_CHECK.items()},
    }
    life = ("--wait",) if once else ("--property=Restart=always", "--property=RestartSec=5")
    return [
        *("systemd-run", f"--unit=proteus-{name}", *life, "--property=LimitNOFILE=65536"),
        *((f"--working-directory={here.home}", f"--uid={user}") if user else ()),
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
    me = first_identity(metadata, sleep)
    if user is not None:
        _add(user, here.home, run)
    token = parameter(aws, names.token, sleep)
    authority = Authority.parsed(parameter(aws, names.authority, sleep))
    keep(credentials(token, authority, me, here, now_s()), here, user)
    if role == "head":
        keep({here.aws_config: aws_config(here, names)}, here, user)
        with errors("whose the stack is"):
            account = str(aws.client("sts").get_caller_identity()["Account"])
        _add(BUYER, BUYER_FOLDER, run)
        for command in metadata_guard.commands(("root", BUYER)):
            run(command)
        run(metadata_guard.check_command(here.python, USER))
        run(buyer_service(buyer_command(here, me, replace(names, account=account), after_s), here))
        run(service("ray", head_command(here, me), here, user, here.head_variables))
    else:
        head = parameter(aws, names.address, sleep)
        run(service("watchdog", watchdog_command(here, head, after_s), here))
        run(service("joins", joins_command(here, head), here, user, once=True))
        # The bucket's region, as checkpoints and data find it: the metadata service's own is none to AWS' library.
        variables = {"AWS_DEFAULT_REGION": names.region, **PATIENCE}
        run(service("ray", node_command(here, me, head), here, user, variables))
        run(service("notices", notice_command(here, head), here, user))
    run(["shutdown", "-c"])


def _add(user: str, home: Path, run: Run) -> None:
    """A user of the system who cannot log in, unless there is one."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        run(["useradd", "--system", "--home-dir", str(home), "--shell", "/usr/sbin/nologin", user])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main(arguments: list[str] | None = None) -> None:
    """The command line of a machine's start."""
    parser = argparse.ArgumentParser(description="Join or begin the cluster of a stack.")
    parser.add_argument("role", choices=("head", "node"))
    parser.add_argument("--stack", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--orphan-after", type=int, required=True, metavar="SECONDS")
    options = parser.parse_args(arguments)
    names = Names(options.stack, options.region, bucket=options.bucket)
    boot(options.role, names, options.orphan_after, Aws(options.region), Metadata(IMDS), _run, Installation())


if __name__ == "__main__":
    main()
