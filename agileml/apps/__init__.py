"""Applications that come with the engine: matrix factorization, logistic regression, K-means, LDA, torch modules.

Begin with `logistic_regression.py`, the shortest; `data.py`, `ratings.py` and `labelled.py` load and split data.
An application may be changed or added without knowing the engine: it sees `agileml.application` only.
"""

from __future__ import annotations

from typing import Any

from agileml.application import Application, InputError, Settings
from agileml.apps.user_code import imported, other_module, split_name

NAMES = ("kmeans", "lda", "mf", "mlr", "torch")


def build(name: str, settings: Settings) -> Application:
    """The application `name`: `mf`, `mlr`, or `package.module:Class` as found from the working folder.

    Raises InputError when there is none of that name, ConfigError when its settings are wrong.
    """
    if name == "torch" and settings.model.get("script") is not None:
        from agileml.apps.loop.module import ScriptModule

        return ScriptModule(settings)
    found = application_class(name)
    if issubclass(found, Application):
        return found(settings)
    from agileml.apps.loop.training import application_of

    return application_of(found).with_settings(settings)


def application_class(name: str) -> type[Any]:
    """The class that `name` stands for: an application, or an `agileml.Training`. Raises InputError."""
    if name == "kmeans":
        from agileml.apps.kmeans import KMeans

        return KMeans
    if name == "lda":
        from agileml.apps.lda import Lda

        return Lda
    if name == "mf":
        from agileml.apps.matrix_factorization import MatrixFactorization

        return MatrixFactorization
    if name == "mlr":
        from agileml.apps.logistic_regression import LogisticRegression

        return LogisticRegression
    if name == "torch":
        from agileml.apps.torch.module import TorchModule

        return TorchModule
    parts = split_name(name)
    if parts is None:
        raise InputError(f"application: found {name!r}, expected {', '.join(NAMES)} or package.module:Class")
    module_name, class_name = parts
    found = getattr(imported(name, module_name, "application"), class_name, None)
    if found is None:
        raise InputError(
            f"application: {name}: module {module_name} has no {class_name!r}{other_module(module_name)}"
        )
    if not (isinstance(found, type) and (issubclass(found, Application) or _is_training(found))):
        raise InputError(
            f"application: {name}: {class_name} is no subclass of agileml.application.Application or agileml.Training"
        )
    if not issubclass(found, Application):
        return found
    if found.__abstractmethods__:
        raise InputError(
            f"application: {name}: {class_name} lacks {', '.join(sorted(found.__abstractmethods__))}()"
        )
    return found


def _is_training(found: type[Any]) -> bool:
    from agileml.apps.loop.training import Training

    return issubclass(found, Training)
