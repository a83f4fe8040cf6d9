"""With Ray's TLS the token goes to a host that showed the cluster's certificate, and to no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest

from agileml.cluster.errors import ClusterError
from agileml.cluster.existing import check_alive
from agileml.cluster.tokens import authentication_as_before
from tests.cluster.certificates import tls_variables

TOKEN = "0123456789abcdef" * 4


class Asking(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A head that refuses everybody, and remembers what it was sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def service(self, call: Any) -> Any:
        self.sent += [f"{key}: {value}" for key, value in call.invocation_metadata]

        def refuse(_: bytes, context: Any) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")

        return grpc.unary_unary_rpc_method_handler(refuse)


@contextmanager
def head(certificate_of: Mapping[str, str] | None) -> Iterator[tuple[int, Asking]]:
    """(port, what it was sent) of such a head; None: without TLS."""
    asking = Asking()
    server = grpc.server(ThreadPoolExecutor(2), handlers=(asking,))
    if certificate_of is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        key, certificate = (
            Path(certificate_of[f"RAY_TLS_SERVER_{kind}"]).read_bytes() for kind in ("KEY", "CERT")
        )
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    try:
        yield port, asking
    finally:
        server.stop(0).wait()


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
    foreign = None if kind == "no certificate" else tls_variables(tmp_path / "foreign", "foreign")
    with (
        head(foreign) as (port, asking),
        pytest.raises(ClusterError, match="with a certificate of RAY_TLS_CA_CERT"),
    ):
        check_alive("127.0.0.1", port, 6.0)
    assert asking.sent == []


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
