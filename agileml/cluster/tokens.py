"""The token of a Ray cluster: where the user keeps it, and how this process sends it.

This module reads it where Ray does. The token leaves this process only for the cluster that asks for one.
"""

from __future__ import annotations

import os
from pathlib import Path

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
    """Switch this process and its children to token mode; Ray reads the mode only once, so it must read it again."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
