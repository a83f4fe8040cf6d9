"""The socket of the buyer: the kernel names the user of each client, and each request is one JSON line."""

from __future__ import annotations

import contextlib
import itertools
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bidbrain.aws.buyer.buyer import Buyer
from bidbrain.aws.buyer.messages import (
    LINE_BYTES,
    Answer,
    AskCredentials,
    CredentialsAre,
    Failed,
    Failure,
    MessageError,
    OpenJob,
    line_of,
    request_of,
)
from bidbrain.live.cloud import CloudError

LOOK_S = 30.0
STRANGER_S = 5.0  # for a process that may not ask to say what it wants
_PEER = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED


class BuyerServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers processes of one user at a Unix socket, and has the buyer look around from time to time.

    uid: of the processes that may ask. credentials: of the node's role. Raises OSError where the socket cannot be.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, uid: int, buyer: Buyer, credentials: Callable[[], CredentialsAre]) -> None:
        self.uid, self.buyer, self.credentials = uid, buyer, credentials
        self.lock = threading.Lock()
        self.drivers = itertools.count(1)
        path.unlink(missing_ok=True)
        super().__init__(str(path), _Connection)
        path.chmod(0o666)  # the kernel names the user who connects; `_Connection` decides

    def look(self, stopping: threading.Event, every_s: float = LOOK_S) -> None:
        """Have the buyer look until `stopping` is set. After a problem, which it prints, it tries again."""
        while not stopping.wait(every_s):
            with self.lock:
                try:
                    self.buyer.look()
                except (CloudError, OSError) as error:
                    print(f"the machines could not be looked at: {error}", flush=True)


class _Connection(socketserver.StreamRequestHandler):
    """One process at the socket: the driver of a job, or one that asks for credentials."""

    server: BuyerServer

    def handle(self) -> None:
        """Answer line by line."""
        uid = peer_uid(self.connection)
        if uid != self.server.uid:
            self._refuse(f"user {uid} may not ask the buyer of this stack")
            return
        driver = next(self.server.drivers)
        try:
            while (line := self.rfile.readline(LINE_BYTES)).endswith(b"\n"):
                self._say(self._answer(line, driver))
        except OSError:
            pass  # the process has gone
        finally:
            with self.server.lock:
                self.server.buyer.left(driver)

    def _refuse(self, sentence: str) -> None:
        """Answer one line and end: an end before that line could overtake the answer."""
        self.connection.settimeout(STRANGER_S)
        with contextlib.suppress(OSError):
            self.rfile.readline(LINE_BYTES)
            self._say(Failed(Failure.CREDENTIALS, sentence))

    def _answer(self, line: bytes, driver: int) -> Answer:
        try:
            request = request_of(line)
            if isinstance(request, AskCredentials):
                return self.server.credentials()  # without the lock: a purchase may take minutes
            with self.server.lock:
                if isinstance(request, OpenJob):
                    return self.server.buyer.open(request, driver)
                return self.server.buyer.answer(request, driver)
        except MessageError as error:
            return Failed(Failure.REFUSED, str(error))
        except CloudError as error:
            return Failed.of(error)
        except OSError as error:
            return Failed(Failure.OTHER, f"the buyer's files could not be written: {error.strerror or error}")

    def _say(self, answer: Answer) -> None:
        self.wfile.write(line_of(answer))
        self.wfile.flush()


def peer_uid(connection: socket.socket | Any) -> int:
    """The user of the process at the other end, as the kernel says."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(found)[1])
