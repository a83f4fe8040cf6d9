"""A Ray dashboard: does one answer there, does it let us in, and which cluster is behind it.

Its port is also that of Ray's job server. Every request here has a limit of its own, and every way in which it can
fail is one sentence.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from agileml.cluster.errors import ClusterError
from agileml.cluster.tokens import HOW_TO_NAME_IT, find_token, use_tokens

DEFAULT_GCS_PORT = 6379
NEEDS_TOKEN, WRONG_TOKEN = 401, 403


def is_http(address: str) -> bool:
    """True for what names a dashboard and not a GCS."""
    return address.startswith(("http://", "https://"))


def ask(address: str, path: str, timeout_s: float) -> Any:
    """What the dashboard answers to GET `path`, as JSON. It gets the user's token only if it asks for one.

    With a token that is right, token mode is switched on for this process. Raises ClusterError within `timeout_s`:
    nobody answers, it is no dashboard, a token is needed, or the token is wrong.
    """
    try:
        return _get(address, path, None, timeout_s / 2)
    except urllib.error.HTTPError as error:
        if error.code not in (NEEDS_TOKEN, WRONG_TOKEN):
            raise _no_dashboard(address, f"HTTP {error.code}") from None
    token, where = find_token()
    if token is None:
        raise ClusterError(
            f"address: the cluster at {address} needs a token and none was found; {HOW_TO_NAME_IT}"
        )
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


def _get(address: str, path: str, token: str | None, timeout_s: float) -> Any:
    """Raises HTTPError for the dashboard's own refusals, ClusterError for everything else."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{address.rstrip('/')}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout_s) as reply:
            return json.load(reply)
    except urllib.error.HTTPError:
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
    """The GCS that a dashboard belongs to: the head node's address, and the port that its raylet was given.

    Raises ClusterError as `ask` does.
    """
    try:
        nodes = ask(address, "/nodes?view=summary", timeout_s)["data"]["summary"]
        head = next(node for node in nodes if node["raylet"].get("isHeadNode"))
        host = str(head["raylet"]["nodeManagerAddress"])
        arguments = (head.get("gcs") or {}).get("cmdline") or []
    except (KeyError, TypeError, StopIteration):
        raise _no_dashboard(address) from None
    # Known a few seconds after the start; until then the port is most likely Ray's own.
    ports = [
        a.partition("=")[2] for a in arguments if a.startswith(("--gcs_server_port=", "--gcs-server-port="))
    ]
    return host, int(ports[0]) if ports else DEFAULT_GCS_PORT
