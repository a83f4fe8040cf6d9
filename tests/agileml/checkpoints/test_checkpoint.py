"""Checkpoints: what is written comes back, what is not whole is never taken, what is old goes."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors import safe_open

from agileml.checkpoints.checkpoint import (
    Check,
    CheckpointError,
    CheckpointStore,
    Condition,
    DamagedError,
    Manifest,
    NotThereError,
    last_epoch,
    newest,
    prune,
    read_part,
    survey,
    verify,
    write_manifest,
    write_part,
)
from agileml.checkpoints.format import DTYPES, decode, encode
from agileml.checkpoints.store import FolderStore
from agileml.core.protocol.messages import ClockReport, Cut
from agileml.core.protocol.view import CutId
from tests.agileml.checkpoints.rig import (
    IDENTITY,
    MemoryStore,
    cut_of,
    newest_read,
    same,
    write,
)
from tests.thorough import examples

FEW = settings(deadline=None, derandomize=True, max_examples=examples(60))
NAME = CutId(7, 3)

arrays = st.sampled_from(sorted(DTYPES.values())).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
progresses = st.builds(
    ClockReport,
    clock=st.integers(0, 2**40),
    loss=st.floats(),
    examples=st.integers(0, 2**40),
    at_s=st.floats(allow_nan=False, allow_infinity=False),
)
pending = st.lists(
    st.tuples(st.integers(0, 2**40), st.lists(st.integers(0, 2**200), max_size=3).map(tuple)), max_size=3
)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    blocks = draw(st.lists(arrays, max_size=4))
    slots = draw(st.integers(0, 2))
    state = tuple(tuple(np.copy(block) for block in blocks) for _ in range(slots))
    return Cut(
        NAME.clock,
        tuple(blocks),
        state,
        tuple(draw(pending)),
        tuple(draw(st.lists(progresses, max_size=3))),
    )


def names(store: CheckpointStore) -> list[CutId]:
    return [one.name for one in survey(store, Check.SIZES)]


# -- what is written comes back -----------------------------------------------------------------------------


@FEW
@given(cuts(), st.integers(0, 500))
def test_a_part_comes_back_as_it_was(cut: Cut, partition: int) -> None:
    encoded = encode(NAME, partition, cut)
    content = b"".join(encoded.chunks())
    assert len(content) == encoded.size_bytes
    assert same(decode(np.frombuffer(content, np.uint8), NAME, partition), cut)


def test_arrays_that_lie_oddly_in_memory_come_back_by_value() -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    cut = Cut(NAME.clock, (whole.T, whole[::2, 1:4], whole.astype(">f4")), ())
    found = decode(np.frombuffer(b"".join(encode(NAME, 0, cut).chunks()), np.uint8), NAME, 0)
    for block, expected in zip(found.blocks, cut.blocks, strict=True):
        assert np.array_equal(block, expected) and block.dtype == np.float32 and block.flags.c_contiguous


def test_a_checkpoint_is_read_back_whole(store: CheckpointStore) -> None:
    manifest = write(store, NAME, partitions=3)
    found = newest(store, pytest.fail, Check.CHECKSUMS)
    assert found == manifest and found.identity == IDENTITY and newest_read(store) == NAME
    verify(store, manifest)
    assert [
        path.name for path in (Path(store.where) / "clock-7-3").iterdir() if path.name.startswith(".")
    ] == []


def test_any_reader_of_safetensors_opens_a_part(store: CheckpointStore) -> None:
    write(store, NAME)
    cut = cut_of(NAME, 1)
    with safe_open(Path(store.where) / "clock-7-3" / "part-1.safetensors", framework="numpy") as file:
        assert sorted(file.keys()) == ["block.0", "block.1", "slot.0.0", "slot.0.1"]
        assert np.array_equal(file.get_tensor("slot.0.1"), cut.state[0][1])
        assert np.array_equal(file.get_tensor("block.0"), cut.blocks[0])


def test_what_is_read_is_aligned_and_may_be_changed(store: CheckpointStore) -> None:
    manifest = write(store, NAME)
    cut = read_part(store, manifest, 0)
    for array in (*cut.blocks, *cut.state[0]):
        assert array.flags.aligned and array.flags.writeable and array.flags.c_contiguous


# -- which one a resume takes -------------------------------------------------------------------------------


def test_nothing_there_is_no_checkpoint(store: CheckpointStore) -> None:
    assert newest(store, pytest.fail) is None and survey(store, Check.CHECKSUMS) == []
    assert not Path(store.where).exists()


def test_the_newest_has_the_latest_epoch_then_clock(store: CheckpointStore) -> None:
    order = [CutId(2, 1), CutId(10, 1), CutId(9, 5), CutId(10, 5), CutId(7, 10)]
    for name in order:
        write(store, name)
        assert newest_read(store) == name and last_epoch(store) == name.epoch
    assert names(store) == order


class Busy(MemoryStore):
    """A store whose writer replaces its only checkpoint after each of the first 30 times that it was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0
        self._replace()

    def _replace(self) -> None:
        self.clock += 1
        other = MemoryStore()
        write(other, CutId(self.clock, 1))
        self.files = other.files

    def list(self, prefix: str) -> dict[str, int]:
        found = super().list(prefix)
        if self.clock < 30:
            self._replace()
        return found


def test_a_store_that_changes_each_time_it_is_read_is_read_again() -> None:
    found = newest(Busy(), lambda problem: None)
    assert found is not None and found.name == CutId(30, 1)


def test_a_checkpoint_without_manifest_does_not_exist(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))
    write_part(store, CutId(2, 1), 0, cut_of(CutId(2, 1), 0))
    told: list[str] = []
    found = newest(store, told.append)
    assert found is not None and found.name == CutId(1, 1)
    assert told == [f"{store.where}/clock-2-1 is unfinished: it has no manifest.json"]


def test_no_manifest_is_written_before_all_parts_are_there(store: CheckpointStore) -> None:
    parts = tuple(write_part(store, NAME, p, cut_of(NAME, p)) for p in range(3))
    store.delete("clock-7-3/part-1.safetensors")
    with pytest.raises(
        CheckpointError, match=r"no manifest was written: .*clock-7-3/part-1\.safetensors is missing"
    ):
        write_manifest(store, Manifest(NAME, 0.0, IDENTITY, parts))
    assert newest(store, lambda _: None) is None


def damaged(store: CheckpointStore, check: Check) -> str:
    """The one sentence about NAME; clock 1 must be taken in its place."""
    told: list[str] = []
    found = newest(store, told.append, check)
    assert found is not None and found.name == CutId(1, 1)
    [sentence] = told
    [one] = [one for one in survey(store, check) if one.name == NAME]
    assert one.condition is Condition.DAMAGED and one.problem == sentence
    return sentence


def test_a_missing_a_short_and_a_long_part_are_damage(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))
    manifest = write(store, NAME)
    part = Path(store.where) / manifest.file(1)
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    assert damaged(store, Check.SIZES) == (
        f"{part} is damaged: it has {len(content) - 1} bytes, {len(content)} were written"
    )
    with pytest.raises(DamagedError, match=f"{len(content) - 1} bytes, {len(content)} were written"):
        read_part(store, manifest, 1)
    part.write_bytes(content + b"x")
    assert "were written" in damaged(store, Check.SIZES)
    with pytest.raises(DamagedError, match=f"it has more than the {len(content)} bytes"):
        verify(store, manifest)
    part.unlink()
    assert damaged(store, Check.SIZES) == f"{part} is missing"
    with pytest.raises(NotThereError, match="is not there"):
        read_part(store, manifest, 1)


@FEW
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(data: st.DataObject) -> None:
    store = MemoryStore()
    write(store, CutId(1, 1), elements=40)
    manifest = write(store, NAME, elements=40)
    file = data.draw(st.sampled_from(["manifest.json", "part-0.safetensors", "part-1.safetensors"]))
    path = f"clock-7-3/{file}"
    content = bytearray(store.files[path])
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    store.files[path] = bytes(content)
    told: list[str] = []
    found = newest(store, told.append, Check.CHECKSUMS)
    if found == manifest:  # a blank became another blank
        assert file == "manifest.json" and newest_read(store, elements=40) == NAME
    else:
        assert found is not None and found.name == CutId(1, 1)
        assert len(told) == 1 and path in told[0] and "\n" not in told[0]


@FEW
@given(st.binary(max_size=300) | st.sampled_from([b"{}", b"[]", b"null", b"{" * 5000, b'{"format": 1}']))
def test_what_is_no_manifest_is_damage(content: bytes) -> None:
    store = MemoryStore()
    write(store, CutId(1, 1), elements=40)
    write(store, NAME, elements=40)
    store.files["clock-7-3/manifest.json"] = content
    assert "manifest.json is damaged: it is no manifest" in damaged(store, Check.SIZES)


@pytest.mark.parametrize(
    "change", [{"partitions": 10**13}, {"at_s": 1e30}, {"at_s": "x"}, {"at_s": None}, {"at_s": float("nan")}]
)
def test_a_manifest_from_elsewhere_is_shown_whatever_numbers_it_has(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Its checksum may be right: whoever writes one can compute it."""
    write(FolderStore(tmp_path), NAME)
    path = tmp_path / "clock-7-3" / "manifest.json"
    plain = json.loads(path.read_text()) | change
    del plain["checksum"]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(plain | {"checksum": hashlib.sha256(canonical.encode()).hexdigest()}))
    (found,) = survey(FolderStore(tmp_path), Check.SIZES)
    assert found.condition is Condition.DAMAGED and "manifest.json is damaged: it " in found.problem


def test_a_part_from_elsewhere_takes_no_more_memory_than_it_has() -> None:
    encoded = encode(NAME, 0, Cut(7, (), (), (), ()))
    content = b"".join(map(bytes, encoded.chunks()))
    for old, new in (
        (b'\\"slots\\": 0', b'\\"slots\\": 99999999999'),
        (b"[]", b'[[7, [\\"0-9999999999999\\"]]]'),
    ):
        assert old in content
        changed = content[8:].replace(old, new, 1).rstrip()
        with pytest.raises(DamagedError, match="is not a part of a checkpoint"):
            decode(np.frombuffer(len(changed).to_bytes(8, "little") + changed, np.uint8), NAME, 0)


def test_a_manifest_in_the_wrong_folder_or_of_another_format_is_told(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))
    manifest = write(store, NAME)
    path = Path(store.where) / "clock-7-3" / "manifest.json"
    path.write_text(replace(manifest, name=CutId(8, 3)).to_text())
    assert damaged(store, Check.SIZES).endswith("manifest.json is damaged: it is that of clock-8-3")
    path.write_text(manifest.to_text().replace('"format": 1', '"format": 2'))
    assert damaged(store, Check.SIZES).endswith("it has format 2, this version of proteus reads format 1")
    path.write_text(replace(manifest, parts=manifest.parts[::-1]).to_text())
    assert damaged(store, Check.SIZES).endswith("it does not list the 2 parts it should have")


@FEW
@given(st.binary(max_size=200), st.integers(0, 100))
def test_bytes_that_are_no_part_are_damage(content: bytes, length: int) -> None:
    for junk in (content, length.to_bytes(8, "little") + content):
        with pytest.raises(DamagedError, match="is not a part of a checkpoint"):
            decode(np.frombuffer(junk, np.uint8), NAME, 0)


def test_foreign_files_are_neither_read_nor_deleted(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))
    root = Path(store.where)
    foreign = ["notes.txt", "clock-9", "clock-2-1/readme", "clock-x-1/manifest.json", "clock-09-1/manifest.json",
               ".clock-9-1.tmp", "clock-1-1/.hidden.tmp", "clock-1-1/part-01.safetensors", "clock-1/-1"]  # fmt: skip
    for name in foreign:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("mine")
    (root / "clock-8-1" / "manifest.json").mkdir(parents=True)
    (root / "loop").symlink_to(root / "loop")
    assert newest_read(store) == CutId(1, 1) and names(store) == [CutId(1, 1)]
    write(store, CutId(3, 1))
    assert prune(store, 1) == [CutId(1, 1)]
    assert all((root / name).read_text() == "mine" for name in foreign)


# -- pruning ------------------------------------------------------------------------------------------------


@FEW
@given(st.lists(st.sampled_from(["whole", "unfinished", "damaged"]), max_size=6), st.integers(1, 4))
def test_pruning_keeps_the_newest_whole_ones_and_what_is_newer(states: list[str], keep: int) -> None:
    store = MemoryStore()
    for clock, state in enumerate(states):
        write(store, CutId(clock, 1), elements=40)
        if state != "whole":
            file = "manifest.json" if state == "unfinished" else "part-0.safetensors"
            store.delete(f"clock-{clock}-1/{file}")
    whole = [clock for clock, state in enumerate(states) if state == "whole"]
    expected = [
        clock for clock in range(len(states)) if not whole or clock in whole[-keep:] or clock > whole[-1]
    ]
    before = newest(store, lambda _: None)
    gone = prune(store, keep)
    assert [name.clock for name in names(store)] == expected
    assert [name.clock for name in gone] == [c for c in range(len(states)) if c not in expected]
    assert newest(store, lambda _: None) == before
    assert prune(store, keep) == []


def test_a_run_from_its_start_deletes_no_checkpoint_that_is_further(store: CheckpointStore) -> None:
    """Its epoch is later, so its checkpoints are the newer ones; but it has not got so far yet."""
    far = [CutId(900, 7), CutId(910, 7)]
    new = [CutId(60, 8), CutId(120, 8), CutId(180, 8)]
    for name in (*far, *new):
        write(store, name)
        prune(store, 2)
    assert newest_read(store) == CutId(180, 8)
    assert names(store) == sorted([*far, *new[1:]])
    write(store, CutId(905, 8))
    assert prune(store, 2) == [CutId(900, 7), CutId(120, 8)]
    write(store, CutId(910, 8))
    prune(store, 2)
    assert names(store) == [CutId(905, 8), CutId(910, 8)]


class Deleting(FolderStore):
    """Notes what is deleted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deleted: list[str] = []

    def delete(self, name: str) -> None:
        super().delete(name)
        self.deleted.append(name)


def test_a_manifest_is_deleted_before_its_parts(tmp_path: Path) -> None:
    store = Deleting(tmp_path)
    for clock in (1, 2, 3):
        write(store, CutId(clock, 1))
    assert prune(store, 1) == [CutId(1, 1), CutId(2, 1)]
    folders = [name.partition("/")[0] for name in store.deleted]
    files = [name.partition("/")[2] for name in store.deleted]
    assert folders == ["clock-1-1"] * 3 + ["clock-2-1"] * 3
    assert files == ["manifest.json", "part-0.safetensors", "part-1.safetensors"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["clock-3-1"]


@pytest.mark.parametrize(
    ("keep", "left"), [(2, [20]), (1, [30])], ids=["the older one", "all that there were"]
)
def test_a_checkpoint_that_its_run_deletes_while_it_is_looked_at_is_not_damaged(
    keep: int, left: list[int], tmp_path: Path
) -> None:
    """To read those of a run that goes on may take minutes."""
    store = FolderStore(tmp_path)
    for clock in (10, 20):
        write(store, CutId(clock, 1))

    def on_bytes(count: int) -> None:
        if not (tmp_path / "clock-30-1").exists():
            write(store, CutId(30, 1))
            prune(store, keep)

    found = survey(store, Check.CHECKSUMS, on_bytes)
    assert [(one.name.clock, one.condition) for one in found] == [(clock, Condition.WHOLE) for clock in left]
