"""The token that this process's Ray sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

from agileml.cluster.dashboard import NEEDS_TOKEN, ask
from agileml.cluster.errors import ClusterError
from agileml.cluster.tokens import authentication_as_before, find_token, use_tokens


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


@contextmanager
def a_dashboard_that_wants_a_token(tokens: list[str | None] | None = None) -> Iterator[str]:
    """tokens: gets the header of each request."""

    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if tokens is not None:
                tokens.append(self.headers["Authorization"])
            self.send_error(NEEDS_TOKEN)

        def log_message(self, *_: object) -> None: ...

    with served(Guarded) as address:
        yield address


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_of_the_token_that_is_named_and_holds_none_is_said_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user was told to set the variable that was set."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    (tmp_path / "empty").touch()
    with a_dashboard_that_wants_a_token() as address:
        with pytest.raises(
            ClusterError, match=r"none was found; set RAY_AUTH_TOKEN_PATH to the file that holds it$"
        ):
            ask(address, "/api/version", 3.0)
        for named, why in (
            ("~/cluster-token", "cannot be read: No such file or directory"),
            (str(tmp_path), "cannot be read: Is a directory"),
            (str(tmp_path / "empty"), "is empty"),
        ):
            monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", named)
            with pytest.raises(ClusterError) as error:
                ask(address, "/api/version", 3.0)
            assert str(error.value) == (
                f"address: the cluster at {address} needs a token and none was found; "
                f"set RAY_AUTH_TOKEN_PATH to the file that holds it (found {named}, which {why})"
            )


def test_the_token_goes_to_no_other_place_than_the_address_that_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What answers there may lead on to another host, or from https to http; the token went along."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123abc")
    tokens: list[str | None] = []
    with a_dashboard_that_wants_a_token(tokens) as other:

        class LeadsOn(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.headers["Authorization"] is None:
                    self.send_error(NEEDS_TOKEN)
                    return
                self.send_response(302)
                self.send_header("Location", f"{other}{self.path}")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        with served(LeadsOn) as address, pytest.raises(ClusterError, match=rf"leads on to {other}, expected"):
            ask(address, "/api/version", 3.0)
    assert tokens == []


@pytest.mark.parametrize("text", ["\ufefftoken\r\n", "token\nother", "жетон"])
def test_a_token_that_no_request_can_carry_is_said(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dashboard was said to be none, as was the head."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    why = "which has other signs than one line of ASCII"
    with a_dashboard_that_wants_a_token() as address:
        with pytest.raises(ClusterError, match=rf"needs a token and none was found; .*\(found {file}, {why}"):
            ask(address, "/api/version", 3.0)
        monkeypatch.setenv("RAY_AUTH_TOKEN", text)
        with pytest.raises(ClusterError, match=rf"\(found RAY_AUTH_TOKEN, {why}"):
            ask(address, "/api/version", 3.0)


def test_a_user_without_a_home_folder_has_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a container runs under a number of its own, without HOME: it was a traceback."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.chdir(tmp_path)
    assert find_token() == (None, "~/.ray/auth_token")


def test_a_token_may_have_the_line_ends_of_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    (tmp_path / "token").write_bytes(b"0123abc\r\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert find_token() == ("0123abc", str(tmp_path / "token"))
