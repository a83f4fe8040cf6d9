"""The messages between a driver and the buyer: one JSON line each, checked against these types. Pure.

The driver imports the user's code, so the buyer trusts none of its lines: it answers a line that is not exactly one of
these requests with a sentence. The calls are those of `bidbrain.live.cloud.Cloud`, which may all be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CapacityError,
    CloudError,
    CredentialsError,
    EndedInstance,
    Instance,
    InstanceNotice,
    MarketClosedError,
    Order,
    QuotaError,
    RefusedError,
    UnknownOutcomeError,
)
from bidbrain.policy.base import Offer

LINE_BYTES = 4 << 20
SOCKET = "PROTEUS_BUYER"  # the environment's variable with the path of the buyer's socket


class MessageError(ValueError):
    """A line that is none of the messages, in one sentence."""


# -- requests ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenJob:
    """Drive the market of this stack for a job, from now until the connection ends."""

    stack: str
    job: str
    kind: Literal["open"] = "open"


@dataclass(frozen=True)
class EndOthers:
    """End the machines of the stack's earlier jobs: no process drives them any more."""

    kind: Literal["end_others"] = "end_others"


@dataclass(frozen=True)
class AskQuotes:
    kind: Literal["quotes"] = "quotes"


@dataclass(frozen=True)
class AskPrice:
    market: Market
    at_s: int
    kind: Literal["price"] = "price"


@dataclass(frozen=True)
class AskPurchase:
    order: Order
    kind: Literal["purchase"] = "purchase"


@dataclass(frozen=True)
class AskRelease:
    instance_ids: tuple[str, ...]
    kind: Literal["release"] = "release"


@dataclass(frozen=True)
class AskHeld:
    kind: Literal["held"] = "held"


@dataclass(frozen=True)
class AskEnded:
    instance_ids: tuple[str, ...]
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True)
class AskNotices:
    kind: Literal["notices"] = "notices"


@dataclass(frozen=True)
class AskCredentials:
    """Credentials of the node's role, which buys nothing."""

    kind: Literal["credentials"] = "credentials"


Request = (
    OpenJob
    | EndOthers
    | AskQuotes
    | AskPrice
    | AskPurchase
    | AskRelease
    | AskHeld
    | AskEnded
    | AskNotices
    | AskCredentials
)

# -- answers -----------------------------------------------------------------------------------------------------


class Failure(StrEnum):
    """The class of an error of a market, as it travels."""

    REFUSED = "refused"
    CAPACITY = "capacity"
    QUOTA = "quota"
    UNKNOWN = "unknown"
    CREDENTIALS = "credentials"
    CLOSED = "closed"
    OTHER = "other"


ERRORS: dict[Failure, type[CloudError]] = {
    Failure.CAPACITY: CapacityError,
    Failure.QUOTA: QuotaError,
    Failure.REFUSED: RefusedError,
    Failure.UNKNOWN: UnknownOutcomeError,
    Failure.CREDENTIALS: CredentialsError,
    Failure.CLOSED: MarketClosedError,
    Failure.OTHER: CloudError,
}


@dataclass(frozen=True)
class Failed:
    """The request could not be met; the sentence says why."""

    failure: Failure
    sentence: str
    kind: Literal["failed"] = "failed"

    @staticmethod
    def of(error: CloudError) -> Failed:
        """An error of a market as an answer."""
        failure = next(each for each, kind in ERRORS.items() if isinstance(error, kind))
        return Failed(failure, str(error))

    def error(self) -> CloudError:
        """The error that the asker raises."""
        return ERRORS[self.failure](self.sentence)


@dataclass(frozen=True)
class LeftBehind:
    """A machine that an earlier job left running, and the buyer has ended."""

    instance_id: str
    job: str


@dataclass(frozen=True)
class JobOpened:
    """The job drives the market. markets: what the limits of the stack allow to buy, the on-demand
    one included. vcpus: of one machine of each. machines: that a job may have at once; micro_usd: that it may cost;
    left_micro_usd: of what the stack's jobs together may; None: no limit, or an earlier version does not say it."""

    markets: tuple[Market, ...]
    vcpus: tuple[int, ...]
    machines: int | None = None
    micro_usd: int | None = None
    left_micro_usd: int | None = None
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True)
class OthersEnded:
    machines: tuple[LeftBehind, ...]
    kind: Literal["others_ended"] = "others_ended"


@dataclass(frozen=True)
class QuotesAre:
    """See `bidbrain.live.cloud.Quotes`."""

    offers: tuple[Offer, ...]
    pulse: str
    full: tuple[Market, ...]
    troubles: tuple[str, ...]
    kind: Literal["quotes"] = "quotes"


@dataclass(frozen=True)
class PriceIs:
    """Micro-dollars per machine hour."""

    price: int
    kind: Literal["price"] = "price"


@dataclass(frozen=True)
class InstancesAre:
    instances: tuple[Instance, ...]
    kind: Literal["instances"] = "instances"


@dataclass(frozen=True)
class ReleaseDone:
    kind: Literal["released"] = "released"


@dataclass(frozen=True)
class EndedAre:
    ended: tuple[EndedInstance, ...]
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True)
class NoticesAre:
    notices: tuple[InstanceNotice, ...]
    kind: Literal["notices"] = "notices"


@dataclass(frozen=True)
class CredentialsAre:
    """expires: an ISO instant."""

    key_id: str
    secret: str
    token: str
    expires: str
    kind: Literal["credentials"] = "credentials"

    def __repr__(self) -> str:
        return f"CredentialsAre(expires={self.expires!r})"  # no log has the secret


Answer = (
    Failed
    | JobOpened
    | OthersEnded
    | QuotesAre
    | PriceIs
    | InstancesAre
    | ReleaseDone
    | EndedAre
    | NoticesAre
    | CredentialsAre
)

_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_ANSWERS: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def line_of(message: Request | Answer) -> bytes:
    """A message as its line."""
    if isinstance(message, Request):
        return _REQUESTS.dump_json(message) + b"\n"
    return _ANSWERS.dump_json(message) + b"\n"


def request_of(line: bytes) -> Request:
    """The request that a line holds. Raises MessageError."""
    try:
        return _REQUESTS.validate_json(line)
    except ValidationError as error:
        raise MessageError(_why(error)) from None


def answer_of(line: bytes) -> Answer:
    """The answer that a line holds. Raises MessageError."""
    try:
        return _ANSWERS.validate_json(line)
    except ValidationError as error:
        raise MessageError(_why(error)) from None


def _why(error: ValidationError) -> str:
    first = error.errors(include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"found no message of the buyer's ({place + ': ' if place else ''}{first['msg']})"
