"""Prints credentials of the node's role as AWS' tools ask for them (`credential_process` in their config file).

    python -m bidbrain.aws.buyer.credentials /run/proteus-buyer/socket

On the head only root and the buyer reach the metadata service, whose credentials may buy. So everything else there, the
driver of a job and its user's code, works with what a machine that trains may do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bidbrain.aws.buyer.client import credentials_from
from bidbrain.live.cloud import CloudError


def main(arguments: list[str] | None = None) -> None:
    """The command line: the path of the socket."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    try:
        found = credentials_from(Path(path))
    except (CloudError, OSError) as error:
        sys.exit(f"the buyer at {path} gives no credentials: {error}")
    print(
        json.dumps(
            {
                "Version": 1,
                "AccessKeyId": found.key_id,
                "SecretAccessKey": found.secret,
                "SessionToken": found.token,
                "Expiration": found.expires,
            }
        )
    )


if __name__ == "__main__":
    main()
