"""A machine in a process of its own, which may run in another network namespace: told by its parent over stdin."""

from __future__ import annotations

import base64
import pickle
import sys

from agileml.net.keys import KeyPair
from agileml.process.machine import Machine


def run() -> None:
    name, spec, node_ip, halves, head = pickle.loads(base64.b64decode(sys.stdin.readline()))  # noqa: S301  our parent
    machine = Machine(name, spec, spec.build(), node_ip, KeyPair(*halves), head)
    machine.start()
    print(base64.b64encode(pickle.dumps(machine.address)).decode(), flush=True)
    sys.stdin.read()  # until the parent closes it
    machine.stop()


if __name__ == "__main__":
    run()
