"""A head of nobody's cluster, with a certificate of whatever authority, that notes what it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]


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
def head(
    certificate_of: Mapping[str, str] | None, *, demands: bool = True, ip: str = "127.0.0.1"
) -> Iterator[tuple[int, Asking]]:
    """(port, what it was sent) of such a head; None: without TLS. demands: the other end's certificate, as Ray does."""
    asking = Asking()
    server = grpc.server(ThreadPoolExecutor(2), handlers=(asking,))
    if certificate_of is None:
        port = server.add_insecure_port(f"{ip}:0")
    else:
        names = ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT")
        key, certificate, authority = (Path(certificate_of[name]).read_bytes() for name in names)
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], authority, require_client_auth=demands
        )
        port = server.add_secure_port(f"{ip}:0", credentials)
    server.start()
    try:
        yield port, asking
    finally:
        server.stop(0).wait()
