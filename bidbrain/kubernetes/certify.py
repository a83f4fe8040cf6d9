"""Issues a pod its own certificate before Ray starts in it, as its init container.

    python -m bidbrain.kubernetes.certify --authority /etc/proteus/authority --to /etc/proteus/tls --name ray-head-svc

The address is the pod's own (POD_IP): it exists only once the pod does, so no certificate can be made before. The
authority's private key is mounted into this container alone, which runs no code but ours and ends before Ray begins.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from bidbrain.aws.stack.authority import Authority, AuthorityError

AUTHORITY_FILE = "authority.pem"  # in the secret: a certificate and its private key
CERTIFICATE, KEY, CA = "tls.crt", "tls.key", "ca.crt"


def certify(authority: Authority, ip: str, names: tuple[str, ...], folder: Path, now_s: float) -> None:
    """Write the pod's certificate, its key (mode 0600) and the authority's certificate. Raises OSError."""
    host = authority.issued(ip, now_s, names)
    for name, content in ((CA, authority.certificate), (CERTIFICATE, host.certificate), (KEY, host.key)):
        path = folder / name
        path.unlink(missing_ok=True)  # of an earlier start of this container
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def main(arguments: list[str] | None = None, environment: Mapping[str, str] = os.environ) -> None:
    """The command line. Ends with one sentence where the secret or the address is none."""
    parser = argparse.ArgumentParser(description="Issue this pod a certificate.")
    parser.add_argument("--authority", required=True, type=Path)
    parser.add_argument("--to", required=True, type=Path)
    parser.add_argument("--name", action="append", default=[], help="a name that others reach the pod by")
    options = parser.parse_args(arguments)
    ip = environment.get("POD_IP", "")
    try:
        ip_address(ip)
    except ValueError:
        sys.exit(f"POD_IP: found {ip!r}, expected the address of this pod")
    try:
        authority = Authority.parsed((options.authority / AUTHORITY_FILE).read_text())
        certify(authority, ip, tuple(options.name), options.to, time.time())
    except AuthorityError as error:
        sys.exit(f"{options.authority}: {error}")
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
