"""Certificates for tests of TLS: those of a stack's instances, for a host at an address of this computer."""

from __future__ import annotations

import time
from pathlib import Path

from bidbrain.aws.stack.authority import Authority


def tls_variables(folder: Path, authority: Authority | None = None, ip: str = "127.0.0.1") -> dict[str, str]:
    """Ray's variables for a host of an authority's cluster, of a new one if None; its files lie in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = authority or Authority.made("test", time.time())
    host = authority.issued(ip, time.time())
    files = {
        "RAY_TLS_CA_CERT": authority.certificate,
        "RAY_TLS_SERVER_CERT": host.certificate,
        "RAY_TLS_SERVER_KEY": host.key,
    }
    for variable, content in files.items():
        (folder / variable).write_bytes(content)
    return {"RAY_USE_TLS": "1", **{variable: str(folder / variable) for variable in files}}
