"""The user's code as it travels to the machines: the text of a script, or a function."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
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
    """A script: its text, where it was, and the arguments of its command line.

    package: that its relative imports start from, where `python -m package.script` started it.
    """

    text: str
    path: str
    arguments: tuple[str, ...] = ()
    package: str = ""

    @classmethod
    def read(cls, path: str, folder: str | None = None) -> Self:
        """Raises InputError."""
        file = Path(folder or os.getcwd(), path)
        try:
            with tokenize.open(file) as opened:  # as Python reads it: a mark of UTF-8 or a declared encoding
                return cls(opened.read(), str(file))
        except (OSError, UnicodeDecodeError, SyntaxError) as error:
            why = (
                error.strerror
                if isinstance(error, OSError)
                else "it is not UTF-8 text, and declares no encoding that it is in"
            )
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
        # A module of its own: classes, string annotations and compiled graphs are looked up in it by its name.
        module = ModuleType("__main__")
        module.__file__, module.__package__ = self.path, self.package or None
        vars(module)["__builtins__"] = __builtins__
        with _as_python_starts_it(_Main([self.path, *self.arguments], module), self._root):
            exec(code, vars(module))

    @property
    def _root(self) -> str:
        """The folder that its imports begin at."""
        return str(Path(self.path).parents[len(self.package.split(".")) if self.package else 0])


@dataclass(frozen=True, eq=False)
class _Main:
    """What a script finds in `sys`: its arguments, and itself as the main module."""

    arguments: list[str]
    module: ModuleType

    def show(self) -> None:
        sys.argv = self.arguments
        sys.modules["__main__"] = self.module


_mains: list[_Main] = []  # the process' own, and those of the scripts that run in it
_turnover = threading.Lock()


@contextmanager
def _as_python_starts_it(main: _Main, folder: str) -> Iterator[None]:
    """Its own `sys.argv` and main module, and its folder among the places that modules are imported from, which stays
    there. A script that is still ending does not take them from the next one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _turnover:
        if not _mains:
            _mains.append(_Main(sys.argv, sys.modules["__main__"]))
        _mains.append(main)
        main.show()
    try:
        yield
    finally:
        with _turnover:
            was_shown = _mains[-1] is main
            _mains.remove(main)
            if was_shown:
                _mains[-1].show()
            if len(_mains) == 1:
                _mains.clear()


@dataclass(frozen=True)
class FunctionSource:
    """A function without arguments, of a notebook or a script."""

    function: Callable[[], Any]

    @property
    def name(self) -> str:
        return f"{getattr(self.function, '__name__', 'the function')}()"

    def run(self) -> None:
        self.function()
