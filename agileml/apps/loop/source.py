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

    def main(self) -> Main | None:
        """Its state of `sys` while it runs once; None: `sys` as it is."""

    def run(self, main: Main | None) -> None:
        """Run it from its first line."""


@dataclass(frozen=True, eq=False)
class Main:
    """A script's state of `sys`: its arguments, itself as the main module, and the folder of its imports."""

    arguments: list[str]
    module: ModuleType
    folder: str | None = None

    def show(self) -> None:
        sys.argv = self.arguments
        sys.modules["__main__"] = self.module
        if self.folder is not None and self.folder not in sys.path:
            sys.path.insert(0, self.folder)  # it stays there


_mains: list[Main] = []  # the process' own, and those of the scripts that run now
_turnover = threading.Lock()


@contextmanager
def shown(main: Main | None) -> Iterator[None]:
    """Show a script its arguments and main module while its thread runs; the process has its own again afterwards.

    Scripts of one process may overlap: one that ends its turn does not take the place of another.
    """
    if main is None:
        yield
        return
    with _turnover:
        if not _mains:
            _mains.append(Main(sys.argv, sys.modules["__main__"]))
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

    def main(self) -> Main:
        """A module of its own: classes, string annotations and compiled graphs are looked up in it by its name."""
        module = ModuleType("__main__")
        module.__file__, module.__package__ = self.path, self.package or None
        vars(module)["__builtins__"] = __builtins__
        return Main([self.path, *self.arguments], module, self._root)

    def run(self, main: Main | None) -> None:
        """Run it from its first line, in its main module. Raises InputError if it is no Python, and what it raises."""
        assert main is not None
        try:
            code = compile(self.text, self.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise InputError(f"model.script: {self.path}:{error.lineno}: {error.msg}") from error
        # Where the file is not, tracebacks show its lines all the same.
        linecache.cache[self.path] = (len(self.text), None, self.text.splitlines(keepends=True), self.path)
        exec(code, vars(main.module))

    @property
    def _root(self) -> str:
        """The folder that its imports begin at."""
        return str(Path(self.path).parents[len(self.package.split(".")) if self.package else 0])


@dataclass(frozen=True)
class FunctionSource:
    """A function without arguments, of a notebook or a script."""

    function: Callable[[], Any]

    @property
    def name(self) -> str:
        return f"{getattr(self.function, '__name__', 'the function')}()"

    def main(self) -> None:
        """It stays in the main module that is there."""

    def run(self, main: Main | None) -> None:
        self.function()
