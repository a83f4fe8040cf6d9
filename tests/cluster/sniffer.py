"""Reads the packets of a network interface, where the kernel lets it."""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Self

EVERY_PROTOCOL = 3
SOL_PACKET, PACKET_STATISTICS, SO_RCVBUFFORCE = 263, 6, 33  # linux/if_packet.h, asm-generic/socket.h


class Sniffer:
    """Everything that crosses an interface while it is entered."""

    def __init__(self, device: str = "lo") -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        self._socket.bind((device, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 28)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.seen = bytearray()
        self.dropped = 0

    def _read(self) -> None:
        while not self._is_over.is_set():
            if select.select([self._socket], [], [], 0.1)[0]:
                self.seen += self._socket.recv(1 << 17)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        _, self.dropped = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self._socket.close()


def may_sniff() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError:
        return False
    return True
