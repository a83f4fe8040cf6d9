"""A file that appears under its name only when it is whole; of one that cannot be written nothing stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; what is written there becomes `path` at once, or is removed.

    Raises OSError with the name of the file: that of a full disk has none.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)  # of a killed process, or a link: another file would be written
        partial.touch(exist_ok=False)
        yield partial
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8. Raises OSError with the name of the file."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
