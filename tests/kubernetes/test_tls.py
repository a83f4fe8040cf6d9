"""A Ray head with a pod's certificate, and what KubeRay's own init container asks it before a worker's Ray begins."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from bidbrain.aws.stack.authority import Authority
from bidbrain.kubernetes.certify import certify
from bidbrain.kubernetes.manifest import TLS_FOLDER, TLS_VARIABLES
from tests.cluster.started import own_address, started_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def pod(folder: Path, authority: Authority, names: tuple[str, ...] = ()) -> dict[str, str]:
    """Ray's variables in a pod whose init container has run."""
    folder.mkdir()
    certify(authority, own_address(), names, folder, time.time())
    return {name: value.replace(TLS_FOLDER, str(folder)) for name, value in TLS_VARIABLES.items()}


def test_a_worker_finds_the_head_by_the_name_of_its_service(tmp_path: Path) -> None:
    """By name and by address with a certificate of the cluster, and not at all with one of another."""
    authority, name = Authority.made("ray", time.time()), socket.gethostname()
    head = pod(tmp_path / "head", authority, (name,))
    with started_cluster([], variables=head, ip=own_address()) as cluster:
        address, port = cluster.address.split(":")
        cluster.environment |= pod(tmp_path / "worker", authority)
        for host in (name, address):
            done = cluster.ray("health-check", f"--address={host}:{port}")
            assert done.returncode == 0, done.stdout + done.stderr
        cluster.environment |= pod(tmp_path / "stranger", Authority.made("ray", time.time()))
        assert cluster.ray("health-check", f"--address={address}:{port}").returncode != 0
