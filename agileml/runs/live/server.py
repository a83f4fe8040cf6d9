"""Serves the live page of one run on this computer: behind a token, from its log or a job's output, as views change."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, quote

from agileml.runs.live.metrics import CONTENT_TYPE, openmetrics
from agileml.runs.report.page import page

LOOPBACK = "127.0.0.1"
EVERY_S = 1.0  # between two looks at the run
MOST_BUSY = 0.1  # share of the time in which the server looks, where a look takes long
LONGEST_S = 15.0  # between two looks that take longer than that
QUIET_S = 15.0  # after which a connection without news gets a sign of life
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


def pause_s(every_s: float, took_s: float) -> float:
    """The time until the next look, after one that took so long: that at a job reads all that it has printed, which
    after days are many MB."""
    return max(every_s, min(LONGEST_S, took_s * (1 / MOST_BUSY - 1)))


class PageServer:
    """A context manager: answers on loopback the requests that carry the token. `look` returns the newest view as
    JSON."""

    def __init__(
        self,
        look: Callable[[], dict[str, Any]],
        port: int = 0,
        *,
        token: str | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        """`port` 0: any free one; `token` None: a new one. Raises OSError when the port is taken."""
        self.token = token or secrets.token_urlsafe(18)
        self.ended = threading.Event()
        self._error: Exception | None = None
        self._look, self._every_s = look, every_s
        self._news, self._looking = threading.Condition(), threading.Lock()
        self._data, self._version = b"", -1
        self._server = ThreadingHTTPServer((LOOPBACK, port), _handler(self))
        self._server.daemon_threads = True
        self._threads = [
            threading.Thread(target=self._server.serve_forever, name="page", daemon=True),
            threading.Thread(target=self._follow, name="page-view", daemon=True),
        ]

    @property
    def url(self) -> str:
        """The address to open, token included."""
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/?token={quote(self.token, safe='')}"

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        with self._news:
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def _follow(self) -> None:
        try:
            while not self.ended.is_set():
                began_s = time.monotonic()
                view = self.view()
                if view["version"] != self._version:
                    data = json.dumps(view, allow_nan=False).encode()
                    with self._news:
                        self._data, self._version = data, view["version"]
                        self._news.notify_all()
                self.ended.wait(pause_s(self._every_s, time.monotonic() - began_s))
        except Exception as error:  # for `wait`: no page stands still for a reason that nobody is told
            self._error = error
            self.ended.set()

    def wait(self) -> None:
        """Return once the server has ended. Raises what `look` has raised, which ends it."""
        self.ended.wait()
        if self._error is not None:
            raise self._error

    def view(self) -> dict[str, Any]:
        """The newest view."""
        with self._looking:
            return self._look()

    def newer(self, version: int, timeout_s: float) -> tuple[int, bytes] | None:
        """The view after `version`, once there is one; None after `timeout_s`."""
        with self._news:
            self._news.wait_for(lambda: self.ended.is_set() or self._version > version, timeout_s)
            return (self._version, self._data) if self._version > version else None

    def may_enter(self, host: str, query: str) -> bool:
        """True for a request with the token that names this computer as its host: other names may be a rebound DNS."""
        name = host.rpartition(":")[0] or host
        given = parse_qs(query).get("token", [""])[0]
        return name in (LOOPBACK, "localhost") and hmac.compare_digest(given.encode(), self.token.encode())


def _handler(server: PageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            try:
                self._answer()
            except ConnectionError:
                self.close_connection = True  # the browser has gone

        def _answer(self) -> None:
            path, _, query = self.path.partition("?")
            if not server.may_enter(self.headers.get("Host", ""), query):
                self._say(
                    HTTPStatus.FORBIDDEN, b"the token of `proteus watch` is missing or wrong\n", "text/plain"
                )
            elif path == "/":
                self._say(HTTPStatus.OK, page().encode(), "text/html; charset=utf-8")
            elif path == "/metrics":
                # A run's name that is no UTF-8 is one of a folder.
                metrics = openmetrics(server.view()).encode(errors="replace")
                self._say(HTTPStatus.OK, metrics, CONTENT_TYPE)
            elif path == "/events":
                self._stream()
            else:
                self._say(HTTPStatus.NOT_FOUND, b"not here\n", "text/plain")

        def _head(self, status: HTTPStatus, kind: str) -> None:
            self.send_response(status)
            for name, value in (*HEADERS.items(), ("Content-Type", kind)):
                self.send_header(name, value)

        def _say(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self._head(status, kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            """Server-sent events: the whole view whenever it has changed."""
            self._head(HTTPStatus.OK, "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            version = -1
            while not server.ended.is_set():
                found = server.newer(version, QUIET_S)
                if found is None:
                    self.wfile.write(b": here\n\n")
                else:
                    version, data = found
                    self.wfile.write(b"data: " + data + b"\n\n")
                self.wfile.flush()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing: the command's output is the address."""

    return Handler
