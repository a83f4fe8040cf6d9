"""Applications that come with the engine, and how a config names one of its own."""

from __future__ import annotations

import importlib
import os
import sys

from agileml.application import Application, InputError, Settings

NAMES = ("mf", "mlr", "torch")


def build(name: str, settings: Settings) -> Application:
    """The application `name`: `mf`, `mlr`, or `package.module:Class` as found from the working folder.

    Raises InputError when there is none of that name, ConfigError when its settings are wrong.
    """
    return application_class(name)(settings)


def application_class(name: str) -> type[Application]:
    """The class that `name` stands for. Raises InputError."""
    if name == "mf":
        from agileml.apps.matrix_factorization import MatrixFactorization

        return MatrixFactorization
    if name == "mlr":
        from agileml.apps.logistic_regression import LogisticRegression

        return LogisticRegression
    if name == "torch":
        from agileml.apps.torch_module import TorchModule

        return TorchModule
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        raise InputError(f"application: found {name!r}, expected {', '.join(NAMES)} or package.module:Class")
    return _imported(name, module_name, class_name)


def _imported(name: str, module_name: str, class_name: str) -> type[Application]:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise InputError(
                f"application: {name}: there is no module {missing!r} in {folder} or among the installed packages"
            ) from None
        raise InputError(f"application: {name}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise InputError(
            f"application: {name}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InputError(f"application: {name}: module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Application)):
        raise InputError(
            f"application: {name}: {class_name} is no subclass of agileml.application.Application"
        )
    if found.__abstractmethods__:
        raise InputError(
            f"application: {name}: {class_name} lacks {', '.join(sorted(found.__abstractmethods__))}()"
        )
    return found
