"""Calls to AWS: clients that retry calls that may succeed later, and errors as the market protocol knows them, in one
sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from bidbrain.live.cloud import (
    CapacityError,
    CloudError,
    CredentialsError,
    KnownTokenError,
    QuotaError,
    RefusedError,
    UnknownOutcomeError,
)

ATTEMPTS = 6
CAPACITY = {
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "UnfulfillableCapacity",
    "SpotMaxPriceTooLow",
    "Unsupported",  # the type does not exist in that zone
}
QUOTA = {
    "MaxSpotInstanceCountExceeded",
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
    "MaxSpotFleetRequestCountExceeded",
}
CREDENTIALS = {
    "AuthFailure",
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "OptInRequired",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
NO_RIGHT = "UnauthorizedOperation"
ENCODED = "Encoded authorization failure message:"  # then a page for AWS' own eyes, another one each time
# AWS answers these, too, where a region is not enabled for the account.
CLOSED_REGION = {"AuthFailure", "InvalidClientTokenId", "OptInRequired", "UnrecognizedClientException"}
KNOWN_TOKEN, UNKNOWN_MACHINE = "IdempotentParameterMismatch", "InvalidInstanceID.NotFound"
# All that botocore itself repeats a few times is among them; `LimitExceededException` is left out, as it names quotas.
AGAIN = {
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "InternalError",
    "InternalFailure",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
    "Unavailable",
}


class UnknownMachineError(RefusedError):
    """EC2 knows no machine by this id: it is gone, or too new."""


class NoRightError(CredentialsError):
    """Credentials that are good, but do not allow this call: of one type, zone or image, maybe of no other."""


@cache
def _loader() -> Any:
    """Descriptions of services are megabytes of JSON: read once, for all clients."""
    from botocore.loaders import create_loader

    return create_loader()


def core_session() -> Any:
    """A session of botocore that reads no description of a service twice."""
    import botocore.session

    core: Any = botocore.session.get_session()
    core.register_component("data_loader", _loader())
    return core


def client(service: str, region: str, endpoint: str | None = None, attempts: int = ATTEMPTS) -> Any:
    """A boto3 client whose retries back off with jitter (botocore's standard mode). Raises CredentialsError."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"mode": "standard", "total_max_attempts": attempts}, connect_timeout=5, read_timeout=60
    )
    try:
        session: Any = boto3.Session(region_name=region, botocore_session=core_session())
        if session.get_credentials() is None:
            raise CredentialsError(
                "no AWS credentials were found (expected AWS_PROFILE, AWS_ACCESS_KEY_ID or an instance role)"
            )
        return session.client(service, endpoint_url=endpoint, config=config)
    except BotoCoreError as error:
        raise CredentialsError(f"AWS cannot be used: {error}") from None


def refusal(code: str, message: str, what: str) -> CloudError:
    """The error of our protocol for an error code of EC2."""
    said = " ".join(message.partition(ENCODED)[0].split())
    sentence = f"{what}: AWS answers {code}, {said.rstrip('.')}"
    if code in CAPACITY:
        return CapacityError(sentence)
    if code in QUOTA:
        return QuotaError(sentence)
    if code == NO_RIGHT:
        return NoRightError(sentence)
    if code in CREDENTIALS:
        also = "; it says so, too, where the region is not enabled for the account"
        return CredentialsError(sentence + also * (code in CLOSED_REGION))
    if code in AGAIN:
        return UnknownOutcomeError(sentence)
    if code == UNKNOWN_MACHINE:
        return UnknownMachineError(sentence)
    return KnownTokenError(sentence) if code == KNOWN_TOKEN else RefusedError(sentence)


def _refused(answer: Mapping[str, Any], what: str) -> CloudError:
    """The error for an answer that is one. EC2 says with status 500, too, that it has no capacity: nothing was sold."""
    found, status = answer.get("Error", {}), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    refused = refusal(str(found.get("Code")), str(found.get("Message")), what)
    if status < 500 or isinstance(refused, CapacityError | QuotaError):
        return refused
    # botocore makes up the code of an answer that has none, as from a load balancer: the status.
    return UnknownOutcomeError(str(refused) if found.get("Message") else f"{what}: AWS answers {status}")


@contextmanager
def errors(what: str) -> Iterator[None]:
    """Errors of boto as errors of the protocol; an answer that never came is an unknown outcome."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        CredentialRetrievalError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _refused(error.response, what) from None
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise CredentialsError(f"{what}: {error}") from None
    except (SSOError, TokenRetrievalError) as error:  # a profile of IAM Identity Center
        cure = "" if "aws sso login" in str(error) else " (run `aws sso login` with the profile)"
        raise CredentialsError(f"{what}: {error}{cure}") from None
    except (HTTPClientError, ConnectionError) as error:
        raise UnknownOutcomeError(f"{what}: {error}") from None
    except ResponseParserError:
        raise UnknownOutcomeError(f"{what}: AWS answers something that is none of its messages") from None
    except BotoCoreError as error:
        raise CloudError(f"{what}: {error}") from None
