"""The key pair of a run, and the gate that admits only processes that hold it.

CURVE alone encrypts and proves the server to the client; it admits any client that knows the server's public key and
has some key of its own. So every process of a run uses the same key pair, as server and as client, and a gate
(ZAP, the ZeroMQ authentication protocol, https://rfc.zeromq.org/spec/27) compares the key that a client proved to
hold with the key of the run. A machine that leaves the run keeps the key: to shut it out for good, start a new run.
"""

import dataclasses
import hmac
from typing import Any, NoReturn

import zmq

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"proteus"


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, each half as 40 characters of Z85. Its text form shows the public half only.

    It cannot be pickled, so nothing that pickles carries it along: see `sealed_keys`.
    """

    public: bytes
    secret: bytes = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        try:
            fits = zmq.curve_public(self.secret) == self.public
        except (zmq.ZMQError, ValueError, TypeError):
            fits = False
        if not fits:
            raise ValueError("the two halves of a CURVE key pair do not belong together")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "the run's keys leave a process only sealed for another one (agileml.net.sealed_keys)"
        )

    @classmethod
    def generate(cls) -> "KeyPair":
        """Make a new pair. Raises zmq.ZMQError where libzmq was built without CURVE."""
        return cls(*zmq.curve_keypair())

    def serve(self, socket: Any) -> None:
        """Make the socket's next binds admit only clients that a `Gate` of the same context admits."""
        socket.curve_server = True
        socket.curve_secretkey = self.secret
        socket.zap_domain = ZAP_DOMAIN
        # Without this option libzmq admits every client when there is no gate.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def use(self, socket: Any) -> None:
        """Make the socket's next connects accept only servers that hold this key, and present it to them."""
        socket.curve_serverkey = self.public
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret


class Gate:
    """Tells libzmq which clients may connect: only those that have proved that they hold the run's key.

    One per zmq.Context, before the first bind. Poll `socket`; call `answer` when it can be read.
    """

    def __init__(self, context: Any, keys: KeyPair) -> None:
        from zmq.utils import z85

        self._public_key = z85.decode(keys.public)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self) -> None:
        """Answer all pending requests."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # route, empty, version, request id, domain, address, identity, mechanism, credentials
            split = frames.index(b"") + 1
            route, question = frames[:split], frames[split:]
            right = (
                len(question) == 7
                and question[0] == b"1.0"
                and question[2] == ZAP_DOMAIN
                and question[5] == b"CURVE"
                and hmac.compare_digest(question[6], self._public_key)
            )
            verdict = [b"200", b"OK"] if right else [b"400", b"not a key of this run"]
            self.socket.send_multipart(
                [*route, b"1.0", question[1] if len(question) > 1 else b"", *verdict, b"", b""]
            )

    def close(self) -> None:
        """Close the socket; from then on libzmq refuses every client."""
        self.socket.close(0)
