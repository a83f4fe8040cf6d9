"""Checkpoints in S3 (moto's server): the same promises, with a service that refuses, resets and breaks off."""

import logging
import random
import time
from collections.abc import Iterator

import pytest
from botocore.response import StreamingBody
from urllib3.exceptions import SSLError

from agileml.checkpoints.checkpoint import (
    Check,
    NotThereError,
    StoreError,
    newest,
    prune,
    survey,
    write_part,
)
from agileml.checkpoints.opening import open_store
from agileml.checkpoints.s3 import S3Store
from agileml.cli import main
from agileml.config.job import from_values
from agileml.core.protocol.commands import Seal
from agileml.core.protocol.messages import Saved
from agileml.core.protocol.view import CutId
from agileml.process.checkpoint_io import ManifestWriter
from agileml.process.spec import RunSpec
from tests.agileml.checkpoints.rig import IDENTITY, cut_of, newest_read, write, writers
from tests.agileml.checkpoints.s3_rig import BUCKET, ENVIRONMENT, Fault, FaultyS3, faulty_s3

pytestmark = pytest.mark.aws

KILLS = 20
PIECE = 5 << 20  # the least that S3 takes
BIG = 900_000  # elements of a cut of more than two pieces


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyS3]:
    with faulty_s3() as found:
        yield found


@pytest.fixture
def s3(server: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    server.choose, server.fired, server.takes_checksums = lambda _: None, [], True
    yield server
    server.choose = lambda _: None
    client = server.client()
    for key in server.objects():
        client.delete_object(Bucket=BUCKET, Key=key)


def test_checkpoints_are_written_read_and_pruned(s3: FaultyS3) -> None:
    store = open_store(f"s3://{BUCKET}/runs/a")
    store.probe()
    assert newest(store, pytest.fail) is None and s3.objects() == []
    write(open_store(f"s3://{BUCKET}/runs/ab"), CutId(99, 99))  # a neighbour
    for clock in (9, 10, 11):
        write(store, CutId(clock, 1))
        assert newest_read(store) == CutId(clock, 1)
    assert prune(store, 2) == [CutId(9, 1)]
    assert [one.name.clock for one in survey(store, Check.CHECKSUMS)] == [10, 11]
    assert len(s3.objects()) == 9
    with pytest.raises(NotThereError, match="s3://bucket/runs/a/clock-1-1/x could not be read: NoSuchKey"):
        list(store.get("clock-1-1/x"))


def test_show_reads_a_bucket(s3: FaultyS3, capsys: pytest.CaptureFixture[str]) -> None:
    write(open_store(f"s3://{BUCKET}/shown"), CutId(5, 1))
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "show", f"s3://{BUCKET}/shown"])
    assert left.value.code == 0 and "whole, a resume takes it" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["checkpoint", "show", f"s3://{BUCKET}/nothing"])
    assert left.value.code == 2
    assert "s3://bucket/nothing holds no checkpoints, expected" in capsys.readouterr().err


def test_pieces_that_fail_are_sent_again_and_a_broken_download_goes_on(s3: FaultyS3) -> None:
    store = S3Store(BUCKET, "big", piece_bytes=PIECE)
    s3.once(
        ("partNumber=2", Fault.SLOW_DOWN),
        ("PUT /bucket/big/clock-1-1/part-1.safetensors", Fault.RESET),
        ("manifest.json", Fault.INTERNAL),
        ("GET /bucket/big/clock-1-1/part-0.safetensors", Fault.BREAK),
    )
    write(store, CutId(1, 1), elements=BIG)
    assert newest_read(store, BIG) == CutId(1, 1)
    assert {fault for fault, _ in s3.fired} == {Fault.SLOW_DOWN, Fault.RESET, Fault.INTERNAL, Fault.BREAK}
    assert s3.uploads() == []


def test_a_service_without_checksums_of_its_own_keeps_checkpoints(s3: FaultyS3) -> None:
    """As many that are not AWS', which refuse what boto3 sends unless it is told otherwise."""
    s3.takes_checksums = False
    store = S3Store(BUCKET, "elsewhere", piece_bytes=PIECE)
    store.probe()
    write(store, CutId(1, 1), elements=BIG)
    assert newest_read(store, BIG) == CutId(1, 1)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://s3.eu-central-003.backblazeb2.com", "when_required"),
        ("http://minio:9000", "when_required"),
        ("https://bucket.vpce-1a2b.s3.us-east-1.vpce.amazonaws.com", "when_supported"),
        (None, "when_supported"),
    ],
)
def test_aws_itself_checks_each_upload(
    address: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    if address is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    assert S3Store(BUCKET, "a")._client.meta.config.request_checksum_calculation == expected


def test_a_download_goes_on_after_a_broken_tls_record(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which botocore does not make an error of its own."""
    store = S3Store(BUCKET, "runs/tls", attempts=2)
    store.put("part", [b"0123456789"], 10)
    read = StreamingBody.read
    broken = iter([True])

    def read_or_break(body: StreamingBody, amt: int | None = None) -> bytes:
        if next(broken, False):
            raise SSLError("decryption failed or bad record mac")
        return read(body, amt)

    monkeypatch.setattr(StreamingBody, "read", read_or_break)
    assert b"".join(store.get("part")) == b"0123456789"
    broken = iter([True, True])
    with pytest.raises(StoreError, match="part could not be read: decryption failed"):
        list(store.get("part"))


def test_a_long_download_may_break_often(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(BUCKET, "runs/long", attempts=2)
    content = bytes(range(40))
    store.put("part", [content], len(content))
    read, breaks = StreamingBody.read, iter([False, True] * 10)

    def read_or_break(body: StreamingBody, amt: int | None = None) -> bytes:
        if next(breaks, False):
            raise SSLError("decryption failed or bad record mac")
        return read(body, amt)

    monkeypatch.setattr("agileml.checkpoints.s3.CHUNK_BYTES", 4)
    monkeypatch.setattr(StreamingBody, "read", read_or_break)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert b"".join(store.get("part")) == content


def test_an_upload_that_fails_for_good_leaves_nothing(s3: FaultyS3, caplog: pytest.LogCaptureFixture) -> None:
    store = S3Store(BUCKET, "bad", attempts=2, piece_bytes=PIECE)
    write(store, CutId(1, 1))
    caplog.set_level(logging.INFO)
    s3.choose = lambda request: Fault.SLOW_DOWN if "partNumber=2" in request else None
    with pytest.raises(
        StoreError, match=r"^s3://bucket/bad/clock-2-1/part-0\.safetensors could not be written: "
    ):
        write(store, CutId(2, 1), elements=BIG)
    assert s3.uploads() == [] and not any("clock-2-1" in key for key in s3.objects())
    assert newest_read(store) == CutId(1, 1)
    s3.choose = lambda _: Fault.DENIED
    with pytest.raises(
        StoreError, match=r"^s3://bucket/bad could not be listed: AccessDenied: No$"
    ) as raised:
        newest(store, pytest.fail)
    secret = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
    assert secret not in str(raised.value) and secret not in caplog.text


def test_uploads_of_killed_writers_are_swept(s3: FaultyS3) -> None:
    client = s3.client()
    for key in ("swept/clock-1-1/part-0.safetensors", "swept/clock-9-1/part-0.safetensors", "swept/mine"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    store = S3Store(BUCKET, "swept")
    write(store, CutId(2, 1))
    assert prune(store, 2) == []
    assert s3.uploads() == ["swept/clock-9-1/part-0.safetensors", "swept/mine"]


def test_a_right_that_is_missing_is_told_once_in_a_run(s3: FaultyS3) -> None:
    """Each checkpoint would say it again, every minute for weeks."""
    place = {"application": "mf", "clocks": 8, "checkpoint": {"path": f"s3://{BUCKET}/rights", "keep": 1}}
    warned: list[str] = []
    spec = RunSpec("run", from_values(place))
    writer = ManifestWriter(spec, IDENTITY, lambda _: None, warned.append)

    def save(clock: int) -> None:
        name, store = CutId(clock, 1), spec.stores()[0]
        part = write_part(store, name, 0, cut_of(name, 0))
        writer.ask(Seal(name, (Saved(name, 0, part.bytes, part.sha256, ()),)))
        writer.finish(60.0)

    s3.choose = lambda request: Fault.DENIED if request.startswith("GET") and "uploads" in request else None
    for clock in (1, 2, 3):
        save(clock)
    assert [one.name.clock for one in survey(spec.stores()[0], Check.CHECKSUMS)] == [3]
    assert warned == [
        f"old files of checkpoints stay: s3://{BUCKET}/rights could not be cleaned of broken uploads: AccessDenied: No"
    ]
    s3.choose = lambda request: Fault.DENIED if request.startswith("DELETE") else None
    for clock in (4, 5):
        save(clock)
    assert len(warned) == 2 and "clock-3-1/manifest.json could not be removed" in warned[1]


def test_what_cannot_be_reached_is_one_sentence(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"^s3://no-such-bucket/x could not be listed: NoSuchBucket: "):
        newest(S3Store("no-such-bucket", "x"), pytest.fail)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        StoreError, match=r"^s3://bucket could not be listed: Could not connect to the endpoint"
    ):
        newest(S3Store(BUCKET, "", attempts=1), pytest.fail)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(StoreError, match=r"^s3://bucket could not be reached: Invalid endpoint"):
        newest(S3Store(BUCKET, ""), pytest.fail)


@pytest.mark.slow
def test_killed_at_random_times_with_errors_injected(s3: FaultyS3) -> None:
    prefix, rng, clock = "kills", random.Random(3), 0
    store = S3Store(BUCKET, prefix)
    s3.at_random(seed=4, rate=0.02)
    job = {"keep": 2, "partitions": 2, "elements": BIG, "piece_bytes": PIECE}
    with writers(AWS_ENDPOINT_URL=s3.url, **ENVIRONMENT) as started:
        for _ in range(KILLS):
            pid = started.start(store=f"s3://{BUCKET}/{prefix}", **job)
            finished = started.finished()
            time.sleep(rng.uniform(0, 1.0))  # this is the fault, nothing is waited for
            started.kill(pid)
            finished = max(finished, started.ended()[0])
            found = newest_read(store, BIG)
            assert found is not None and found.clock >= max(finished, clock)
            clock = found.clock
    assert clock >= KILLS
    s3.choose = lambda _: None
    write(store, CutId(clock + 1, 999))
    prune(store, 1)
    assert not any(key.startswith(prefix) for key in s3.uploads())
    assert sum(key.startswith(prefix) for key in s3.objects()) == 3
