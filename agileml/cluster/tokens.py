"""The token of a Ray cluster: where the user keeps it, and how this process sends it.

This module reads it where Ray does. The token leaves this process only for the cluster that asks for one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
HOW_TO_NAME_IT = "set RAY_AUTH_TOKEN_PATH to the file that holds it"


def find_token() -> tuple[str | None, str]:
    """The user's token, or None, and the place where it was found or looked for last, in Ray's own order."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip(), "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return file.read_text().strip() or None, str(file)
    except (OSError, UnicodeDecodeError):
        return None, str(file)


def use_tokens() -> None:
    """Switch this process and its children to token mode."""
    os.environ["RAY_AUTH_MODE"] = "token"
    _read_again()


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


def _read_again() -> None:
    """Ray reads mode and token only once."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
