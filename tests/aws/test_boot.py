"""What a machine of EC2 does when it starts, with moto's SSM and a stub of the metadata service."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography import x509
from ray._private.utils import check_version_info

from agileml.aws.boot import Installation, boot, service, watchdog_command
from agileml.aws.metadata_guard import ADDRESS, commands, reaches
from agileml.aws.preemption import watch
from bidbrain.aws.notices import ImdsNotices, Metadata
from bidbrain.aws.stack.authority import Authority, AuthorityError
from bidbrain.aws.stack.names import Names
from bidbrain.live.cloud import CloudError
from tests.aws.layer import REGION
from tests.aws.metadata import Metadata as Stub
from tests.aws.stack_rig import plain_aws

pytestmark = pytest.mark.aws

TOKEN = "0123456789abcdef" * 4
LOCAL = "/latest/meta-data/local-ipv4"
BUCKET = "proteus-boot-123456789012-us-east-1"
AUTHORITY = Authority.made("demo", time.time())


class Machine:
    """A machine that has just started: what it is told, and the commands that it would run."""

    def __init__(self, url: str, stub: Stub, folder: Path, stack: str, life: str) -> None:
        self._aws = plain_aws(url)
        self._names = Names(stack, REGION, bucket=BUCKET)
        self._metadata = Metadata(f"http://127.0.0.1:{stub.server_port}")
        stub.values |= {LOCAL: "10.0.0.9", "/latest/meta-data/instance-life-cycle": life}
        self.place = Installation("/opt/proteus/bin/python", folder / "home")
        self.commands: list[list[str]] = []
        self.slept_s = 0.0
        self.fails_at = ""  # a word of the command that ends with 1

    def _run(self, command: Sequence[str]) -> None:
        self.commands.append(list(command))
        if self.fails_at in command:
            raise subprocess.CalledProcessError(1, command)

    def _sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def boot(self, role: str) -> None:
        boot(
            role,
            self._names,
            300,
            self._aws,
            self._metadata,
            self._run,
            self.place,
            user=None,
            sleep=self._sleep,
        )

    def put(self, name: str, value: str, kind: str) -> None:
        self._aws.client("ssm").put_parameter(
            Name=f"/proteus/{self._names.stack}/{name}", Value=value, Type=kind
        )

    def may_join(self) -> None:
        """Put there what a node needs: its token, its authority and the address of its head."""
        self.put("ray-token", TOKEN, "SecureString")
        self.put("ray-authority", AUTHORITY.text(), "SecureString")
        self.put("head", "10.0.0.5", "String")


def command_of(line: list[str]) -> list[str]:
    return line[line.index("--") + 1 :] if "--" in line else line


def test_a_node(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-node", "spot")
    machine.may_join()
    machine.boot("node")
    watchdog, asks, ray, notices, end = machine.commands
    assert command_of(watchdog) == [
        "/opt/proteus/bin/python", "-m", "agileml.cluster.watchdog", "--shutdown", "--after=300",
        "--tls-head=10.0.0.5:6379", f"--authority={machine.place.authority}", "--head=10.0.0.5:6378",
    ]  # fmt: skip
    assert command_of(ray) == [
        "/opt/proteus/bin/ray", "start", "--block", "--address=10.0.0.5:6379", "--node-ip-address=10.0.0.9",
        "--labels=tier=transient,allocation=i-0abc,machine=i-0abc",
    ]  # fmt: skip
    assert command_of(notices)[-1] == "--address=10.0.0.5:6379"
    assert "--wait" in asks and command_of(asks) == [
        "/opt/proteus/bin/python", "-m", "agileml.aws.joins", "--address=10.0.0.5:6379"
    ]  # fmt: skip
    assert end == ["shutdown", "-c"], "only now the machine may stay"
    assert machine.place.token.read_text() == TOKEN
    words = [word for line in machine.commands for word in line]
    assert not any(TOKEN in word or "PRIVATE" in word for word in words)
    assert f"--setenv=AWS_DEFAULT_REGION={REGION}" in ray, "where the stack's bucket is"
    variables = ("--setenv=RAY_AUTH_MODE=token", "--setenv=RAY_USE_TLS=1")
    assert all(variable in line for variable in variables for line in (watchdog, asks, ray, notices))


def test_what_runs_as_root_imports_nothing_that_the_users_code_has_written(tmp_path: Path) -> None:
    """The watchdog, which starts again whenever it ends, was started in the home folder of Ray's user."""
    here = Installation(sys.executable, tmp_path)
    (tmp_path / "argparse.py").write_text("raise SystemExit('the code of a user')")
    line = service("watchdog", watchdog_command(here, "10.0.0.5", 300), here)
    words = [word for word in line if word.startswith("--working-directory=")]
    folder = words[0].partition("=")[2] if words else "/"  # as systemd has it
    python = command_of(line)[:3]
    done = subprocess.run(
        [*python, "--help"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "usage:" in done.stdout, done.stderr
    assert not [word for word in line if word.startswith("--setenv=HOME=")]


def test_a_machine_of_a_newer_image_joins_the_head_of_an_older_one(
    moto_url: str, metadata: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the next `up` may bring another patch release of Python, which Ray refuses if nobody says otherwise:
    the machine would cost money and never join."""
    machine = Machine(moto_url, metadata, tmp_path, "boot-patch", "spot")
    machine.may_join()
    machine.boot("node")
    ray = next(line for line in machine.commands if "--unit=proteus-ray" in line)
    for word in ray[: ray.index("--")]:
        name, _, value = word.removeprefix("--setenv=").partition("=")
        if word.startswith("--setenv=RAY_DEFAULT"):
            monkeypatch.setenv(name, value)
    major, minor, patch = sys.version_info[:3]
    head = {"ray_version": version("ray"), "python_version": f"{major}.{minor}.{patch + 1}"}
    check_version_info(head, "node 10.0.0.9")
    with pytest.raises(RuntimeError, match="Version mismatch"):
        check_version_info(head | {"python_version": f"{major}.{minor + 1}.0"}, "node 10.0.0.9")


def test_a_machine_has_a_certificate_for_its_own_address_and_nothing_to_make_others_with(
    moto_url: str, metadata: Stub, tmp_path: Path
) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-tls", "on-demand")
    machine.put("ray-token", TOKEN, "SecureString")
    machine.put("ray-authority", AUTHORITY.text(), "SecureString")
    machine.boot("head")
    place = machine.place
    files = sorted(place.home.iterdir())
    assert files == sorted([place.token, place.authority, place.certificate, place.key, place.aws_config])
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert place.authority.read_bytes() == AUTHORITY.certificate
    secret = AUTHORITY.key.splitlines()[1]
    assert not any(secret in file.read_bytes() for file in files)
    names = x509.load_pem_x509_certificate(place.certificate.read_bytes()).extensions
    addresses = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(ip) for ip in addresses.get_values_for_type(x509.IPAddress)] == ["10.0.0.9", "127.0.0.1"]
    said = {path for name, path in place.cluster_variables.items() if name.startswith("RAY_TLS")}
    assert said == {str(file) for file in files} - {str(place.token), str(place.aws_config)}


def test_a_machine_does_not_join_without_a_certificate(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-clear", "spot")
    machine.put("ray-token", TOKEN, "SecureString")
    machine.put("ray-authority", "theirs", "SecureString")
    with pytest.raises(AuthorityError, match="found 6 characters, expected the PEM"):
        machine.boot("node")
    assert not machine.commands and not machine.place.home.exists()


def test_the_head(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-head", "on-demand")
    machine.put("ray-token", TOKEN, "SecureString")
    machine.put("ray-authority", AUTHORITY.text(), "SecureString")
    machine.boot("head")
    ray, end = machine.commands[-2:]
    assert (
        "--dashboard-host=127.0.0.1" in ray and "--num-cpus=0" in ray and "--node-ip-address=10.0.0.9" in ray
    )
    assert end == ["shutdown", "-c"]


def test_the_head_keeps_the_right_to_buy_from_rays_user(
    moto_url: str, metadata: Stub, tmp_path: Path
) -> None:
    """The guard and its proof come before the buyer, and both before the first process that runs a user's code."""
    machine = Machine(moto_url, metadata, tmp_path, "boot-guard", "on-demand")
    machine.put("ray-token", TOKEN, "SecureString")
    machine.put("ray-authority", AUTHORITY.text(), "SecureString")
    machine.boot("head")
    said = [" ".join(command) for command in machine.commands]
    guards = [line for line in said if line.startswith("nft")]
    assert guards[-2:] == [
        "nft add rule inet proteus output ip daddr 169.254.169.254 meta skuid != { root, proteus-buyer } reject",
        "nft add rule inet proteus output ip6 daddr fd00:ec2::254 meta skuid != { root, proteus-buyer } reject",
    ]
    check = "runuser -u proteus -- /opt/proteus/bin/python -m agileml.aws.metadata_guard"
    buyer, ray = (
        next(line for line in said if f"--unit=proteus-{name} " in line) for name in ("buyer", "ray")
    )
    order = [said.index(line) for line in (guards[-1], check, buyer, ray)]
    assert order == sorted(order)
    assert "--uid=proteus-buyer" in buyer and "--driver=proteus" in buyer and "RAY_AUTH" not in buyer
    assert f"--bucket={BUCKET} " in buyer and "StateDirectoryMode=0700" in buyer
    config = machine.place.aws_config
    assert f"--setenv=AWS_CONFIG_FILE={config}" in ray and "--setenv=AWS_EC2_METADATA_DISABLED=true" in ray
    asked = "credential_process = /opt/proteus/bin/python -m bidbrain.aws.buyer.credentials "
    assert f"{asked}/run/proteus-buyer/socket\n" in config.read_text()


def test_a_head_whose_metadata_stays_open_is_no_head(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    """Nothing of a user's ever runs on it, and the shutdown that the user data set stays."""
    machine = Machine(moto_url, metadata, tmp_path, "boot-open", "on-demand")
    machine.put("ray-token", TOKEN, "SecureString")
    machine.put("ray-authority", AUTHORITY.text(), "SecureString")
    machine.fails_at = "runuser"
    with pytest.raises(subprocess.CalledProcessError):
        machine.boot("head")
    assert not any("systemd-run" in command or "shutdown" in command for command in machine.commands)
    port = metadata.server_port
    assert reaches("127.0.0.1", port), "what the check says where nothing keeps it away"


@pytest.mark.skipif(not shutil.which("nft") or os.geteuid() != 0, reason="needs root and nftables")
def test_the_guards_rules_in_a_kernel() -> None:
    """In a network of its own: root and the buyer reach the address, another user does not."""
    users = ("root", "bin")
    rules = "\n".join(shlex.join(command) for command in commands(users))
    tries = "\n".join(
        f"runuser -u {user} -- bash -c '</dev/tcp/{ADDRESS}/80' 2>/dev/null && echo {user} reaches it"
        for user in (*users, "daemon")
    )
    script = f"""
ip link set lo up; ip address add {ADDRESS}/32 dev lo
{sys.executable} -m http.server --bind {ADDRESS} 80 >/dev/null 2>&1 &
until {sys.executable} -c 'import socket; socket.create_connection(("{ADDRESS}", 80))' 2>/dev/null; do :; done
{rules}
{tries}
kill %1
"""
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.splitlines() == [f"{user} reaches it" for user in users], done.stderr


def test_reliable_by_its_life_cycle(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-reliable", "on-demand")
    machine.may_join()
    machine.boot("node")
    assert any("--labels=tier=reliable,allocation=i-0abc,machine=i-0abc" in line for line in machine.commands)


def test_a_machine_waits_for_its_metadata_service(
    moto_url: str, metadata: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(moto_url, metadata, tmp_path, "boot-late", "spot")
    machine.may_join()
    there = {LOCAL: metadata.values.pop(LOCAL)}
    monkeypatch.setattr(machine, "_sleep", lambda seconds: metadata.values.update(there))
    machine.boot("node")
    assert machine.commands[-1] == ["shutdown", "-c"]


def test_a_machine_that_its_head_does_not_let_join_ends(
    moto_url: str, metadata: Stub, tmp_path: Path
) -> None:
    """As one with another version of Ray: the shutdown that the user data set is not taken back."""
    machine = Machine(moto_url, metadata, tmp_path, "boot-refused", "spot")
    machine.may_join()
    machine.fails_at = "--unit=proteus-joins"
    with pytest.raises(subprocess.CalledProcessError):
        machine.boot("node")
    said = [" ".join(command) for command in machine.commands]
    assert "proteus-watchdog" in said[0], "it ends with its head all the same"
    assert not any("ray start" in line or line == "shutdown -c" for line in said)


def test_a_machine_that_cannot_join_ends(moto_url: str, metadata: Stub, tmp_path: Path) -> None:
    """The token never comes: the shutdown that the user data set is not taken back."""
    machine = Machine(moto_url, metadata, tmp_path, "boot-never", "spot")
    with pytest.raises(CloudError, match="ParameterNotFound"):
        machine.boot("node")
    assert machine.slept_s >= 600
    assert ["shutdown", "-c"] not in machine.commands


def test_ray_knows_our_options() -> None:
    """`ray start` refuses options that it does not know before anything else."""
    from ray.scripts.scripts import start

    from agileml.aws.boot import InstanceIdentity, head_command, node_command

    known = {name for option in start.params for name in option.opts}
    me = InstanceIdentity("i-1", "10.0.0.9", True)
    for command in (head_command(Installation(), me), node_command(Installation(), me, "10.0.0.5")):
        assert {word.partition("=")[0] for word in command[2:]} <= known


def test_an_interruption_is_told_to_ray_until_it_listens(metadata: Stub) -> None:
    metadata.values["/latest/meta-data/spot/instance-action"] = (
        '{"action": "terminate", "time": "2026-05-01T12:02:00Z"}'
    )
    answers = [False, True]
    told: list[list[str]] = []

    def ray(command: list[str]) -> bool:
        told.append(command)
        return answers.pop(0)

    now_s = iter([1777636800.0, 1777636805.0])  # 12:00:00 and 12:00:05
    source = ImdsNotices(f"http://127.0.0.1:{metadata.server_port}")
    notice = watch(source, "10.0.0.5:6379", ray, sleep=lambda _: None, now_s=lambda: next(now_s))
    assert notice.instance_id == "i-0abc"
    assert [line[-1] for line in told] == [
        "--deadline-remaining-seconds=120",
        "--deadline-remaining-seconds=115",
    ]
    assert "--reason=DRAIN_NODE_REASON_PREEMPTION" in told[0]
