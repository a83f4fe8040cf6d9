"""A stub of the metadata service, as IMDSv2 answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Metadata(ThreadingHTTPServer):
    """IMDSv2: a token by PUT, 401 without it, 404 for what is not."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.values = {"/latest/meta-data/instance-id": "i-0abc"}
        self.tokens = 0


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def _answer(self, code: int, text: str = "") -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            return self._answer(400)
        self.server.tokens += 1
        return self._answer(200, f"token{self.server.tokens}")

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != f"token{self.server.tokens}":
            return self._answer(401)
        if self.path not in self.server.values:
            return self._answer(404)
        return self._answer(200, self.server.values[self.path])

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def metadata_service() -> Iterator[Metadata]:
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
