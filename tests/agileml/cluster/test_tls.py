"""With Ray's TLS the token goes to a host that showed the cluster's certificate, and to no other."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agileml.cluster.errors import ClusterError
from agileml.cluster.ray_cluster import check_alive
from agileml.cluster.tokens import authentication_as_before
from agileml.cluster.watchdog import WatchedHead
from tests.cluster.certificates import tls_variables
from tests.cluster.refusing_head import head

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """This process belongs to a cluster with TLS and a token."""
    variables = tls_variables(tmp_path / "cluster")
    with authentication_as_before():
        for name, value in {**variables, "RAY_AUTH_TOKEN": TOKEN}.items():
            monkeypatch.setenv(name, value)
        yield variables


def test_the_clusters_own_head_is_asked_with_the_token(cluster: dict[str, str]) -> None:
    with head(cluster) as (port, asking), pytest.raises(ClusterError, match="refuses the token"):
        check_alive("127.0.0.1", port, 300.0)  # it answers at once
    assert any(TOKEN in line for line in asking.sent)


@pytest.mark.parametrize("kind", ["another authority", "no certificate"])
def test_a_host_without_the_clusters_certificate_gets_no_token(
    cluster: dict[str, str], tmp_path: Path, kind: str
) -> None:
    foreign = None if kind == "no certificate" else tls_variables(tmp_path / "foreign")
    with (
        head(foreign, demands=False) as (port, asking),
        pytest.raises(ClusterError, match="with a certificate of RAY_TLS_CA_CERT"),
    ):
        check_alive("127.0.0.1", port, 6.0)
    assert asking.sent == []


def test_a_watchdog_hears_the_clusters_own_head_and_no_other(cluster: dict[str, str], tmp_path: Path) -> None:
    """Whoever took the head's address over does not keep a machine alive, and gets nothing from its watchdog."""
    authority = Path(cluster["RAY_TLS_CA_CERT"])
    for certificate_of in (cluster, tls_variables(tmp_path / "foreign"), None):
        with head(certificate_of) as (port, asking):
            is_ours = WatchedHead(f"127.0.0.1:{port}", authority).speaks(60)
            assert is_ours == (certificate_of is cluster) and asking.sent == []
    assert not WatchedHead(f"127.0.0.1:{port}", authority).speaks(0.2)
    with socket.create_server(("127.0.0.1", 0)) as stuck:  # the kernel accepts, nobody answers
        assert not WatchedHead(f"127.0.0.1:{stuck.getsockname()[1]}", authority).speaks(0.2)


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "expected RAY_TLS_SERVER_KEY too"), ("/none.pem", "RAY_TLS_SERVER_KEY: /none.pem cannot be read")],
)
def test_half_a_setting_is_one_sentence(
    cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", value)
    with head(cluster) as (port, _), pytest.raises(ClusterError, match=said):
        check_alive("127.0.0.1", port, 6.0)
