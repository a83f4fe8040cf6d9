"""On a node of EC2, before its Ray starts: whether the head would let it join.

    python -m agileml.aws.joins --address 10.0.0.5:6379

Ray refuses a node of another version of Ray or Python, as after a `proteus aws up` from an environment that has a newer
one than the head was made from. systemd would start such a node's Ray again and again, and the machine would cost money
for nothing: so its boot ends here, and the shutdown that the user data set stays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from agileml.cluster.errors import ClusterError
from agileml.cluster.ray_cluster import check_alive, has_our_python, locate

LIMIT_S, AGAIN_S = 300.0, 5.0  # a head may be busy, or its network slow, for a while
ANSWER_S = 10.0


def check(address: str) -> None:
    """Raise ClusterError unless the head at `address` takes nodes of our versions with our token and certificate."""
    check_alive(*locate(address), ANSWER_S)
    has_our_python(address)


def wait(
    address: str,
    look: Callable[[str], None] = check,
    sleep: Callable[[float], None] = time.sleep,
    limit_s: float = LIMIT_S,
) -> None:
    """Look until the head would let us join. Raises the last ClusterError after `limit_s`."""
    waited_s = 0.0
    while True:
        try:
            return look(address)
        except ClusterError:
            if waited_s >= limit_s:
                raise
        sleep(AGAIN_S)
        waited_s += AGAIN_S


def main(arguments: list[str] | None = None) -> None:
    """The command line: ends with one sentence where this machine cannot join."""
    parser = argparse.ArgumentParser(description="Check whether this machine can join its head.")
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    try:
        wait(parser.parse_args(arguments).address)
    except ClusterError as error:
        sys.exit(f"this machine cannot join its head: {error}")


if __name__ == "__main__":
    main()
