"""Traces of recorded availability, and their files."""

from pathlib import Path

import pytest

from bidbrain.history.availability import read_trace
from bidbrain.history.prices import NEVER_S
from bidbrain.history.readers import HistoryError
from tests.bidbrain.makers import broken_gzip, pool


def test_counts_and_changes_of_a_trace() -> None:
    trace = pool("p", [3, 3, 5, 5, 0])
    assert [trace.count_at(t) for t in (0, 299, 300, 600, 1499, 9999)] == [3, 3, 3, 5, 0, 0]
    assert [trace.next_change_s(t) for t in (0, 599, 600, 1199, 1200)] == [600, 600, 1200, 1200, NEVER_S]


def test_both_formats_are_read(tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    one.write_text('{"metadata": {"gap_seconds": 300}, "data": [1, 2, 0]}')
    assert read_trace(one).counts.tolist() == [1, 2, 0]
    other = tmp_path / "other.csv"
    other.write_text("0,add,n1\n0,add,n2\n310000,remove,n1\n900000,add,n3\n")
    trace = read_trace(str(other))
    assert trace.counts.tolist() == [2, 2, 1, 2]
    assert str(trace.market) == "node@other"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "0,add,n1\n310000,add,n2\n700000,remove,n1\n"),
        ("a.json", '{"metadata": {"gap_seconds": 300}, "data": [1, 1, 2]}'),
    ],
)
def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    assert read_trace(path).counts.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.json", "{", "line 1: not JSON"),
        ("a.json", '{"data": [1]}', "not an availability trace"),
        ("a.json", '{"metadata": {"gap_seconds": 0}, "data": [1]}', "above 0"),
        ("a.json", '{"metadata": {"gap_seconds": NaN}, "data": [1]}', "above 0"),
        ("a.json", '{"metadata": {"gap_seconds": 0.5}, "data": [1]}', "is 0.5, expected whole seconds"),
        ("a.json", '{"metadata": {"gap_seconds": 300}, "data": [1e30]}', r"data\[0\] is 1e\+30"),
        ("a.json", '{"metadata": {"gap_seconds": 300}, "data": [1%s]}' % ("0" * 30), r"data\[0\] is 10"),
        ("a.json", '{"metadata": {"gap_seconds": 300}, "data": [1, -2]}', r"data\[1\] is -2"),
        ("a.csv", "", "no events"),
        ("a.csv", "0,add\n", "line 1"),
        ("a.csv", "0,remove,n\n", "remove 'n'"),
        (
            "a.csv",
            "-5000,add,n\n-1000,remove,n\n",
            "line 1: -5000 ms, expected milliseconds since the trace began",
        ),
        (
            "a.csv",
            "1692000000000,add,n\n",
            "line 1: 1692000000000 ms, expected milliseconds since the trace began",
        ),
        ("a.csv", "5000,add,n\n0,add,m\n", "line 2: time runs backwards"),
    ],
)
def test_bad_traces_are_one_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(HistoryError, match=sentence):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.json.gz", broken_gzip(b'{"metadata": {"gap_seconds": 300}}'), "cannot be read .Error -3"),
        ("a.json.zst", b"no zstd", "cannot be read"),
        ("a.json", b"[" * 200_000, "a.json: JSON that cannot be used"),
    ],
)
def test_broken_files_are_one_sentence(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(HistoryError, match=sentence):
        read_trace(path)
    with pytest.raises(HistoryError, match="File name too long"):
        read_trace(tmp_path / ("x" * 300))
