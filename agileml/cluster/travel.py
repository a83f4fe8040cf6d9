"""Which code travels with a run to nodes that have only its dependencies: ours, and the user's modules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from agileml.config.job import JobConfig

PACKAGES = ("agileml", "bidbrain", "straggler", "pipeline")
INSTALLED = {"site-packages", "dist-packages"}  # there too, as dependencies
_NAMED = re.compile(r"([^\W\d]\w*)(?:\.\w+)*:[^\W\d]\w*")  # package.module:attribute


def code_of(config: JobConfig) -> list[str]:
    """The code folders and files that processes on other nodes need. To be asked once the application was tried here,
    since what it imports is known then."""
    ours = [_place(importlib.import_module(name)) for name in PACKAGES]
    if ":" in config.application:
        ours.append(_place(importlib.import_module(config.application.partition(":")[0].partition(".")[0])))
    main = getattr(sys.modules["__main__"], "__file__", None)
    folders = [Path.cwd(), *([Path(main).parent] if main else [])]
    theirs = user_code(sys.modules, folders, set(_named(config.model_dump(mode="json"))))
    return list(dict.fromkeys([str(place) for place in ours if place is not None] + theirs))


def user_code(loaded: Mapping[str, ModuleType], folders: Iterable[Path], named: set[str]) -> list[str]:
    """The files and package folders of the user's modules, sorted: those of `loaded` that lie in one of `folders` or
    beside one that is `named` (the first part of its name). Never Python's own, ours, or installed ones."""
    tops = {name.partition(".")[0] for name in loaded} - {"__main__", *PACKAGES, *sys.stdlib_module_names}
    places = {name: _place(loaded[name]) for name in tops if name in loaded}
    theirs = {name: p for name, p in places.items() if p is not None and not INSTALLED & set(p.parts)}
    roots = [folder.resolve() for folder in folders]
    roots += [theirs[name].parent for name in named if name in theirs]
    return sorted(str(place) for place in theirs.values() if any(place.is_relative_to(r) for r in roots))


def _place(module: ModuleType) -> Path | None:
    """The folder of a package, the file of a module; None for others, such as built-in ones."""
    file = getattr(module, "__file__", None)
    if file is None:  # a package without __init__.py has a folder alone
        paths = {Path(path).resolve() for path in getattr(module, "__path__", [])}
        return paths.pop() if len(paths) == 1 else None
    path = Path(file).resolve()
    if path.name == "__init__.py":
        return path.parent
    return path if path.suffix == ".py" else None


def _named(value: Any) -> Iterator[str]:
    """The first parts of all module names in the values of a config."""
    if isinstance(value, Mapping):
        for below in value.values():
            yield from _named(below)
    elif isinstance(value, list):
        for below in value:
            yield from _named(below)
    elif isinstance(value, str) and (match := _NAMED.fullmatch(value)):
        yield match[1]
