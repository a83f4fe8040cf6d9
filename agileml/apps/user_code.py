"""The user's own code, which a config names as `package.module:attribute` or by its file, from the working folder."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from agileml.application import InputError


def split_name(name: str) -> tuple[str, str] | None:
    """`package.module` and `attribute`, also of `package/module.py:attribute`; None when the text is no such name."""
    module, colon, attribute = name.partition(":")
    if module.endswith(".py") and not module.startswith(("/", "..")):
        module = module.removesuffix(".py").removeprefix("./").replace("/", ".")
    return (module, attribute) if colon and module and attribute else None


def imported(name: str, module_name: str, key: str) -> ModuleType:
    """The module of the user's, imported from the working folder or the installed packages.

    `name` is the whole text of `key` in the config. Raises InputError, with what the import raised as its cause.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise InputError(
                f"{key}: {name}: there is no module {missing!r} in {folder} or among the installed packages"
                f"{other_module(missing)}"
            ) from None
        raise InputError(f"{key}: {name}: importing {module_name} failed: {error}") from error
    except SystemExit as error:  # such as of argparse, which reads the arguments of this process
        raise InputError(
            f"{key}: {name}: importing {module_name} called exit({error.code!r}), expected a module whose program is "
            'below `if __name__ == "__main__":`'
        ) from error
    except Exception as error:
        raise InputError(
            f"{key}: {name}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error


def other_module(name: str) -> str:
    """The end of a sentence about what a module lacks, where another one has the name of a file of the user's, as
    `pipeline.py`, and was imported before; empty otherwise."""
    top = name.partition(".")[0]
    own = [f for f in (Path.cwd() / top / "__init__.py", Path.cwd() / f"{top}.py") if f.is_file()]
    if top not in sys.modules or not own:
        return ""
    place = getattr(sys.modules[top], "__file__", None) or "Python itself"
    if any(file.samefile(place) for file in own if os.path.isfile(place)):
        return ""
    return f"; the module {top} is that of {place}, expected another name for {own[0]}"


def function_named(name: str, key: str) -> Callable[..., Any]:
    """The object that `package.file:function` names, found from the working folder. `key`: its key in the config.

    Raises InputError.
    """
    parts = split_name(name)
    if parts is None:
        raise InputError(f"{key}: found {name!r}, expected package.file:function or package/file.py:function")
    module_name, attribute = parts
    found = getattr(imported(name, module_name, key), attribute, None)
    if not callable(found):
        what = "has no" if found is None else "has something that is no function as"
        raise InputError(
            f"{key}: {name}: module {module_name} {what} {attribute!r}{other_module(module_name)}"
        )
    return found
