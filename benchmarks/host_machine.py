"""What runs on a host of link_rig: one machine of the engine after the other, or a peer, as the parent says."""

from __future__ import annotations

import sys
from multiprocessing.connection import Client, Connection
from typing import Any

from agileml.net.keys import KeyPair
from agileml.process.machine import Machine


def serve(pipe: Connection) -> None:
    """Until the parent closes its end: (function, arguments), or a machine that runs until it is told to stop."""
    machine: Machine | None = None
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            break
        match what:
            case "machine":
                machine = start(*arguments)
                pipe.send(machine.address)
            case "bytes":
                assert machine is not None
                pipe.send(machine.bytes_sent())
            case "stop":
                if machine is not None:
                    machine.stop()
                machine = None
                pipe.send(None)
            case _:
                pipe.send(what(*arguments))


def start(name: str, spec: Any, node_ip: str, halves: tuple[bytes, bytes], head: Any) -> Machine:
    """A machine that serves. halves: of the run's keys."""
    machine = Machine(name, spec, spec.build(), node_ip, KeyPair(*halves), head)
    machine.start()
    return machine


if __name__ == "__main__":
    with Client(sys.argv[1], authkey=bytes.fromhex(sys.stdin.readline())) as connection:
        serve(connection)
