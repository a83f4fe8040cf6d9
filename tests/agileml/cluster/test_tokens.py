"""The token that this process's Ray sends."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from agileml.cluster.tokens import authentication_as_before, use_tokens


def test_ray_keeps_the_token_of_the_moment_when_tokens_were_turned_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's threads asked for it at some later time, when the variables could name another."""
    token = "0123456789abcdef" * 4
    (tmp_path / "token").write_text(token)
    with authentication_as_before():
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
        use_tokens()
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
        assert token in str(AuthenticationTokenLoader.instance().get_token_for_http_header())
