"""The API server over HTTPS with a service account: get, list, patch, watch.

The standard library does it: three resources and four verbs are little beside the client library of Kubernetes, of
126 MB. The token is read for every request, because the kubelet renews it.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from bidbrain.live.cloud import CloudError, CredentialsError, UnknownOutcomeError

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
TIMEOUT_S = 10.0
WATCH_S = 60  # a watch that has died without a word is found within this and `TIMEOUT_S`
JSON_PATCH = "application/json-patch+json"


class NotFoundError(CloudError):
    """There is no such object."""


class ConflictError(CloudError):
    """A patch does not fit the object as it is now."""


class ExpiredError(CloudError):
    """The server does not know this resourceVersion any more: list again."""


def path_of(*words: str, **query: str | int) -> str:
    """A path of the API, quoted."""
    path = "/" + "/".join(quote(word, safe=".") for word in words)
    return f"{path}?{urlencode(query)}" if query else path


@dataclass(frozen=True)
class Api:
    """The API server of the cluster that this process runs in. account: the folder of a service account's token."""

    host: str
    port: int
    account: Path

    @staticmethod
    def of_pod(account: Path, environment: Mapping[str, str] = os.environ) -> Api:
        """As a pod finds it. Raises CredentialsError outside of one, and without a token."""
        host, port = environment.get(HOST), environment.get(PORT)
        if not host or not port or not port.isdecimal():
            raise CredentialsError(
                f"market: found no {HOST} in the environment, expected to run in a pod of a Kubernetes cluster"
            )
        for name in ("token", "ca.crt"):
            if not (account / name).is_file():
                raise CredentialsError(
                    f"market.account: found no {account / name}, expected the token of a service account: "
                    "automountServiceAccountToken may be off in this pod"
                )
        return Api(host, int(port), account)

    @property
    def namespace(self) -> str:
        """The namespace of the service account."""
        try:
            return (self.account / "namespace").read_text().strip() or "default"
        except OSError:
            return "default"

    def get(self, path: str) -> dict[str, Any]:
        """An object, or a list of objects."""
        return self._json("GET", path)

    def patch(self, path: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Apply a JSON patch; returns the new object. Raises ConflictError where it does not fit."""
        return self._json("PATCH", path, json.dumps(operations))

    def watch(self, path: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind of event, object) for what happens after `version`, until the server ends it. Raises ExpiredError."""
        mark = "&" if "?" in path else "?"
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": WATCH_S,
        }
        what = _what("GET", path)
        connection, answer = self._send("GET", f"{path}{mark}{urlencode(query)}", None, WATCH_S + TIMEOUT_S)
        try:
            while line := answer.readline():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _error(int(event["object"].get("code", 500)), event["object"], what)
                yield event["type"], event["object"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnknownOutcomeError(f"{what}: the answer broke off ({error})") from None
        finally:
            connection.close()

    def _json(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        what = _what(method, path)
        connection, answer = self._send(method, path, body, TIMEOUT_S)
        try:
            found: dict[str, Any] = json.loads(answer.read())
            return found
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnknownOutcomeError(f"{what}: the answer broke off ({error})") from None
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, body: str | None, timeout_s: float
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        what = _what(method, path)
        connection = http.client.HTTPSConnection(
            self.host, self.port, timeout=timeout_s, context=self._certificates
        )
        try:
            token = (self.account / "token").read_text().strip()
        except OSError as error:
            raise CredentialsError(f"market.account: {self.account / 'token'}: {error.strerror}") from None
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = JSON_PATCH
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status < 300:
                return connection, answer
            said = answer.read()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise CredentialsError(
                f"{what}: {self.host}:{self.port} has no certificate of {self.account / 'ca.crt'} "
                f"({error.verify_message})"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnknownOutcomeError(f"{what}: no answer from {self.host}:{self.port} ({error})") from None
        connection.close()
        try:
            status = json.loads(said)
        except ValueError:
            status = {}
        raise _error(answer.status, status if isinstance(status, dict) else {}, what)

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        except (OSError, ssl.SSLError) as error:
            raise CredentialsError(f"market.account: {self.account / 'ca.crt'}: {error}") from None


def _what(method: str, path: str) -> str:
    """The name of a request in messages: its verb and the last two words of its path."""
    return f"{method.lower()} {'/'.join(path.partition('?')[0].split('/')[-2:])}"


def _error(code: int, status: Mapping[str, Any], what: str) -> CloudError:
    """The error of our protocol for an answer of the server."""
    message = " ".join(str(status.get("message", "")).split()).rstrip(".")
    sentence = f"{what}: Kubernetes answers {code}{', ' if message else ''}{message}"
    match code:
        case 401:
            return CredentialsError(f"{sentence}: expected the token of a service account that is there")
        case 403:
            return CredentialsError(f"{sentence} (`proteus k8s template` prints the rights that a job needs)")
        case 404:
            return NotFoundError(sentence)
        case 409 | 422:
            return ConflictError(sentence)
        case 410:
            return ExpiredError(sentence)
        case _ if code == 429 or code >= 500:
            return UnknownOutcomeError(sentence)
    return CloudError(sentence)
