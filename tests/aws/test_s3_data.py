"""data.path: s3://bucket/key, by moto."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agileml.application import InputError
from agileml.apps.data import data_file
from agileml.apps.files.formats.parquet import ParquetDataset
from agileml.apps.files.opening import fetched
from agileml.config.job import from_values
from agileml.events.run import RunStarted
from agileml.runs.folder import RunFolder
from agileml.runs.owner import this_process
from bidbrain.aws.calls import client
from bidbrain.aws.site import Site
from tests.aws.layer import REGION

pytestmark = pytest.mark.aws


@pytest.fixture(autouse=True)
def _here(moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    client("s3", REGION, moto_url).create_bucket(Bucket="data-of-tests")


def put(url: str, key: str, content: bytes) -> None:
    client("s3", REGION, url).put_object(Bucket="data-of-tests", Key=key, Body=content)


def test_an_object_is_downloaded_once_and_again_when_it_changes(moto_url: str, tmp_path: Path) -> None:
    put(moto_url, "a/ratings.csv", b"one")
    first = data_file("s3://data-of-tests/a/ratings.csv")
    assert first.name == "ratings.csv" and first.read_bytes() == b"one"
    written_ns = first.stat().st_mtime_ns
    assert data_file("s3://data-of-tests/a/ratings.csv") == first
    assert first.stat().st_mtime_ns == written_ns
    put(moto_url, "a/ratings.csv", b"two")
    second = data_file("s3://data-of-tests/a/ratings.csv")
    assert second != first and second.read_bytes() == b"two"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("s3://data-of-tests/none.npz", "does not exist"),
        ("s3://no-such-bucket-of-ours/x.npz", "does not exist"),
        ("s3://data-of-tests/empty", "is empty"),
        ("s3://data-of-tests", "expected s3://bucket/key of a file"),
        ("s3://B!/x", "found the bucket"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(moto_url: str, path: str, said: str) -> None:
    put(moto_url, "empty", b"")
    with pytest.raises(InputError, match=r"^data\.path: ") as caught:
        fetched(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_job_trains_on_it(moto_url: str, tmp_path: Path) -> None:
    import agileml

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    file = tmp_path / "two.npz"
    np.savez(file, x_train=x[:160], y_train=y[:160], x_test=x[160:], y_test=y[160:])
    put(moto_url, "two.npz", file.read_bytes())
    base = {"application": "mlr", "clocks": 5, "slices": 8, "deterministic": True}

    def train(path: str, name: str) -> str:
        values = base | {"data": {"kind": "npz", "path": path}, "out": str(tmp_path / name)}
        return str(agileml.run(from_values(values), sequential=True).summary["params_sha256"])

    assert train("s3://data-of-tests/two.npz", "far") == train(str(file), "near")


def test_parquet_files_of_a_bucket_go_through_a_cache_that_is_smaller(moto_url: str, tmp_path: Path) -> None:
    for number in range(4):
        buffer = io.BytesIO()
        table = pa.table({"n": np.arange(number * 1000, number * 1000 + 1000), "pad": np.random.rand(1000)})
        pq.write_table(table, buffer, row_group_size=500)
        put(moto_url, f"train/{number}.parquet", buffer.getvalue())
    size = len(buffer.getvalue())
    url = "s3://data-of-tests/train/*.parquet"
    data = ParquetDataset(url, columns=["n"], memory_mib=0.001, cache_gib=2.5 * size / 2**30)
    assert data.read_groups == (500,) * 8
    for numbers in (np.arange(0, 4000, 7), np.arange(3999, 0, -13)):
        assert data.batch(numbers)["n"].tolist() == numbers.tolist()
    kept = [path.stat().st_size for path in (tmp_path / "cache").rglob("*.parquet")]
    assert len(kept) == 2
    with pytest.raises(InputError, match=r"has 0\.00 GiB, expected at most the 0\.00 GiB"):
        ParquetDataset(url, cache_gib=0.5 * size / 2**30)[0]
    put(moto_url, "train/0.parquet", b"other")
    with pytest.raises(InputError, match=r"train/0\.parquet was replaced since the run began"):
        data.batch(np.array([0]))


def test_a_run_on_ec2_is_copied_before_its_machine_goes(moto_url: str, tmp_path: Path) -> None:
    from agileml.aws.run_upload import keep_run

    folder = tmp_path / "digits-20260501-120000"
    (folder / "market").mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    (folder / "market" / "journal.jsonl").write_bytes(b"x" * 100)
    site = Site(name="kept", region=REGION, zones=("us-east-1a",), types=("c5.xlarge",))
    worked, told = keep_run(folder, site)
    assert not worked and "could not be copied to S3" in told and "\n" not in told, "no bucket yet"
    s3 = client("s3", REGION, moto_url)
    s3.create_bucket(Bucket="proteus-kept-123456789012-us-east-1")
    worked, told = keep_run(folder, site)
    assert (worked, told) == (
        True,
        "s3://proteus-kept-123456789012-us-east-1/proteus/kept/runs/digits-20260501-120000",
    )
    there = s3.list_objects_v2(Bucket="proteus-kept-123456789012-us-east-1")["Contents"]
    assert [each["Key"].partition("120000/")[2] for each in there] == ["market/journal.jsonl", "summary.json"]


def test_the_copy_of_a_run_never_replaces_that_of_another(
    moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs whose `out` ends alike, and one with the `out` of a run of an earlier head, whose disk is gone."""
    from agileml.aws.run_upload import keep_run

    site = Site(
        name="two", region=REGION, zones=("us-east-1a",), types=("c5.xlarge",), bucket="data-of-tests"
    )
    s3, home = client("s3", REGION, moto_url), "s3://data-of-tests/proteus/two/runs"

    def ends(head: str, out: str, model: bytes) -> str:
        monkeypatch.setenv("HOME", str(tmp_path / head))
        path = tmp_path / head / "proteus-runs" / out
        folder = RunFolder.reopen(path) if path.is_dir() else RunFolder.create(path, "job")
        folder.events.write(RunStarted("job", {}, time.time(), this_process()))
        folder.events.close()
        (path / "model.safetensors").write_bytes(model)
        worked, told = keep_run(path, site)
        assert worked, told
        key = f"{told.removeprefix('s3://data-of-tests/')}/model.safetensors"
        assert s3.get_object(Bucket="data-of-tests", Key=key)["Body"].read() == model
        return told

    assert ends("first", "a/seed0", b"1") == f"{home}/a/seed0"
    assert ends("first", "b/seed0", b"2") == f"{home}/b/seed0"
    assert ends("first", "b/seed0", b"3") == f"{home}/b/seed0", "a supervised run that began again"
    assert ends("second", "b/seed0", b"4") == f"{home}/b/seed0-2"
    found = s3.get_object(Bucket="data-of-tests", Key="proteus/two/runs/b/seed0/model.safetensors")
    assert found["Body"].read() == b"3"


@pytest.mark.parametrize("now", [b"line\nmore\n", b"l"], ids=["longer", "shorter"])
def test_a_log_that_changes_while_a_run_is_copied_ends_nothing(
    moto_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bytes
) -> None:
    """As the output of a run that goes into its folder, or the files of an observer."""
    from agileml.aws.run_upload import keep_run
    from agileml.checkpoints.s3 import S3Store

    site = Site(
        name="logs", region=REGION, zones=("us-east-1a",), types=("c5.xlarge",), bucket="data-of-tests"
    )
    folder = tmp_path / "logs-1"
    folder.mkdir()
    (folder / "run.log").write_bytes(b"line\n")
    put = S3Store.put

    def changed(store: S3Store, name: str, chunks: Iterable[bytes], size: int) -> None:
        (folder / name).write_bytes(now)
        put(store, name, chunks, size)

    monkeypatch.setattr(S3Store, "put", changed)
    worked, told = keep_run(folder, site)
    if len(now) < 5:
        assert not worked and told.endswith(f"{folder / 'run.log'} became shorter meanwhile")
    else:
        key = "proteus/logs/runs/logs-1/run.log"
        found = client("s3", REGION, moto_url).get_object(Bucket="data-of-tests", Key=key)
        assert worked and found["Body"].read() == b"line\n"
