"""Clients of one region, and small readers of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bidbrain.aws.calls import ATTEMPTS, client

NO_RETRY = 1  # attempts at what one often may not ask, or a stand-in does not know


class Clients(Protocol):
    """boto3 clients of one region by the name of their service."""

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any: ...

    def at(self, region: str) -> Clients:
        """The clients of another region."""
        ...


class Aws:
    """Clients of one region, each made once. Raises CredentialsError where there are no credentials."""

    def __init__(self, region: str, endpoint: str | None = None) -> None:
        self._region, self._endpoint = region, endpoint
        self._made: dict[tuple[str, int], Any] = {}
        self._elsewhere: dict[str, Aws] = {}

    def client(self, service: str, attempts: int = ATTEMPTS) -> Any:
        key = (service, attempts)
        if key not in self._made:
            # The price list is served from one region for all.
            region = "us-east-1" if service == "pricing" else self._region
            self._made[key] = client(service, region, self._endpoint, attempts)
        return self._made[key]

    def at(self, region: str) -> Aws:
        """Clients of another region, made once."""
        if region not in self._elsewhere:
            self._elsewhere[region] = Aws(region, self._endpoint)
        return self._elsewhere[region]


def code_of(error: Exception) -> str:
    """The service's own error code, "" for other errors."""
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def tag_map(tags: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """AWS' list of tags as a dictionary."""
    return {tag["Key"]: tag["Value"] for tag in tags}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """A dictionary as AWS' list of tags."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
