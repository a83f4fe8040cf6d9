"""The buyer's service on the head of a stack, as a user of its own.

    python -m bidbrain.aws.buyer --stack demo --region us-east-1 --account 123456789012 --bucket BUCKET \\
        --host 10.0.0.5 --driver proteus --socket /run/proteus-buyer/socket --folder /var/lib/proteus-buyer
"""

from __future__ import annotations

import argparse
import os
import pwd
import resource
import signal
import threading
from pathlib import Path

from bidbrain.aws.buyer.buyer import Buyer, BuyerPlace
from bidbrain.aws.buyer.messages import CredentialsAre
from bidbrain.aws.buyer.server import LOOK_S, BuyerServer
from bidbrain.aws.calls import errors
from bidbrain.aws.clients import Aws, Clients
from bidbrain.aws.stack.names import Names
from bidbrain.live.unix_clock import UnixClock


def node_credentials(aws: Clients, names: Names) -> CredentialsAre:
    """Credentials of the node's role for an hour. Raises CloudError."""
    partition = names.pseudo_parameters["AWS::Partition"]
    role = f"arn:{partition}:iam::{names.account}:role/{names.node}"
    with errors(f"the role {names.node}"):
        found = aws.client("sts").assume_role(RoleArn=role, RoleSessionName="driver")["Credentials"]
    return CredentialsAre(
        found["AccessKeyId"],
        found["SecretAccessKey"],
        found["SessionToken"],
        found["Expiration"].isoformat(),
    )


def main(arguments: list[str] | None = None) -> None:
    """Serve until told to end. Instances that were bought stay: the next buyer goes on with them."""
    parser = argparse.ArgumentParser(description="Buy for the jobs of a stack, within its limits.")
    parser.add_argument("--stack", required=True)
    parser.add_argument("--region", required=True)
    parser.add_argument("--account", required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--host", required=True, help="this head's address inside the stack")
    parser.add_argument("--driver", required=True, help="the user whose processes may ask")
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--orphan-after", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--look-every", type=float, default=LOOK_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory has the credentials that may buy
    os.umask(0o077)
    names = Names(options.stack, options.region, options.account, options.bucket)
    aws = Aws(options.region)
    place = BuyerPlace(names, options.host, options.folder, options.orphan_after)
    buyer = Buyer(place, aws, UnixClock())
    uid = pwd.getpwnam(options.driver).pw_uid
    stopping = threading.Event()
    with BuyerServer(options.socket, uid, buyer, lambda: node_credentials(aws, names)) as server:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        signal.signal(signal.SIGINT, lambda *_: stopping.set())
        serving = threading.Thread(target=server.serve_forever, name="socket", daemon=True)
        serving.start()
        print(f"buys for the stack {names.stack} at {options.socket}", flush=True)
        server.look(stopping, options.look_every)
        server.shutdown()


if __name__ == "__main__":
    main()
