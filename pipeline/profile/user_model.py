"""Find the function that makes a model: by module name or by file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Folders that stand in sys.path for a user's function alone; its modules may have the names of ours.
looked_in: list[str] = []


class LoadError(ValueError):
    """A function that cannot be found; the message is one sentence."""


def load_function(where: str) -> Callable[[], Any]:
    """`package.file:function` or `path/file.py:function`. Raises LoadError."""
    source, sep, name = where.rpartition(":")
    if not sep or not name:
        raise LoadError(f"expected package.file:function or path/file.py:function, found {where!r}")
    module = _from_file(Path(source)) if source.endswith(".py") else _by_name(source)
    function = getattr(module, name, None)
    if not callable(function):
        raise LoadError(f"{source} has no function {name!r}")
    return function


def to_device(value: Any, device: str) -> Any:
    """Move a module, or the tensors in nested tuples, lists and dicts. Raises LoadError."""
    if hasattr(value, "to"):
        try:
            return value.to(device)
        except (RuntimeError, AssertionError) as error:
            raise LoadError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(to_device(item, device) for item in value)
    return value


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise LoadError(f"{path}: no such file")
    _look_in(path.resolve().parent)
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise LoadError(f"{path} cannot be imported: {error}") from None
    return module


def _free_name(path: Path) -> str:
    """A name for the module of a file: another module of that name, as our own `pipeline`, stays where it is."""
    there = sys.modules.get(path.stem)
    if there is None or os.path.realpath(getattr(there, "__file__", None) or "") == os.path.realpath(path):
        return path.stem
    return f"file_{path.stem}"


def _by_name(name: str) -> Any:
    _look_in(Path.cwd())
    if not all(part.isidentifier() for part in name.split(".")):
        raise LoadError(f"{name!r} is no name of a module; expected package.file:function")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LoadError(f"module {name!r} cannot be imported: {error}") from None


def _look_in(folder: Path) -> None:
    """Find modules in a folder first, as `python folder/file.py` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        looked_in.append(str(folder))
