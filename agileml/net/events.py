"""Values that a transport hands out: addresses, received messages, found and lost peers, counts."""

import dataclasses

import numpy as np

from agileml.events.terms import Loss


@dataclasses.dataclass(frozen=True)
class Address:
    """The address of a process of the run. It holds no secret, so it may be passed on in any way.

    incarnation: a random number of one `Transport`; it drops messages for an earlier transport at the same port.
    files: tells the folder of `ipc` apart from one of the same name in another container of the host ("": not known).
    """

    name: str
    node_ip: str
    tcp: str
    ipc: str
    incarnation: int
    files: str = ""

    def sees_files_of(self, other: "Address") -> bool:
        """True where both have one node IP and the same files: containers that share their host's network do not."""
        return self.node_ip == other.node_ip and (not other.files or self.files == other.files)


@dataclasses.dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message arrived. Its arrays are bytes (uint8, one dimension); `Codec.decode` gives them dtype and shape.

    They may be read-only views of received frames, into which nothing else writes.
    """

    sender: str
    header: bytes
    arrays: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PeerConnected:
    """A peer answers, for the first time or again after a loss."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer does not answer. Reported once; the transport goes on trying, and PeerConnected reports its return."""

    name: str
    reason: Loss


Event = MessageReceived | PeerConnected | PeerLost


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Messages and their bytes (headers and arrays) to and from one peer, since the transport was opened."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    messages_dropped: int = 0  # given to `send` and not sent: queue full, peer lost


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counts since the transport was opened.

    dropped_unknown: calls of `send` for a name that is not connected. refused_handshakes: incoming connections without
    the run's key. torn: messages that a broken connection cut in the middle. malformed: input that is no message of
    this program. misaddressed: messages for another process.
    """

    peers: dict[str, Traffic]
    dropped_unknown: int
    refused_handshakes: int
    torn: int
    malformed: int
    misaddressed: int
