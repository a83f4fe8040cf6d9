"""moto's S3 on a port, with faults: refusals, dropped connections, answers that break off."""

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "an-access-key",
    "AWS_SECRET_ACCESS_KEY": "a-secret-that-no-log-shows",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Fault(Enum):
    """What happens to a request."""

    SLOW_DOWN = "503 Slow Down"
    INTERNAL = "500 Internal Server Error"
    DENIED = "403 Forbidden"
    RESET = "the connection is reset before the request is obeyed"
    BREAK = "the answer breaks off in its middle"


CODES = {Fault.SLOW_DOWN: "SlowDown", Fault.INTERNAL: "InternalError", Fault.DENIED: "AccessDenied"}


@dataclass
class FaultyS3:
    """`choose` says for each request, given as "METHOD path?query", which fault it meets, if any."""

    url: str = ""
    choose: Callable[[str], Fault | None] = lambda _: None
    fired: list[tuple[Fault, str]] = field(default_factory=list)
    takes_checksums: bool = True  # those of S3's protocol, which many other services do not take

    def at_random(self, seed: int, rate: float) -> None:
        """Any request meets any passing fault with probability `rate`."""
        rng = random.Random(seed)
        passing = [Fault.SLOW_DOWN, Fault.INTERNAL, Fault.RESET, Fault.BREAK]
        self.choose = lambda _: rng.choice(passing) if rng.random() < rate else None

    def once(self, *plan: tuple[str, Fault]) -> None:
        """The first request that holds a text meets its fault."""
        left = list(plan)

        def choose(request: str) -> Fault | None:
            for item in left:
                if item[0] in request:
                    left.remove(item)
                    return item[1]
            return None

        self.choose = choose

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="k",
            aws_secret_access_key="s",
            region_name="us-east-1",
        )

    def uploads(self) -> list[str]:
        """Keys of multipart uploads that were neither finished nor aborted."""
        return [
            upload["Key"] for upload in self.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        ]

    def objects(self) -> list[str]:
        """Keys of all objects."""
        return [entry["Key"] for entry in self.client().list_objects_v2(Bucket=BUCKET).get("Contents", ())]


def _faulty(application: Any, state: FaultyS3) -> Any:
    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        if not state.takes_checksums and "HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM" in environ:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("400 Bad Request", [("Content-Type", "application/xml")])
            told = "Unsupported header 'x-amz-sdk-checksum-algorithm' received for this API call."
            return [f"<Error><Code>InvalidArgument</Code><Message>{told}</Message></Error>".encode()]
        fault = state.choose(request)
        if fault is Fault.BREAK and environ["REQUEST_METHOD"] != "GET":
            fault = None  # that the answer was lost, not the deed, is another matter
        if fault is None:
            return application(environ, start_response)
        state.fired.append((fault, request))
        connection: socket.socket = environ["werkzeug.socket"]
        if fault is Fault.RESET:
            _reset(connection)
            return []
        if fault is Fault.BREAK:
            return _broken(application(environ, start_response), connection)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(fault.value, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{CODES[fault]}</Code><Message>No.</Message></Error>".encode()]

    return serve


def _broken(answer: Iterable[bytes], connection: socket.socket) -> Iterator[bytes]:
    content = b"".join(answer)
    yield content[: len(content) // 2]
    _reset(connection)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def faulty_s3() -> Iterator[FaultyS3]:
    """A server with an empty bucket."""
    state = FaultyS3()
    server = make_server(
        "127.0.0.1", 0, _faulty(DomainDispatcherApplication(create_backend_app), state), threaded=True
    )
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        state.client().create_bucket(Bucket=BUCKET)
        yield state
    finally:
        state.choose = lambda _: None
        server.shutdown()
        thread.join()
        server.server_close()
