"""Ray's TLS as the user's environment sets it up: a host shows the cluster's certificate before it gets a token.

Ray reads the same variables (RAY_USE_TLS, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT) in every process of
a cluster. This module serves the calls that we make before Ray starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agileml.cluster.errors import ClusterError

FILES = ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT")


def uses_tls() -> bool:
    """Whether this process's Ray talks TLS."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def channel(where: str, options: list[tuple[str, int]]) -> Any:
    """A gRPC channel to host:port, as Ray would open it: with TLS both ends show a certificate. Raises ClusterError."""
    import grpc  # type: ignore[import-untyped]

    if not uses_tls():
        return grpc.insecure_channel(where, options=options)
    key, certificate, authority = (_read(variable) for variable in FILES)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(where, credentials, options=options)


def _read(variable: str) -> bytes:
    path = os.environ.get(variable)
    if not path:
        raise ClusterError(f"RAY_USE_TLS: found it set, expected {variable} too, which names a file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ClusterError(
            f"{variable}: {path} cannot be read ({error.strerror}), expected a PEM file"
        ) from None
