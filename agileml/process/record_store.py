"""Stores for the controller's records. The only write is create-if-absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class RecordStore(Protocol):
    """Numbered records. Each number is written once."""

    def create(self, number: int, text: str) -> bool:
        """Write a record durably; False if the number has another text. A write may be repeated."""

    def newest(self) -> str | None:
        """The text of the highest number, None when there is none."""


class FileStore:
    """Records as files of a folder, for a head without Ray. They outlive its process, but no power failure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def create(self, number: int, text: str) -> bool:
        # Making a link is atomic, so a reader never sees half a record.
        temporary = self._folder / f".{number}.tmp"
        temporary.write_text(text)
        try:
            (self._folder / f"{number:012}.json").hardlink_to(temporary)
        except FileExistsError:
            return (self._folder / f"{number:012}.json").read_text() == text
        finally:
            temporary.unlink()
        return True

    def newest(self) -> str | None:
        found = sorted(self._folder.glob("*.json"))
        return found[-1].read_text() if found else None


def _kv() -> Any:
    from ray.experimental import internal_kv

    return internal_kv


class GcsStore:
    """Records in the key-value store of a Ray cluster's head, which lives as long as the head."""

    def __init__(self, run: str) -> None:
        self._run = run

    def _key(self, number: int) -> bytes:
        return f"proteus/{self._run}/{number}".encode()

    def create(self, number: int, text: str) -> bool:
        # Ray repeats a call whose answer was lost: then the record that exists is our own.
        if (
            _kv()._internal_kv_put(self._key(number), text.encode(), overwrite=False)
            and _kv()._internal_kv_get(self._key(number)) != text.encode()
        ):
            return False
        _kv()._internal_kv_del(self._key(number - 8))  # only the newest is ever read
        return True

    def newest(self) -> str | None:
        prefix = f"proteus/{self._run}/".encode()
        numbers = [int(key.rsplit(b"/", 1)[1]) for key in _kv()._internal_kv_list(prefix)]
        if not numbers:
            return None
        value = _kv()._internal_kv_get(self._key(max(numbers)))
        return value.decode() if value else None

    def clear(self) -> None:
        """Delete all records of the run."""
        _kv()._internal_kv_del(f"proteus/{self._run}/".encode(), del_by_prefix=True)
