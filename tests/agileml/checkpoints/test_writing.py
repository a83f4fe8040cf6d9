"""Writing checkpoints: again, by two at once, where another run writes, on a full disk, on a disk of its own."""

import errno
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agileml.checkpoints.checkpoint import (
    Check,
    CheckpointError,
    CheckpointStore,
    Manifest,
    StoreError,
    check_unused,
    drop_unfinished,
    last_epoch,
    newest,
    prune,
    write_manifest,
    write_part,
)
from agileml.checkpoints.opening import open_store
from agileml.checkpoints.store import Bytes
from agileml.core.protocol.view import CutId
from tests.agileml.checkpoints.rig import (
    IDENTITY,
    cut_of,
    newest_read,
    write,
    write_on,
)
from tests.agileml.runs.closed import without_rights

NAME = CutId(7, 3)


def test_a_part_that_is_there_is_not_written_again(store: CheckpointStore) -> None:
    manifest = write(store, NAME)
    part = Path(store.where) / manifest.file(1)
    before = part.stat()
    assert write_part(store, NAME, 1, cut_of(NAME, 1)) == manifest.parts[1]
    assert (part.stat().st_ino, part.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    assert write_part(store, NAME, 1, cut_of(NAME, 1)) == manifest.parts[1]
    assert newest_read(store) == NAME  # the damaged one was written again


def test_a_finished_checkpoint_is_never_changed(store: CheckpointStore) -> None:
    manifest = write(store, NAME)
    with pytest.raises(CheckpointError, match="written by another run, expected epochs never used here"):
        write_part(store, NAME, 1, replace(cut_of(NAME, 1), progress=()))
    assert newest(store, pytest.fail, Check.CHECKSUMS) == manifest


def test_who_was_replaced_cannot_finish_a_checkpoint(store: CheckpointStore) -> None:
    late = CutId(90, 4)
    parts = tuple(write_part(store, late, p, cut_of(late, p)) for p in range(2))
    write(store, CutId(50, 5))
    with pytest.raises(CheckpointError, match="clock-50-5 is of a later epoch than clock-90-4"):
        write_manifest(store, Manifest(late, 0.0, IDENTITY, parts))
    assert newest_read(store) == CutId(50, 5) and last_epoch(store) == 5
    assert prune(store, 2) == [late]


def test_a_new_run_takes_no_place_that_is_used(store: CheckpointStore) -> None:
    check_unused(store)
    assert last_epoch(store) == 0
    write_part(store, NAME, 0, cut_of(NAME, 0))
    with pytest.raises(
        CheckpointError, match="holds clock-7-3 of another run, expected an empty place, or a resume"
    ):
        check_unused(store)


def test_two_writers_and_a_reader_at_once(store: CheckpointStore) -> None:
    last, problems = 60, []
    done = threading.Event()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for clock in range(1, last + 1):
            try:
                name = CutId(clock, 1)
                parts = {p: write_part(store, name, p, cut_of(name, p)) for p in rng.sample(range(2), 2)}
                write_manifest(store, Manifest(name, 1e9, IDENTITY, (parts[0], parts[1])))
                prune(store, rng.randint(1, 2))
            except CheckpointError as error:  # the other one is ahead and has pruned this one
                problems.append(str(error))

    def read() -> list[int]:
        seen = [0]
        while not done.is_set():
            found = newest(store, lambda _: None, Check.CHECKSUMS)
            assert found is not None or seen == [0]
            if found is not None:
                seen.append(found.name.clock)
        return seen

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    closer = threading.Thread(target=lambda: ([thread.join() for thread in threads], done.set()))
    closer.start()
    seen = read()
    closer.join()
    assert seen == sorted(seen) and newest_read(store) == CutId(last, 1)
    assert all("clock-" in problem for problem in problems)


def test_a_full_disk_leaves_what_was_there(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))

    def chunks() -> Iterator[Bytes]:
        yield bytes(5000)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        StoreError, match=r"part-0\.safetensors could not be written: No space left on device \("
    ):
        store.put("clock-2-1/part-0.safetensors", chunks(), 10_000)
    assert list((Path(store.where) / "clock-2-1").iterdir()) == []
    assert newest_read(store) == CutId(1, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems can be mounted by root only")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_small_disk_fills_up_and_takes_checkpoints_again_after_pruning(small_disk: Path) -> None:
    store = open_store(str(small_disk))
    elements, finished = 20_000, []
    with pytest.raises(StoreError, match=r"could not be written: No space left on device \(0\.\d MiB free\)"):
        finished.extend(write_on(store, keep=100, partitions=2, elements=elements))
    assert len(finished) >= 2 and newest_read(store, elements) == CutId(finished[-1], 1)
    assert not list(small_disk.rglob(".*"))
    prune(store, 1)
    write(store, CutId(finished[-1] + 2, 1), elements=elements)
    assert newest_read(store, elements) == CutId(finished[-1] + 2, 1)


def test_a_whole_disk_may_be_the_place_though_a_folder_on_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "lost+found").mkdir(mode=0o000)
    monkeypatch.chdir(tmp_path)  # whose parents may be closed, too
    store = open_store(".")
    with without_rights():
        check_unused(store)
        for clock in (1, 2):
            write(store, CutId(clock, 1))
        assert prune(store, 1) == [CutId(1, 1)]
        assert newest_read(store) == CutId(2, 1)
        os.chmod("clock-2-1", 0o000)
        with pytest.raises(StoreError, match="clock-2-1 could not be read: Permission denied"):
            newest(store, pytest.fail)
        os.chmod("clock-2-1", 0o700)


def test_what_was_given_up_goes_and_nothing_else(store: CheckpointStore) -> None:
    write(store, CutId(1, 1))
    write_part(store, CutId(2, 1), 0, cut_of(CutId(2, 1), 0))
    killed = Path(store.where) / "clock-3-1" / ".part-1.safetensors.0123456789abcdef.tmp"
    killed.parent.mkdir()
    killed.touch()
    write_part(store, CutId(4, 1), 1, cut_of(CutId(4, 1), 1))
    (Path(store.where) / "clock-2-1" / "notes").touch()
    assert drop_unfinished(store, CutId(4, 1))
    left = sorted(str(file.relative_to(store.where)) for file in Path(store.where).rglob("*.*"))
    whole = [f"clock-1-1/{file}" for file in ("manifest.json", "part-0.safetensors", "part-1.safetensors")]
    assert left == [*whole, "clock-4-1/part-1.safetensors"]
    assert (Path(store.where) / "clock-2-1" / "notes").exists()
    assert not drop_unfinished(store, CutId(4, 1))


def test_a_name_that_no_disk_takes_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"could not be written: File name too long .* free"):
        open_store(str(tmp_path / ("n" * 256) / "saved")).probe()


def test_a_store_that_takes_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be written: Not a directory"):
        open_store(str(tmp_path / "file" / "below")).probe()
    with pytest.raises(StoreError, match="file could not be read: Not a directory"):
        newest(open_store("file", tmp_path), pytest.fail)
    open_store("deep/down", tmp_path).probe()
    assert list((tmp_path / "deep" / "down").iterdir()) == []
