"""Keeps all users of the head but root and the buyer from its metadata service, whose credentials may buy.

    runuser -u proteus -- python -m agileml.aws.metadata_guard

Run as the user that shall not reach it, this module exits with 1 if it does. A boot that cannot show that ends there:
the shutdown that the user data set stays, and no user's code ever runs on that head.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

ADDRESS, ADDRESS_V6, PORT = "169.254.169.254", "fd00:ec2::254", 80
TRY_S = 3.0


def commands(users: Sequence[str]) -> list[list[str]]:
    """nftables' rules: packets to the metadata service of users other than these are rejected, over IPv4 and IPv6."""
    others = ["meta", "skuid", "!=", "{", ", ".join(users), "}", "reject"]
    chain = ["inet", "proteus", "output"]
    return [
        ["nft", "add", "table", "inet", "proteus"],
        ["nft", "add", "chain", *chain, "{ type filter hook output priority 0 ; }"],
        ["nft", "flush", "chain", *chain],  # a second boot adds no rule twice
        ["nft", "add", "rule", *chain, "ip", "daddr", ADDRESS, *others],
        ["nft", "add", "rule", *chain, "ip6", "daddr", ADDRESS_V6, *others],
    ]


def check_command(python: str, user: str) -> list[str]:
    """Fails unless processes of `user` are kept away."""
    return ["runuser", "-u", user, "--", python, "-m", "agileml.aws.metadata_guard"]


def reaches(address: str = ADDRESS, port: int = PORT) -> bool:
    """Whether this process can connect to the metadata service."""
    try:
        socket.create_connection((address, port), TRY_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    if reaches():
        sys.exit(f"this user reaches the metadata service at {ADDRESS}, whose credentials may buy")
