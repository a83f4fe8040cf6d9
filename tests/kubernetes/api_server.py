"""An API server for tests: HTTPS, bearer tokens, rights; get, list, watch and JSON patch of three resources.

Like the real one it counts versions, refuses a patch whose test fails, ends a watch from a version that is too old
with 410, and answers 403 with the sentence that Kubernetes says.
"""

from __future__ import annotations

import copy
import json
import re
import secrets
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Object = dict[str, Any]
Right = tuple[str, str, str]  # verb, resource, name ("" for any)
PATHS = {
    re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>pods)(/(?P<name>[^/]+))?"): "",
    re.compile(r"/api/v1/(?P<resource>nodes)(/(?P<name>[^/]+))?"): "",
    re.compile(
        r"/apis/ray\.io/v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>rayclusters)(/(?P<name>[^/]+))?"
    ): "ray.io",
}
USER = "system:serviceaccount:here:proteus"
WATCH_MOST_S = 2.0  # a real server lets a watch live for minutes


def now_text(seconds: float = 0.0) -> str:
    """Now, and so many seconds later, as Kubernetes writes it."""
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


class RefusedError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """The objects of a cluster. `allowed`: whether a request is within the rights of the account."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], Object] = {}
        self._events: list[tuple[int, str, str, Object]] = []  # version, kind, resource, object
        self._version = 100
        self._oldest = 100
        self.changed = threading.Condition(threading.RLock())
        self.allowed: Callable[[Right], bool] = lambda right: True
        self.token = secrets.token_hex(16)
        self.seen = Counter[str]()
        # The status to answer with, before or after.
        self.fail: Callable[[str, str], int] = lambda method, path: 0
        self.account = Path()
        self.port = 0
        self.is_stopping = False

    # -- what tests and the operator do -----------------------------------------------------------------------------

    def put(self, resource: str, item: Object) -> None:
        """Make an object, or replace it."""
        with self.changed:
            name = item["metadata"]["name"]
            kind = "MODIFIED" if (resource, name) in self._objects else "ADDED"
            item["metadata"].setdefault("creationTimestamp", now_text())
            self._write(resource, kind, item)

    def remove(self, resource: str, name: str) -> None:
        with self.changed:
            if (item := self._objects.pop((resource, name), None)) is not None:
                self._log(resource, "DELETED", item)

    def change(self, resource: str, name: str, update: Callable[[Object], None]) -> None:
        """Change an object in place."""
        with self.changed:
            item = copy.deepcopy(self._objects[(resource, name)])
            update(item)
            self._write(resource, "MODIFIED", item)

    def items(self, resource: str) -> list[Object]:
        """Copies, in the order in which they were made."""
        with self.changed:
            return [copy.deepcopy(item) for (kind, _), item in self._objects.items() if kind == resource]

    def forget_the_past(self) -> None:
        """Watches from an older version end with 410, and those that run break off."""
        with self.changed:
            self._oldest = self._version + 1
            self._version += 1
            self.changed.notify_all()

    def _write(self, resource: str, kind: str, item: Object) -> None:
        self._objects[(resource, item["metadata"]["name"])] = item
        self._log(resource, kind, item)

    def _log(self, resource: str, kind: str, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, resource, copy.deepcopy(item)))
        self.changed.notify_all()

    # -- requests ---------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: bytes) -> Object | Iterator[Object]:
        """The object, the list, or the events of a watch. Raises RefusedError."""
        place = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(place.query).items()}
        found = next(
            ((m, group) for each, group in PATHS.items() if (m := each.fullmatch(unquote(place.path)))), None
        )
        if found is None:
            raise RefusedError(404, "the server could not find the requested resource")
        words, group = found[0].groupdict(), found[1]
        resource, name = words["resource"], words["name"] or ""
        watches = query.get("watch") == "1"
        verb = "patch" if method == "PATCH" else "watch" if watches else "get" if name else "list"
        self.seen[f"{verb} {resource}"] += 1
        if not self.allowed((verb, resource, name)):
            whole = f"{resource}.{group}" if group else resource
            raise RefusedError(
                403, f'{whole} "{name}" is forbidden: User "{USER}" cannot {verb} resource "{resource}"'
            )
        if status := self.fail(method, path):
            raise RefusedError(status, "the test wants it so")
        with self.changed:
            if watches:
                return self._watch(resource, int(query["resourceVersion"]), _selector(query))
            if not name:
                items = [each for each in self.items(resource) if _selector(query)(each)]
                return {"metadata": {"resourceVersion": str(self._version)}, "items": items}
            if (resource, name) not in self._objects:
                raise RefusedError(404, f'{resource} "{name}" not found')
            if method == "GET":
                return copy.deepcopy(self._objects[(resource, name)])
            item = patched(self._objects[(resource, name)], json.loads(body))
            self._write(resource, "MODIFIED", item)
            return copy.deepcopy(item)

    def _watch(self, resource: str, version: int, wanted: Callable[[Object], bool]) -> Iterator[Object]:
        until = datetime.now(UTC) + timedelta(seconds=WATCH_MOST_S)
        done = 0
        while True:
            with self.changed:
                if version < self._oldest - 1:
                    status = {"code": 410, "message": f"too old resource version: {version} ({self._oldest})"}
                    yield {"type": "ERROR", "object": status}
                    return
                fresh = self._events[done:]
                done = len(self._events)
                if not fresh:
                    left_s = (until - datetime.now(UTC)).total_seconds()
                    if left_s <= 0 or self.is_stopping:
                        about = {"resourceVersion": str(max(version, self._version))}
                        yield {"type": "BOOKMARK", "object": {"metadata": about}}
                        return
                    self.changed.wait(left_s)
            for number, kind, other, item in fresh:
                if other == resource and number > version and wanted(item):
                    yield {"type": kind, "object": item}


def _selector(query: dict[str, str]) -> Callable[[Object], bool]:
    wanted = [part.partition("=") for part in query.get("labelSelector", "").split(",") if part]
    return lambda item: all(item["metadata"].get("labels", {}).get(key) == value for key, _, value in wanted)


def patched(item: Object, operations: list[Object]) -> Object:
    """RFC 6902: test, add, replace, remove, all or nothing. Raises RefusedError with 422."""
    item = copy.deepcopy(item)
    for operation in operations:
        *way, last = [w.replace("~1", "/").replace("~0", "~") for w in operation["path"].split("/")[1:]]
        try:
            place: Any = item
            for word in way:
                place = place[int(word) if isinstance(place, list) else word]
            key: Any = int(last) if isinstance(place, list) else last
            match operation["op"]:
                case "test":
                    if place[key] != operation["value"]:
                        raise RefusedError(422, f"testing value {operation['path']} failed")
                case "add" if isinstance(place, list):
                    place.insert(key, operation["value"])
                case "add":
                    place[key] = operation["value"]
                case "replace":
                    place[key]
                    place[key] = operation["value"]
                case "remove":
                    del place[key]
        except (KeyError, IndexError, ValueError) as error:
            raise RefusedError(422, f"{operation['path']} does not exist ({error!r})") from None
    return item


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """A server on a port of its own. `folder` becomes the one of a service account."""
    server = Server()
    key, certificate = _certificate()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.pem").write_bytes(key)
    (folder / "ca.crt").write_bytes(certificate)
    (folder / "token").write_text(server.token)
    (folder / "namespace").write_text("here")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one segment for each answer

        def do_GET(self) -> None:
            self._answer(b"")

        def do_PATCH(self) -> None:
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body: bytes) -> None:
            try:
                if self.headers.get("Authorization") != f"Bearer {server.token}":
                    raise RefusedError(401, "Unauthorized")
                found = server.answer(self.command, self.path, body)
            except RefusedError as error:
                self._say(error.code, {"kind": "Status", "code": error.code, "message": str(error)})
                return
            if isinstance(found, dict):
                self._say(200, found)
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in found:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def _say(self, code: int, item: Object) -> None:
            said = json.dumps(item).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that went away

    http = Quiet(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    server.account, server.port = folder, http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.is_stopping = True
        with server.changed:
            server.changed.notify_all()
        http.shutdown()
        http.server_close()
        thread.join()


def _certificate() -> tuple[bytes, bytes]:
    """A key and its self-signed certificate for 127.0.0.1."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(pem)
