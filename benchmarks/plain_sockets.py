"""What links and this machine can do at best: plain TCP sockets, everybody to everybody, a thread for each way of each.

It does to the links what a clock of the traditional layout does, with nothing to encrypt, add up or wait for.
"""

from __future__ import annotations

import socket
import threading
import time

PORT = 29600
CHUNK_BYTES = 1 << 18


def exchange(addresses: list[str], bytes_each: int, rounds: int, rank: int) -> float:
    """Send `bytes_each` to every other host and receive as much from each, so many times; seconds of one round."""
    others = [address for other, address in enumerate(addresses) if other != rank]
    with socket.create_server((addresses[rank], PORT), backlog=len(others)) as server:
        sending = [_connected(address) for address in others]
        receiving = [server.accept()[0] for _ in others]
    threads = [threading.Thread(target=_receive, args=(each, bytes_each * rounds)) for each in receiving]
    threads += [threading.Thread(target=_send, args=(each, bytes_each, rounds)) for each in sending]
    begin_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = (time.monotonic() - begin_s) / rounds
    for each in (*sending, *receiving):
        each.close()
    return seconds


def _connected(address: str) -> socket.socket:
    """Try until the other one listens."""
    until_s = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=None)
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _receive(connection: socket.socket, left: int) -> None:
    buffer = bytearray(CHUNK_BYTES)
    while left:
        got = connection.recv_into(buffer)
        if not got:
            raise ConnectionError("a host went away in the middle")
        left -= got


def _send(connection: socket.socket, count: int, rounds: int) -> None:
    data = bytes(count)
    for _ in range(rounds):
        connection.sendall(data)
