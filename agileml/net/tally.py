"""Counts of a transport: messages and bytes per peer, and everything that was dropped or refused."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from agileml.net.events import Counters, Traffic


class Tally:
    """Mutable counts; `counters` returns them as a frozen value."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self.refused_handshakes = 0
        self.dropped_unknown = 0
        self.torn = 0
        self.malformed = 0
        self.misaddressed = 0

    def sent(self, name: str, header_bytes: int, arrays: Sequence[np.ndarray]) -> None:
        peer = self._peer(name)
        peer.messages_sent += 1
        peer.bytes_sent += header_bytes + sum(array.nbytes for array in arrays)

    def received(self, name: str, message_bytes: int) -> None:
        peer = self._peer(name)
        peer.messages_received += 1
        peer.bytes_received += message_bytes

    def dropped(self, name: str, messages: int) -> None:
        self._peer(name).messages_dropped += messages

    def refused(self, handshakes: int) -> None:
        self.refused_handshakes += handshakes

    def leave(self, name: str) -> None:
        """Drop the counts of a peer that never comes back."""
        self._peers.pop(name, None)

    def counters(self) -> Counters:
        return Counters(
            {name: Traffic(**dataclasses.asdict(peer)) for name, peer in sorted(self._peers.items())},
            self.dropped_unknown,
            self.refused_handshakes,
            self.torn,
            self.malformed,
            self.misaddressed,
        )

    def _peer(self, name: str) -> "_Peer":
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer()
        return peer


@dataclasses.dataclass(slots=True)
class _Peer:
    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    messages_dropped: int = 0
