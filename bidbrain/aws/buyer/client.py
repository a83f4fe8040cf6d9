"""The buyer as a market: the driver's end of its socket. It has no right of its own to buy."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from bidbrain.aws.buyer.messages import (
    LINE_BYTES,
    SOCKET,
    Answer,
    AskCredentials,
    AskEnded,
    AskHeld,
    AskNotices,
    AskPrice,
    AskPurchase,
    AskQuotes,
    AskRelease,
    CredentialsAre,
    EndedAre,
    EndOthers,
    Failed,
    InstancesAre,
    JobOpened,
    LeftBehind,
    MessageError,
    NoticesAre,
    OpenJob,
    OthersEnded,
    PriceIs,
    QuotesAre,
    ReleaseDone,
    Request,
    answer_of,
    line_of,
)
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CloudError,
    EndedInstance,
    Instance,
    InstanceNotice,
    NoticeSource,
    Order,
    Quotes,
    UnknownOutcomeError,
)

ANSWER_S = 600.0  # a purchase is tried several times before the buyer gives up
A = TypeVar("A")


def buyer_socket(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this head's buyer listens. Raises CloudError where there is none."""
    found = environment.get(SOCKET)
    if found is None:
        raise CloudError(
            f"market: found no buyer here ({SOCKET} is not set), expected the head of a stack that "
            "`proteus aws up` made: jobs buy through its buyer"
        )
    return Path(found)


class Connection:
    """One connection to the buyer. Raises OSError; calls raise CloudError, also for requests that the buyer refuses."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rb")

    def ask(self, request: Request, wanted: type[A]) -> A:
        """The answer to a request. Raises OSError where the connection has ended."""
        self._socket.sendall(line_of(request))
        line = self._file.readline(LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the connection has ended")
        try:
            answer: Answer = answer_of(line)
        except MessageError as error:
            raise CloudError(f"the buyer: {error}") from None
        if isinstance(answer, Failed):
            raise answer.error()
        assert isinstance(answer, wanted), answer
        return answer

    def close(self) -> None:
        """End it."""
        self._file.close()
        self._socket.close()


def credentials_from(path: Path) -> CredentialsAre:
    """Credentials of the node's role. Raises CloudError, OSError."""
    connection = Connection(path)
    try:
        return connection.ask(AskCredentials(), CredentialsAre)
    finally:
        connection.close()


class BuyerCloud:
    """EC2 through the buyer at `path`, for one job of a stack. Calls may come from any thread.

    After a restart of the buyer the next call connects to it again. The outcome of a call during which it ended is
    unknown, and the caller repeats it. notices: a source beside the buyer's queue. Raises CloudError.
    """

    together = False

    def __init__(self, path: Path, stack: str, job: str, notices: NoticeSource | None = None) -> None:
        self._path, self._open, self._notices = path, OpenJob(stack, job), notices
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        try:
            self.opened = self._connect()
        except OSError as error:
            raise CloudError(f"market: the buyer at {path} does not answer ({_why(error)})") from None

    def _connect(self) -> JobOpened:
        connection = Connection(self._path)
        try:
            opened = connection.ask(self._open, JobOpened)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return opened

    def _ask(self, request: Request, wanted: type[A]) -> A:
        with self._lock:
            try:
                if self._connection is None:
                    self._connect()
                assert self._connection is not None
                return self._connection.ask(request, wanted)
            except OSError as error:
                self._drop()
                raise UnknownOutcomeError(f"the buyer does not answer ({_why(error)})") from None

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """End the connection: from now on the buyer waits for the job to come back."""
        with self._lock:
            self._drop()

    def end_others(self) -> tuple[LeftBehind, ...]:
        """End what earlier jobs of the stack left running, and name it."""
        return self._ask(EndOthers(), OthersEnded).machines

    # -- a cloud ------------------------------------------------------------------------------------------------

    def quotes(self, now_s: int) -> Quotes:
        """See `live.cloud.Cloud`; as of the buyer's time."""
        found = self._ask(AskQuotes(), QuotesAre)
        return Quotes(found.offers, found.pulse, frozenset(found.full), found.troubles)

    def price(self, market: Market, at_s: int) -> int:
        return self._ask(AskPrice(market, at_s), PriceIs).price

    def acquire(self, order: Order) -> tuple[Instance, ...]:
        return self._ask(AskPurchase(order), InstancesAre).instances

    def release(self, instance_ids: tuple[str, ...]) -> None:
        self._ask(AskRelease(instance_ids), ReleaseDone)

    def held(self) -> tuple[Instance, ...]:
        return self._ask(AskHeld(), InstancesAre).instances

    def ended(self, instance_ids: tuple[str, ...]) -> tuple[EndedInstance, ...]:
        return self._ask(AskEnded(instance_ids), EndedAre).ended

    def notices(self) -> tuple[InstanceNotice, ...]:
        """Also those of the source beside the buyer's queue, alone where the buyer or its queue fails."""
        ours = () if self._notices is None else self._notices.notices()
        try:
            return (*self._ask(AskNotices(), NoticesAre).notices, *ours)
        except CloudError:
            if not ours:  # a warning counts seconds, and a later call says what is wrong
                raise
            return ours


def _why(error: OSError) -> str:
    return error.strerror or str(error)
