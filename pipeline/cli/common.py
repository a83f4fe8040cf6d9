"""Shared by the commands: numbers in options, files that are written whole, a progress bar."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from pipeline.profile.layers import Profile


def whole(text: str, flag: str) -> int:
    """A whole number of an option. Raises BadParameter."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{flag} takes whole numbers, found {text!r}") from None


def check_out(out: Path | None, *, is_folder: bool = False) -> None:
    """Raise BadParameter before the work if its result has no place."""
    if out is None:
        return
    if not os.path.exists(out.parent):
        raise typer.BadParameter(f"the folder {out.parent} does not exist")
    if not os.path.isdir(out.parent):
        raise typer.BadParameter(f"{out.parent} is a file; expected a folder")
    if not is_folder and os.path.isdir(out):
        raise typer.BadParameter(f"{out} is a folder; expected the name of a file")
    if is_folder and os.path.exists(out) and not os.path.isdir(out):
        raise typer.BadParameter(f"{out} is a file; expected a folder or a new name")


def new_folder(path: Path) -> Path:
    """A folder that was not there: this one, or it with a number. Commands that begin in one second get one each."""
    for number in count(1):
        found = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            found.mkdir(parents=True)
            return found
        except FileExistsError:
            continue
        except OSError as error:
            raise typer.BadParameter(f"{found} cannot be made: {error.strerror}") from None
    raise AssertionError


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn results that cannot be written into one sentence. The exit code is 1: the input was good."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise TyperException(f"{error.filename or out} cannot be written: {why}") from None


def write_text(path: Path, text: str) -> None:
    """Write a file under its name only when it is complete. Raises TyperException."""
    from pipeline import whole_file

    with writing(path):
        whole_file.write_text(path, text)


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile under its name only when it is complete. Raises TyperException."""
    from pipeline.profile.layers import write

    with writing(path):
        write(profile, path)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; gives `on_progress(done, total)`."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
