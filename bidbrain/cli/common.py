"""Shared by the commands: errors as one sentence, options that are lists or KEY=VALUE pairs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from bidbrain.history.prices import History


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn mistakes of the user into one sentence with exit code 2."""
    from bidbrain.accounts.ledger import LedgerError
    from bidbrain.config import ConfigError
    from bidbrain.history.readers import HistoryError
    from bidbrain.machines import UnknownTypeError
    from bidbrain.policy.answer import PolicyError
    from bidbrain.policy.registry import UnknownSchemeError

    try:
        yield
    except (
        ConfigError,
        HistoryError,
        LedgerError,
        UnknownTypeError,
        UnknownSchemeError,
        PolicyError,
    ) as error:
        raise typer.BadParameter(str(error)) from None


def split(values: list[str] | None) -> list[str]:
    """Values of an option that may be repeated or joined by commas."""
    return [part.strip() for value in values or [] for part in value.split(",") if part.strip()]


def pairs(values: list[str] | None, option: str) -> dict[str, float]:
    """TYPE=NUMBER, repeated or joined by commas."""
    found: dict[str, float] = {}
    for item in split(values):
        name, equals, text = item.partition("=")
        if name in found:
            raise typer.BadParameter(f"{option}: found {name} twice, expected it once")
        try:
            found[name] = float(text)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise typer.BadParameter(f"{option} {item!r}: expected TYPE=NUMBER")
    return found


def prices_of(values: list[str] | None, option: str) -> dict[str, int]:
    """TYPE=USD as micro-dollars per hour, repeated or joined by commas."""
    from bidbrain.money import micro_usd

    found: dict[str, int] = {}
    for name, price in pairs(values, option).items():
        try:
            found[name] = micro_usd(price)
        except ValueError as error:
            raise typer.BadParameter(f"{option} {name}: the price {error}") from None
        if found[name] <= 0:
            raise typer.BadParameter(f"{option} {name}: the price {price:g} is not positive")
    return found


def numbers(values: list[str] | None, option: str) -> list[float]:
    """Numbers, repeated or joined by commas."""
    try:
        return [float(part) for part in split(values)]
    except ValueError:
        raise typer.BadParameter(f"{option}: expected numbers, found {', '.join(split(values))}") from None


def make_folder(path: Path) -> Path:
    """A folder to write into."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise typer.BadParameter(f"{path} is a file, expected a folder or a new name")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{path}: cannot be made a folder ({error.strerror})") from None
    return path


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
            raise typer.BadParameter(f"{found}: cannot be made a folder ({error.strerror})") from None
    raise AssertionError


def unwritable(path: Path | str, error: OSError) -> TyperException:
    """The error for results that cannot be written: one sentence, and exit code 1, as the input was good."""
    return TyperException(f"{error.filename or path}: cannot be written ({error.strerror or error})")


def check_place(path: Path) -> None:
    """Raise BadParameter for a file in no folder, or where a folder is."""
    if not os.path.isdir(path.parent):
        raise typer.BadParameter(f"{path}: cannot be written (there is no folder {path.parent})")
    if os.path.isdir(path):
        raise typer.BadParameter(f"{path} is a folder, expected the name of a file")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file that cannot be written into one sentence, where it has no place before any work is done."""
    check_place(path)
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def load_history(paths: list[Path]) -> History:
    """Files and folders as one history."""
    from bidbrain.history.readers import read_history

    if not paths:
        raise typer.BadParameter("name a price history (--history PATH)")
    with user_errors():
        return read_history(paths)
