"""The user's code as it travels to the machines: the text of a script, or a function."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from agileml.application import InputError


class UserCode(Protocol):
    """The user's code."""

    @property
    def name(self) -> str:
        """The name by which errors refer to it."""

    def run(self) -> None:
        """Run it from its first line."""


@dataclass(frozen=True)
class ScriptSource:
    """A script: its text, where it was, and the arguments of its command line."""

    text: str
    path: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str, folder: str | None = None) -> Self:
        """Raises InputError."""
        file = Path(folder or os.getcwd(), path)
        try:
            return cls(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(
                f"model.script: {path} cannot be read ({why}), expected a Python script"
            ) from None

    @property
    def name(self) -> str:
        return Path(self.path).name

    def run(self) -> None:
        try:
            code = compile(self.text, self.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise InputError(f"model.script: {self.path}:{error.lineno}: {error.msg}") from error
        # Where the file is not, tracebacks show its lines all the same.
        linecache.cache[self.path] = (len(self.text), None, self.text.splitlines(keepends=True), self.path)
        with _as_python_starts_it(self.path, self.arguments):
            exec(code, {"__name__": "__main__", "__file__": self.path, "__builtins__": __builtins__})


@contextmanager
def _as_python_starts_it(path: str, arguments: tuple[str, ...]) -> Iterator[None]:
    """Its own sys.argv, and its folder among the places that modules are imported from, which stays there."""
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    before = sys.argv
    sys.argv = [path, *arguments]
    try:
        yield
    finally:
        sys.argv = before


@dataclass(frozen=True)
class FunctionSource:
    """A function without arguments, of a notebook or a script."""

    function: Callable[[], Any]

    @property
    def name(self) -> str:
        return f"{getattr(self.function, '__name__', 'the function')}()"

    def run(self) -> None:
        self.function()
