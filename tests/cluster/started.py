"""Clusters that `ray start` began, with a token: what a user's own cluster is to us."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from agileml.cluster.local import START_TRIES
from agileml.cluster.processes import kill
from agileml.cluster.watchdog import KEEP_ENVIRONMENT

BIN = Path(sys.executable).parent


@dataclass
class Started:
    """A cluster from the command line, with a token. `dashboard`: its http address, "" without one."""

    address: str
    dashboard: str
    environment: dict[str, str]
    folder: Path

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "ray"), *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip

    def start(self, *arguments: str) -> None:
        """Start a node. Ray gives it 30 s to register, and on a busy host that may take another try."""
        before = set(processes_with(self.folder))
        for left in reversed(range(START_TRIES)):
            done = self.ray("start", "--disable-usage-stats", *arguments)
            if done.returncode == 0:
                return
            kill([process for process in processes_with(self.folder) if process not in before])
            assert left, done.stdout + done.stderr

    def proteus(self, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "agileml.cli", *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip

    @property
    def home(self) -> Path:
        """The home folder of the cluster's processes."""
        return Path(self.environment["HOME"])


def own_address() -> str:
    """An IPv4 address of this computer that is not on loopback, 127.0.0.1 where it has none."""
    every = (each for found in psutil.net_if_addrs().values() for each in found)
    found = [each.address for each in every if each.family is socket.AF_INET]
    return next((ip for ip in found if not ip.startswith(("127.", "169.254."))), "127.0.0.1")


def free_port() -> int:
    """A port that nothing takes before Ray does: its workers use those below, the system gives out those above."""
    while True:
        port = secrets.randbelow(12_000) + 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def started_cluster(
    tiers: Sequence[str],
    *,
    dashboard: bool = False,
    variables: Mapping[str, str] | None = None,
    ip: str = "127.0.0.1",
) -> Iterator[Started]:
    """A head and a node of each tier; nothing of it is left at the end. `variables`: more of the environment. `ip`: the
    address of this computer that its nodes have."""
    with tempfile.TemporaryDirectory(prefix="pt-", dir="/tmp") as name:
        folder = Path(name)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        home = folder / "home"
        home.mkdir()
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_TMPDIR": str(folder),
            "HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            KEEP_ENVIRONMENT: "1",  # it is how `kill_all_of` knows them
            **(variables or {}),
        }
        port, dashboard_port = free_port(), free_port()
        url = f"http://127.0.0.1:{dashboard_port}" if dashboard else ""
        cluster = Started(f"{ip}:{port}", url, environment, folder)
        try:
            with_dashboard = (
                [f"--dashboard-port={dashboard_port}"] if dashboard else ["--include-dashboard=false"]
            )
            cluster.start(
                "--head", f"--port={port}", "--num-cpus=0", f"--node-ip-address={ip}",
                f"--temp-dir={folder}", f"--dashboard-agent-listen-port={free_port()}", *with_dashboard,
            )  # fmt: skip
            for tier in tiers:
                cluster.start(
                    f"--address={cluster.address}", "--num-cpus=1", f"--labels=tier={tier}",
                    f"--node-ip-address={ip}", "--dashboard-agent-listen-port=0",
                )  # fmt: skip
            yield cluster
        finally:
            kill_all_of(folder)


def kill_all_of(folder: Path) -> None:
    """End every process that was started with this folder for Ray's files, and those that they start meanwhile."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if not (found := list(processes_with(folder))):
            return
        kill(found, timeout_s=1)


def processes_with(folder: Path) -> Iterator[psutil.Process]:
    """Every process that was started with this folder for Ray's files."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == str(folder):
                yield process


def best_s(action: Callable[[], Any], limit_s: float) -> float:
    """Seconds that the fastest of up to five calls takes: a busy computer may hold up any one of them."""
    took_s = []
    while len(took_s) < 5 and min(took_s, default=limit_s) >= limit_s:
        began_s = time.monotonic()
        action()
        took_s.append(time.monotonic() - began_s)
    return min(took_s)
