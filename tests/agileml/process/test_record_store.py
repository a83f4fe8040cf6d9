"""Records of the controller: a number is written once, and the write of one record may be repeated."""

from __future__ import annotations

from pathlib import Path

from agileml.process.record_store import FileStore


def test_a_number_that_is_taken_is_taken(tmp_path: Path) -> None:
    mine, other = FileStore(tmp_path), FileStore(tmp_path)
    assert mine.newest() is None
    assert mine.create(1, "mine")
    assert not other.create(1, "other")
    assert other.newest() == "mine"


def test_a_write_whose_answer_got_lost_may_be_repeated(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.create(1, "mine")
    assert store.create(1, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.json"]
