"""What a transport hands out: addresses, what was received, who was lost, counts."""

import dataclasses
import enum

import numpy as np


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a process of the run can be reached. Holds no secret; hand it out by any way.

    incarnation: random, of one `Transport`; a message for another one at the same port is dropped.
    """

    name: str
    node_ip: str
    tcp: str
    ipc: str
    incarnation: int


@dataclasses.dataclass(frozen=True, slots=True)
class MessageReceived:
    """One message. Arrays come as bytes (uint8, one dimension); `Codec.decode` gives them dtype and shape.

    They may be read-only views of what came in; nobody else writes into them.
    """

    sender: str
    header: bytes
    arrays: tuple[np.ndarray, ...]


class LossReason(enum.Enum):
    """Why a peer counts as lost."""

    DISCONNECTED = "its connection closed, or nothing came from it for the heartbeat's timeout"
    UNREACHABLE = "no connection to it came about in time"
    REFUSED = "the handshake with it failed: it, or this process, does not hold the run's key"


@dataclasses.dataclass(frozen=True, slots=True)
class PeerConnected:
    """A peer answers, for the first time or again after it was lost."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer does not answer. Reported once; connecting goes on, and PeerConnected tells when it is back."""

    name: str
    reason: LossReason


Event = MessageReceived | PeerConnected | PeerLost


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Messages and their bytes (headers and arrays) to and from one peer, since the transport was opened."""

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0
    messages_dropped: int = 0  # handed to `send` and not sent: queue full, peer lost


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counts since the transport was opened.

    dropped_unknown: `send` to a name that is not connected. refused_handshakes: connections that tried to come in
    without the run's key. torn: messages that a broken connection cut in the middle. malformed: what was no message of
    this program. misaddressed: messages meant for another process.
    """

    peers: dict[str, Traffic]
    dropped_unknown: int
    refused_handshakes: int
    torn: int
    malformed: int
    misaddressed: int
