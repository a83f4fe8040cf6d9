"""EC2 over HTTP, for processes of their own: moto's server behind rules of EC2 that moto leaves out.

A token that was seen gets the answer of then, spot prices are those that are set, and an instance that the market
took says so from the first look on. Everything else is moto's.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.aws.layer import REGION
from tests.aws.stack_rig import ACCOUNT

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
EVICTED = "Server.SpotInstanceTermination"
Answer = tuple[int, bytes]


class Front:
    """`prices`: (type, zone) -> dollars per hour. `seen` counts what happened beyond moto."""

    def __init__(self, moto_url: str) -> None:
        place = urlsplit(moto_url)
        assert place.hostname is not None
        self._place = (place.hostname, place.port)
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[str, Answer]] = {}  # by token: what was asked, what was answered
        self.prices: dict[tuple[str, str], float] = {}
        self.seen = Counter[str]()
        self.lost = 0  # so many purchases are made, and not answered
        self.url = ""

    def evict(self, machine_id: str) -> None:
        """Take a spot machine as EC2 does: nobody can see it ended without the reason."""
        from moto.ec2.models import ec2_backends
        from moto.ec2.models.instances import StateReason

        with self._lock:
            instance = ec2_backends[ACCOUNT][REGION].get_instance(machine_id)
            instance.terminate()
            instance.state_reason = StateReason(f"{EVICTED}: Instance terminated by the market", EVICTED)
            instance._reason = EVICTED

    def move(self, machine_id: str, ip: str) -> None:
        """Give an instance the address of the machine that stands for it."""
        from moto.ec2.models import ec2_backends

        with self._lock:
            ec2_backends[ACCOUNT][REGION].get_instance(machine_id).nics[0].private_ip_address = ip

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        """One request at a time, as the rules above are not moto's."""
        form = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        with self._lock:
            match form.get("Action"):
                case "CreateFleet":
                    return self._create_fleet(form, method, path, headers, body)
                case "DescribeSpotPriceHistory":
                    return 200, self._price_history(form)
            return self._of_moto(method, path, headers, body)

    def _create_fleet(
        self, form: dict[str, str], method: str, path: str, headers: Any, body: bytes
    ) -> Answer:
        token = form["ClientToken"]
        asked = hashlib.sha256(repr(sorted(form.items())).encode()).hexdigest()
        if token in self._answers:
            before, answer = self._answers[token]
            if before != asked:
                return 400, refused("IdempotentParameterMismatch", "the same token, other parameters")
            self.seen["same token"] += 1
            return answer
        answer = self._of_moto(method, path, headers, body)
        if answer[0] == 200:
            self.seen["fleets"] += 1
            self._answers[token] = asked, answer
            if self.lost > 0:
                self.lost -= 1
                self.seen["answer lost"] += 1
                return 503, refused("Unavailable", "the answer did not come through")
        return answer

    def _price_history(self, form: dict[str, str]) -> bytes:
        """One row per market, as old as the question reaches back."""
        types = {value for key, value in form.items() if key.startswith("InstanceType.")}
        at = datetime.fromisoformat(form["StartTime"].replace("Z", "+00:00")).astimezone(UTC)
        rows = "".join(
            f"<item><instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
            f"<productDescription>Linux/UNIX</productDescription><spotPrice>{price:.6f}</spotPrice>"
            f"<timestamp>{at:%Y-%m-%dT%H:%M:%S.000Z}</timestamp></item>"
            for (kind, zone), price in sorted(self.prices.items())
            if kind in types
        )
        name = "DescribeSpotPriceHistoryResponse"
        return (
            f'<{name} xmlns="{NAMESPACE}"><spotPriceHistorySet>{rows}</spotPriceHistorySet></{name}>'.encode()
        )

    def _of_moto(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(*self._place, timeout=600)
        try:
            connection.request(method, path, body, dict(headers.items()))
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


def refused(code: str, message: str) -> bytes:
    """An error as EC2 says it."""
    said = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    return f"<Response><Errors><Error>{said}</Error></Errors><RequestID>1</RequestID></Response>".encode()


@contextmanager
def front_of(moto_url: str) -> Iterator[Front]:
    """A front on a port of its own."""
    front = Front(moto_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, said = front.answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    front.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
