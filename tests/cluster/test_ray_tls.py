"""Ray's own client over TLS: who gets the token."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.certificates import tls_variables
from tests.cluster.refusing_head import head as refusing_head
from tests.cluster.started import own_address

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LIMIT_S = 150.0
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
