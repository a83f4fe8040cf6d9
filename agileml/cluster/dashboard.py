"""A Ray dashboard: whether one answers at an address and accepts our token, and which cluster it belongs to.

Ray's job server listens on the same port. Every request has a time limit, and every failure becomes one sentence.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from agileml.application import without_secrets
from agileml.cluster.errors import ClusterError
from agileml.cluster.tokens import HOW_TO_NAME_IT, find_token, no_token, use_tokens

DEFAULT_GCS_PORT = 6379
NEEDS_TOKEN, WRONG_TOKEN = 401, 403


def is_http(address: str) -> bool:
    """True for the address of a dashboard, False for that of a GCS."""
    return address.startswith(("http://", "https://"))


def ask(address: str, path: str, timeout_s: float) -> Any:
    """Send GET `path` to the dashboard and return its JSON. The request carries the user's token only if needed.

    When the dashboard accepts the token, this process switches to token mode. Raises ClusterError within `timeout_s`:
    no answer, no dashboard, no token where one is needed, or a wrong token.
    """
    try:
        return _get(address, path, None, timeout_s / 2)
    except urllib.error.HTTPError as error:
        if error.code not in (NEEDS_TOKEN, WRONG_TOKEN):
            raise _no_dashboard(address, f"HTTP {error.code}") from None
    token, where = find_token()
    if token is None:
        raise no_token(address)
    try:
        found = _get(address, path, token, timeout_s / 2)
    except urllib.error.HTTPError as error:
        if error.code in (NEEDS_TOKEN, WRONG_TOKEN):
            raise ClusterError(
                f"address: the cluster at {address} refuses the token of {where}; {HOW_TO_NAME_IT}"
            ) from None
        raise _no_dashboard(address, f"HTTP {error.code}") from None
    use_tokens()
    return found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes no answer from another place than the user named: the library would send the token there too, also from
    https to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        place = "{0.scheme}://{0.netloc}".format(urlsplit(newurl))
        raise ClusterError(
            f"address: what answers at {without_secrets(req.full_url)} leads on to {without_secrets(place)}, expected "
            "the dashboard itself; give its own address"
        )


def _get(address: str, path: str, token: str | None, timeout_s: float) -> Any:
    """Raises HTTPError when the dashboard refuses, ClusterError for every other failure."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{address.rstrip('/')}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        with opener.open(request, timeout=timeout_s) as reply:
            return json.load(reply)
    except (urllib.error.HTTPError, ClusterError):
        raise
    except OSError as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClusterError(f"address: no dashboard answers at {address} ({why})") from None
    except (ValueError, http.client.HTTPException):
        raise _no_dashboard(address) from None


def _no_dashboard(address: str, detail: str = "") -> ClusterError:
    found = f" ({detail})" if detail else ""
    return ClusterError(f"address: what answers at {address} is no Ray dashboard{found}")


def gcs_behind(address: str, timeout_s: float) -> tuple[str, int]:
    """Host and port of the GCS that a dashboard belongs to, from what the dashboard knows of the head node.

    Raises ClusterError as `ask` does.
    """
    try:
        nodes = ask(address, "/nodes?view=summary", timeout_s)["data"]["summary"]
        head = next(node for node in nodes if node["raylet"].get("isHeadNode"))
        host = str(head["raylet"]["nodeManagerAddress"])
        arguments = (head.get("gcs") or {}).get("cmdline") or []
    except (KeyError, TypeError, StopIteration):
        raise _no_dashboard(address) from None
    # The dashboard knows the port a few seconds after its start; until then we assume Ray's default.
    ports = [
        a.partition("=")[2] for a in arguments if a.startswith(("--gcs_server_port=", "--gcs-server-port="))
    ]
    return host, int(ports[0]) if ports else DEFAULT_GCS_PORT
