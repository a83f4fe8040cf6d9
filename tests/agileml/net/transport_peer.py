"""A peer in a process of its own, for the tests of the transport: sends everything back, and does as it is told.

Usage: transport_peer.py NAME NODE_IP IPC_FOLDER, and on stdin, pickled: both halves of the keys, addresses to connect
to. Prints its own address, pickled. Headers that it obeys instead of sending back: b"hold SECONDS" (keep the GIL, as a
computing thread would), b"quit".
"""

import base64
import ctypes
import pickle
import sys
from pathlib import Path

from agileml.net.events import MessageReceived
from agileml.net.keys import KeyPair
from agileml.net.transport import Transport


def main() -> None:
    name, node_ip, folder = sys.argv[1:]
    halves, addresses = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301  our own test
    keys = None if halves is None else KeyPair(*halves)
    with Transport(
        name, node_ip=node_ip, ipc_folder=Path(folder), keys=keys, curve=keys is not None
    ) as transport:
        for address in addresses:
            transport.connect(address)
        print(base64.b64encode(pickle.dumps(transport.address)).decode(), flush=True)
        while True:
            for event in transport.receive(None):
                if not isinstance(event, MessageReceived):
                    continue
                if event.header == b"quit":
                    return
                if event.header.startswith(b"hold "):
                    transport.send(event.sender, b"holding")
                    libc = ctypes.PyDLL(None)  # calls through it keep the GIL
                    libc.usleep(int(float(event.header[5:]) * 1e6))
                    transport.send(event.sender, b"held")
                else:
                    transport.send(event.sender, event.header, event.arrays)


if __name__ == "__main__":
    main()
