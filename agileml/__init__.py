"""AgileML: elastic parameter-server training over reliable and transient machines.

import agileml
result = agileml.run("configs/mlr.yaml", clocks=100)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bidbrain.files.compiled_code import name_place

if TYPE_CHECKING:
    from agileml.application import Application, InputError, Settings, Table, Unit, Update, Updates
    from agileml.apps.files.formats.parquet import ParquetDataset
    from agileml.apps.files.formats.tar import TarDataset
    from agileml.apps.loop.training import Training
    from agileml.errors import RunError
    from agileml.runs.callbacks import Callback, EarlyStopping
    from agileml.runs.loggers.services import MlflowLogger, WandbLogger
    from agileml.session import Result, run
    from agileml.session.trainer import Trainer

__all__ = [
    "Application",
    "Callback",
    "EarlyStopping",
    "InputError",
    "MlflowLogger",
    "ParquetDataset",
    "Result",
    "RunError",
    "Settings",
    "Table",
    "TarDataset",
    "Trainer",
    "Training",
    "Unit",
    "Update",
    "Updates",
    "WandbLogger",
    "run",
]

_HOMES = {
    "Result": "agileml.session",
    "run": "agileml.session",
    "Trainer": "agileml.session.trainer",
    "Training": "agileml.apps.loop.training",
    "RunError": "agileml.errors",
    "ParquetDataset": "agileml.apps.files.formats.parquet",
    "TarDataset": "agileml.apps.files.formats.tar",
}
_HOMES |= dict.fromkeys(("MlflowLogger", "WandbLogger"), "agileml.runs.loggers.services")
_HOMES |= dict.fromkeys(("Callback", "EarlyStopping"), "agileml.runs.callbacks")

name_place()


def __getattr__(name: str) -> Any:
    """Import a name only when it is used, so that importing a pure module does not import Ray."""
    if name not in __all__:
        raise AttributeError(f"module 'agileml' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "agileml.application")), name)
