"""Tar files as WebDataset writes them: the members of a sample follow each other and differ by their extension.

A tar file has no directory, so the number of its samples is only known from reading all of its headers. For files of
this machine that is done when the data set is made; for others an index must be there (`save_index`).
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from agileml.application import Array, InputError
from agileml.apps.files.cache import DEFAULT_GIB
from agileml.apps.files.formats.dataset import SHUFFLE_ITEMS, Decode, FileDataset
from agileml.apps.files.opening import check_file, data_files, fetched, named_files
from agileml.apps.files.places import DataFile, is_address

MOST_SAMPLES = 1_000_000  # whose places are kept
SAMPLE = re.compile(r"^((?:.*/)?[^/.]+)\.([^/]*)$")  # name and extension, from the first dot on
KEY = "__key__"


@dataclass(frozen=True)
class SamplePart:
    """Where a part of a sample lies in its file."""

    start: int
    bytes: int


@dataclass(frozen=True)
class Sample:
    """The parts of a sample by their extension."""

    key: str
    parts: dict[str, SamplePart]


class TarDataset(FileDataset):
    """The samples of tar files, for a torch job or as a torch Dataset.

        agileml.TarDataset("train/*.tar", inputs=["npy"], target="cls")

    A row has a value for each extension, and its key as `__key__`: `.cls` and `.index` are whole numbers, `.json` is
    read, `.txt` is text, `.npy` an array without pickled objects; everything else is bytes for `decode`.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        *,
        inputs: Sequence[str] = (),
        target: str | None = None,
        decode: Decode | str | None = None,
        shuffle_items: int = SHUFFLE_ITEMS,
        cache_gib: float = DEFAULT_GIB,
    ) -> None:
        """path: a file, a folder of *.tar, a pattern, a list of them, or an index that ends with .json, also at an
        address. The others: as of FileDataset.

        Raises InputError.
        """
        name = path if isinstance(path, str) else f"{path[0]} ..." if path else "no file"
        super().__init__(
            name,
            inputs=inputs,
            target=target,
            decode=decode,
            shuffle_items=shuffle_items,
            cache_gib=cache_gib,
        )
        self._forget()
        if isinstance(path, str) and path.endswith(".json"):
            counted = _indexed(path)
        else:
            files = data_files(path, ".tar")
            if far := [file for file in files if file.is_far]:
                raise InputError(
                    f"data.path: {far[0].url} is a tar file without an index, expected the index of such files "
                    "(.json), which agileml.TarDataset(...).save_index writes where they are near"
                )
            counted = [(file, sum(1 for _ in _samples(file.url))) for file in files]
        counted = [(file, count) for file, count in counted if count]
        if not counted:
            raise InputError(f"data.path: {name} has no samples, expected items to train on")
        self._files = [file for file, _ in counted]
        self._set_groups([count for _, count in counted])

    def _forget(self) -> None:
        self._kept: OrderedDict[int, list[Sample]] = OrderedDict()

    def save_index(self, path: str | Path) -> None:
        """Write an index of the files, to be put into the same folder as these, wherever they go.

        Raises InputError where two of them have one name.
        """
        by_name = {file.name: file for file in self._files}
        if alike := [file for file in self._files if by_name[file.name] != file]:
            raise InputError(
                f"data.path: {alike[0].url} and {by_name[alike[0].name].url} have one name, expected files that can "
                "lie in one folder, beside their index"
            )
        shards = [
            {"url": file.name, "nsamples": count, "filesize": file.bytes}
            for file, count in zip(self._files, self.read_groups, strict=True)
        ]
        Path(path).write_text(json.dumps({"shardlist": shards}, indent=1) + "\n")

    def rows(self, numbers: Array) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{}] * len(numbers)
        for group, at, within in self._by_group(numbers):
            file = self._files[group]
            with self._held(file) as path, path.open("rb") as opened:
                samples = self._samples_of(group, path)
                for place, number in zip(at, within, strict=True):
                    found[place] = _row(samples[number], opened, file.url)
        return found

    def _samples_of(self, group: int, path: Path) -> list[Sample]:
        with self._lock:
            if group not in self._kept:
                found = list(_samples(str(path)))
                if len(found) != self.read_groups[group]:
                    raise InputError(
                        f"data.path: {self._files[group].url} has {len(found)} samples, expected the "
                        f"{self.read_groups[group]} that the index says"
                    )
                self._kept[group] = found
            self._kept.move_to_end(group)
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_SAMPLES:
                self._kept.popitem(last=False)
            return self._kept[group]


def _indexed(path: str) -> list[tuple[DataFile, int]]:
    """The files of an index with their numbers of samples. Raises InputError."""
    try:
        found = json.loads(_text(path))
        urls, counts = zip(*((str(e["url"]), int(e["nsamples"])) for e in found["shardlist"]), strict=True)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"data.path: {path} is no index of tar files ({type(error).__name__}: {error}), expected "
            '{"shardlist": [{"url": ..., "nsamples": ...}, ...]}'
        ) from None
    folder = path.rpartition("/")[0]
    placed = [
        url if is_address(url) or url.startswith("/") or not folder else f"{folder}/{url}" for url in urls
    ]
    return list(zip(named_files(placed), counts, strict=True))


def _text(path: str) -> str:
    if not is_address(path):
        check_file(Path(path), path)
        return Path(path).read_text(encoding="utf-8")
    with fetched(path) as file:
        return file.read_text(encoding="utf-8")


def _samples(path: str) -> Iterator[Sample]:
    """The samples of a tar file, in its order. Raises InputError."""
    current: Sample | None = None
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                named = SAMPLE.match(member.name)
                if not member.isfile() or named is None:
                    continue
                key, extension = named[1], named[2].lower()
                if current is None or current.key != key:
                    if current is not None:
                        yield current
                    current = Sample(key, {})
                if extension in current.parts:
                    raise InputError(f"data.path: {path} has {member.name} twice in a sample")
                current.parts[extension] = SamplePart(member.offset_data, member.size)
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"data.path: {path} is no tar file, or damaged ({error})") from None
    if current is not None:
        yield current


def _row(sample: Sample, opened: Any, url: str) -> dict[str, Any]:
    row: dict[str, Any] = {KEY: sample.key}
    for extension, member in sample.parts.items():
        opened.seek(member.start)
        content = opened.read(member.bytes)
        try:
            row[extension] = _value(extension.rpartition(".")[2], content)
        except (ValueError, EOFError) as error:
            raise InputError(f"data.path: {url}: {sample.key}.{extension} is damaged ({error})") from None
    return row


def _value(kind: str, content: bytes) -> Any:
    match kind:
        case "cls" | "index":
            return int(content)
        case "json":
            return json.loads(content)
        case "txt":
            return content.decode("utf-8")
        case "npy":
            return np.load(BytesIO(content), allow_pickle=False)
    return content
