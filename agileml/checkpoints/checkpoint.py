"""Checkpoints: committed cuts on disk or in S3, from which a run resumes when every reliable machine is gone.

    <store>/clock-<clock>-<epoch>/part-<partition>.safetensors    one for every partition
    <store>/clock-<clock>-<epoch>/manifest.json                   written when all of them are there

The newer checkpoint has the later epoch or, in one epoch, the later clock; epochs never repeat in a store
(`last_epoch`). Each machine that holds a partition writes its part (`write_part`); the controller's process writes the
manifest once all parts are there (`write_manifest`). Readers ignore a checkpoint without a manifest, so a writer that
is killed at any moment leaves earlier checkpoints intact. A run writes the name of a cut only once: the epoch in it
fences off writes of machines that were declared dead.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from agileml.checkpoints.errors import CheckpointError, DamagedError, NotThereError, StoreError
from agileml.checkpoints.format import Encoded, decode, encode
from agileml.checkpoints.manifest import MANIFEST, Manifest, PartInfo, folder_of, part_file
from agileml.checkpoints.store import Bytes, CheckpointStore
from agileml.core.protocol.messages import Cut
from agileml.core.protocol.view import CutId

_PREFIX = "clock-"
_OURS = re.compile(r"clock-(0|[1-9]\d*)-(0|[1-9]\d*)/(manifest\.json|part-(?:0|[1-9]\d*)\.safetensors)")
_PATIENCE_S = 30.0  # with a store that changes while it is read
_PAUSE_S = 0.02


class Check(Enum):
    """How closely to check that a checkpoint is whole."""

    SIZES = "all files are there with the right sizes"
    CHECKSUMS = "every byte is the one that was written"


class Condition(Enum):
    """The condition of a checkpoint."""

    WHOLE = "whole"
    UNFINISHED = "unfinished"  # without a manifest: still being written, or its writer was killed
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Found:
    """A checkpoint in a store. `problem`: a sentence, empty when whole. `bytes`: total size of its files."""

    name: CutId
    condition: Condition
    problem: str
    manifest: Manifest | None
    bytes: int


# -- writing ------------------------------------------------------------------------------------------------


def write_part(store: CheckpointStore, name: CutId, partition: int, cut: Cut) -> PartInfo:
    """Write one partition's part of the cut `name`; its arrays must stay as they are meanwhile.

    An intact part with the same bytes under a manifest stays as it is. Raises StoreError, and CheckpointError when the
    manifest lists other bytes: a finished checkpoint never changes.
    """
    encoded = encode(name, partition, cut)
    file = f"{folder_of(name)}/{part_file(partition)}"
    if (there := find(store, name)) is not None:
        part = PartInfo(partition, encoded.size_bytes, _digest(encoded))
        if part not in there.parts:
            raise CheckpointError(
                f"{store.where}/{file} was written by another run, expected epochs never used here"
            )
        if _is_intact(store, there, part):
            return part
    digest = hashlib.sha256()

    def hashed() -> Iterator[Bytes]:
        for chunk in encoded.chunks():
            digest.update(chunk)
            yield chunk

    store.put(file, hashed(), encoded.size_bytes)
    return PartInfo(partition, encoded.size_bytes, digest.hexdigest())


def write_manifest(store: CheckpointStore, manifest: Manifest) -> None:
    """Write the manifest, which makes the checkpoint valid.

    Raises CheckpointError when a part is missing, or when a checkpoint of a later epoch exists: then another controller
    has replaced the caller. Raises StoreError.
    """
    files = _checkpoints(store)
    later = [
        name for name, is_there in _outline(files).items() if is_there and name.epoch > manifest.name.epoch
    ]
    problem = _parts_problem(store, manifest, files.get(manifest.name, {}))
    if later:
        problem = f"{store.where}/{folder_of(max(later))} is of a later epoch than {folder_of(manifest.name)}"
    if problem:
        raise CheckpointError(f"no manifest was written: {problem}")
    text = manifest.to_text().encode()
    store.put(f"{folder_of(manifest.name)}/{MANIFEST}", [text], len(text))


def prune(store: CheckpointStore, keep: int) -> list[CutId]:
    """Keep the `keep` newest whole checkpoints; delete older ones, and unfinished and damaged ones among them.

    Checkpoints newer than the newest whole one stay, so nothing is deleted when none is whole. So do whole ones of a
    later clock: the run did not start from them, and they hold more work than all that it has done since. A manifest
    goes before its parts. Returns the deleted checkpoints. Raises StoreError.
    """
    assert keep >= 1
    files = _checkpoints(store)
    found = [_inspected(store, name, files[name], Check.SIZES) for name in sorted(files, reverse=True)]
    whole = [one.name for one in found if one.condition is Condition.WHOLE]
    if not whole:
        return []
    kept = {*whole[:keep], *(name for name in whole if name.clock > whole[0].clock)}
    doomed = [name for name in files if name < whole[0] and name not in kept]
    for name in sorted(doomed):
        for file in sorted(files[name], key=lambda file: (not file.endswith(MANIFEST), file)):
            store.delete(file)

    def is_stale(file: str) -> bool:
        name = _checkpoint_of(file)
        return name is not None and name < whole[0]

    store.sweep(_PREFIX, is_stale)
    return sorted(doomed)


def drop_unfinished(store: CheckpointStore, before: CutId) -> bool:
    """Delete what there is of unfinished checkpoints before this one, as of those that were given up on a full disk.

    True if there was anything. Raises StoreError.
    """
    files = _checkpoints(store)
    finished = {name for name, is_there in _outline(files).items() if is_there}
    doomed = [file for name in files if name < before and name not in finished for file in files[name]]
    for file in doomed:
        store.delete(file)
    left: list[str] = []

    def is_left(file: str) -> bool:
        name = _checkpoint_of(file)
        is_doomed = name is not None and name < before and name not in finished
        if is_doomed:
            left.append(file)
        return is_doomed

    store.sweep(_PREFIX, is_left)
    return bool(doomed or left)


def check_unused(store: CheckpointStore) -> None:
    """Check that a new run may write here. Raises CheckpointError for any checkpoint, even unfinished; StoreError."""
    if files := _checkpoints(store):
        raise CheckpointError(
            f"{store.where} holds {folder_of(max(files))} of another run, expected an empty place, or a resume from it"
        )


def last_epoch(store: CheckpointStore) -> int:
    """The highest epoch in the name of any checkpoint, 0 without one. A resumed run uses higher epochs."""
    return max((name.epoch for name in _checkpoints(store)), default=0)


# -- reading ------------------------------------------------------------------------------------------------


def newest(
    store: CheckpointStore, report: Callable[[str], None], check: Check = Check.SIZES
) -> Manifest | None:
    """The newest whole checkpoint. `report` gets a sentence for each newer one that is not whole.

    Raises StoreError when the store cannot be read, or changed for half a minute each time before it was.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        files = _checkpoints(store)
        skipped: list[str] = []
        for name in sorted(files, reverse=True):
            one = _inspected(store, name, files[name], check)
            if one.manifest is not None and one.condition is Condition.WHOLE:
                for problem in skipped:
                    report(problem)
                return one.manifest
            skipped.append(one.problem)
        if _outline(files) == _outline(_checkpoints(store)):  # else a writer deleted some that we listed
            for problem in skipped:
                report(problem)
            return None
        time.sleep(_PAUSE_S)
    raise StoreError(f"{store.where} changes faster than it can be read: does another run write to it?")


def find(store: CheckpointStore, name: CutId) -> Manifest | None:
    """The manifest of one checkpoint, None when there is none or it is damaged. Raises StoreError."""
    try:
        return _read_manifest(store, name)
    except (DamagedError, NotThereError):
        return None


def survey(store: CheckpointStore, check: Check, seen: Callable[[int], None] = lambda _: None) -> list[Found]:
    """All checkpoints, oldest first, without those that their run deletes meanwhile. `seen` is called with the number
    of bytes of each piece read."""
    found: list[Found] = []
    is_complete = False
    while not is_complete:
        files = _checkpoints(store)
        found = [_inspected(store, name, files[name], check, seen) for name in sorted(files)]
        left = _outline(_checkpoints(store))
        there = [one for one in found if left.get(one.name) or one.condition is not Condition.DAMAGED]
        # Where it has deleted all whole ones, there are newer ones.
        is_complete = len(there) == len(found) or any(one.condition is Condition.WHOLE for one in there)
        found = there
    return found


def verify(store: CheckpointStore, manifest: Manifest, seen: Callable[[int], None] = lambda _: None) -> None:
    """Read every part. Raises DamagedError when a byte differs, NotThereError, StoreError."""
    for part in manifest.parts:
        for chunk in _checked(store, manifest, part):
            seen(len(chunk))


def read_part(store: CheckpointStore, manifest: Manifest, partition: int) -> Cut:
    """One part, its checksum verified. Its arrays share one buffer. Raises DamagedError, NotThereError, StoreError."""
    part = manifest.parts[partition]
    content = np.empty(part.bytes, np.uint8)
    filled = 0
    for chunk in _checked(store, manifest, part):
        content[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    try:
        return decode(content, manifest.name, partition)
    except DamagedError as error:
        raise DamagedError(f"{store.where}/{manifest.file(partition)} {error}") from error


def _checked(store: CheckpointStore, manifest: Manifest, part: PartInfo) -> Iterator[Bytes]:
    """Yield the content of a part in pieces. Raises DamagedError no later than at its end."""
    digest, count = hashlib.sha256(), 0
    where = f"{store.where}/{manifest.file(part.partition)}"
    for chunk in store.get(manifest.file(part.partition)):
        count += len(chunk)
        if count > part.bytes:
            raise DamagedError(
                f"{where} is damaged: it has more than the {part.bytes} bytes that were written"
            )
        digest.update(chunk)
        yield chunk
    if count < part.bytes:
        raise DamagedError(f"{where} is damaged: it has {count} bytes, {part.bytes} were written")
    if digest.hexdigest() != part.sha256:
        raise DamagedError(f"{where} is damaged: its SHA-256 is not that of what was written")


# -- looking ------------------------------------------------------------------------------------------------


def _checkpoints(store: CheckpointStore) -> dict[CutId, dict[str, int]]:
    """The files of each checkpoint and their sizes; other files are ignored."""
    found: dict[CutId, dict[str, int]] = {}
    for file, size in store.list(_PREFIX).items():
        if (name := _checkpoint_of(file)) is not None:
            found.setdefault(name, {})[file] = size
    return found


def _checkpoint_of(file: str) -> CutId | None:
    """The checkpoint that a file is of; None for a file that is not ours."""
    ours = _OURS.fullmatch(file)
    return None if ours is None else CutId(int(ours[1]), int(ours[2]))


def _outline(files: Mapping[CutId, Mapping[str, int]]) -> dict[CutId, bool]:
    """Every checkpoint, and whether it has a manifest."""
    return {name: f"{folder_of(name)}/{MANIFEST}" in there for name, there in files.items()}


def _inspected(
    store: CheckpointStore,
    name: CutId,
    files: Mapping[str, int],
    check: Check,
    seen: Callable[[int], None] = lambda _: None,
) -> Found:
    total = sum(files.values())
    where = f"{store.where}/{folder_of(name)}"
    if f"{folder_of(name)}/{MANIFEST}" not in files:
        problem = f"{where} is unfinished: it has no {MANIFEST}"
        return Found(name, Condition.UNFINISHED, problem, None, total)
    manifest = None
    try:
        manifest = _read_manifest(store, name)
        if problem := _parts_problem(store, manifest, files):
            raise DamagedError(problem)
        if check is Check.CHECKSUMS:
            verify(store, manifest, seen)
    except (DamagedError, NotThereError) as error:
        return Found(name, Condition.DAMAGED, str(error), manifest, total)
    return Found(name, Condition.WHOLE, "", manifest, total)


def _read_manifest(store: CheckpointStore, name: CutId) -> Manifest:
    file = f"{folder_of(name)}/{MANIFEST}"
    try:
        return Manifest.from_text(b"".join(store.get(file)), name)
    except DamagedError as error:
        raise DamagedError(f"{store.where}/{file} is damaged: it {error}") from error


def _is_intact(store: CheckpointStore, manifest: Manifest, part: PartInfo) -> bool:
    try:
        for _ in _checked(store, manifest, part):
            pass
    except (DamagedError, NotThereError):
        return False
    return True


def _parts_problem(store: CheckpointStore, manifest: Manifest, files: Mapping[str, int]) -> str:
    for part in manifest.parts:
        file = manifest.file(part.partition)
        if file not in files:
            return f"{store.where}/{file} is missing"
        if files[file] != part.bytes:
            return f"{store.where}/{file} is damaged: it has {files[file]} bytes, {part.bytes} were written"
    return ""


def _digest(encoded: Encoded) -> str:
    digest = hashlib.sha256()
    for chunk in encoded.chunks():
        digest.update(chunk)
    return digest.hexdigest()
