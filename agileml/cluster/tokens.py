"""The token of a Ray cluster: where the user keeps it, and how this process sends it.

This module reads it where Ray does. The token leaves this process only for the cluster that asks for one. Where the
user has set Ray's TLS up, by variables that Ray reads in every process, a host shows the cluster's certificate first.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agileml.cluster.errors import ClusterError

AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TLS_FILES = ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT")
_TOKEN = re.compile(r"[!-~]+")
_OTHER_SIGNS = "which has other signs than one line of ASCII letters, digits and punctuation"
HOW_TO_NAME_IT = "set RAY_AUTH_TOKEN_PATH to the file that holds it"


def find_token() -> tuple[str | None, str]:
    """The user's token, or None, and the place where it was found or looked for last, in Ray's own order."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return _token_in(token), "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    # Without a home folder, as of a user that the system does not know, this names no file.
    file = Path(named or os.path.expanduser("~/.ray/auth_token"))
    try:
        return _token_in(file.read_text()), str(file)
    except (OSError, UnicodeDecodeError):
        return None, str(file)


def _token_in(text: str) -> str | None:
    """None where a text is no token: no request can carry another sign, such as the mark that begins files of Windows'
    editor, or a second line."""
    return text.strip() if _TOKEN.fullmatch(text.strip()) else None


def no_token(address: str) -> ClusterError:
    """The error for a cluster that wants a token where `find_token` has found none."""
    sentence = f"address: the cluster at {address} needs a token and none was found; {HOW_TO_NAME_IT}"
    if os.environ.get("RAY_AUTH_TOKEN"):
        sentence += f" (found RAY_AUTH_TOKEN, {_OTHER_SIGNS})"
    elif named := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        sentence += f" (found {named}, {_what_is_wrong_with(Path(named))})"
    return ClusterError(sentence)


def _what_is_wrong_with(file: Path) -> str:
    try:
        text = file.read_text()
    except OSError as error:
        return f"which cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "which is no text"
    return _OTHER_SIGNS if text.strip() else "which is empty"


def use_tokens() -> None:
    """Switch this process and its children to token mode, with the token that the variables name now.

    Ray's next call would read it else, whatever the variables name by then, and Ray aborts a process whose token the
    cluster refuses.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    _read_again().has_token()


@contextmanager
def authentication_as_before() -> Iterator[None]:
    """Leave the variables of Ray's authentication, and what Ray has read of them, as they were."""
    before = {name: os.environ.get(name) for name in AUTH_VARIABLES}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "ray" in sys.modules:
            _read_again()


def _read_again() -> Any:
    """Make Ray, which reads mode and token only once, read them at its next call. Returns its reader of tokens."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    loader = AuthenticationTokenLoader.instance()
    loader.reset_cache()
    return loader


def uses_tls() -> bool:
    """Whether this process's Ray talks TLS."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def channel(where: str, options: list[tuple[str, int]]) -> Any:
    """A gRPC channel to host:port, as Ray would open it: with TLS both ends show a certificate. Raises ClusterError."""
    import grpc  # type: ignore[import-untyped]

    if not uses_tls():
        return grpc.insecure_channel(where, options=options)
    key, certificate, authority = (_read(variable) for variable in TLS_FILES)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    return grpc.secure_channel(where, credentials, options=options)


def _read(variable: str) -> bytes:
    path = os.environ.get(variable)
    if not path:
        raise ClusterError(f"RAY_USE_TLS: found it set, expected {variable} too, which names a file")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ClusterError(
            f"{variable}: {path} cannot be read ({error.strerror}), expected a PEM file"
        ) from None
