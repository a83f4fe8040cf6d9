"""`prices fetch` against moto's EC2: paginated, appended without doubles."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from agileml.cli import main
from bidbrain.history.fetch import FetchError, fetch_rows
from bidbrain.history.readers import read_rows
from bidbrain.instants import Interval

pytestmark = pytest.mark.aws


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@mock_aws
def test_fetch_appends_without_doubles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tmp_path / "archive.csv.gz"
    texts = []
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(["prices", "fetch", str(archive), "--types", "m5.large", "--days", "1"])
        assert end.value.code == 0
        texts.append(capsys.readouterr().out)
    rows = list(read_rows(archive))
    assert rows
    assert len({row[1:4] for row in rows}) >= 1
    assert {row[1] for row in rows} == {"m5.large"}
    assert all(row[4] > 0 for row in rows)
    assert len(set(rows)) == len(rows)


class Pages:
    """A client of two pages, as the paginator gives them."""

    def __init__(self, pages: list[list[dict]]) -> None:
        self._pages = pages

    def get_paginator(self, name: str) -> "Pages":
        assert name == "describe_spot_price_history"
        return self

    def paginate(self, **wanted: object):
        self.wanted = wanted
        yield from ({"SpotPriceHistory": page} for page in self._pages)


def test_all_pages_are_read() -> None:
    from datetime import UTC, datetime

    entry = {
        "Timestamp": datetime(2026, 1, 2, tzinfo=UTC),
        "InstanceType": "g5.xlarge",
        "AvailabilityZone": "us-east-1a",
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": "0.402500",
    }
    client = Pages([[entry], [entry | {"SpotPrice": "0.41"}]])
    rows = list(fetch_rows(client, Interval(0, 10), ["g5.xlarge"], ["Linux/UNIX"]))
    assert [row[4] for row in rows] == [402_500, 410_000]
    assert client.wanted["InstanceTypes"] == ["g5.xlarge"]


@mock_aws
def test_what_aws_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url="http://127.0.0.1:9")
    client.meta.config.retries = {"max_attempts": 0}
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(FetchError, match="AWS could not be asked for the price history") as error:
        list(fetch_rows(client, Interval(0, 10), [], ["Linux/UNIX"]))
    assert "\n" not in str(error.value)


def test_the_page_of_a_proxy_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"Please log in to this network")

        def log_message(self, *_: object) -> None: ...

    monkeypatch.chdir(tmp_path)
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        at = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(SystemExit) as end:
            main(["prices", "fetch", "archive.csv", "--endpoint-url", at])
        server.shutdown()
        thread.join()
    assert end.value.code == 2
    assert capsys.readouterr().err == "proteus: what answered the question for the price history is not EC2\n"
    assert not list(tmp_path.iterdir())
