"""Packages that are not installed with Proteus, because few jobs need them: imported when a job asks for them."""

from __future__ import annotations

from importlib.util import find_spec

# The package on PyPI by the name that is imported, with the least version that is known to work.
OPTIONAL = {
    "datasets": "datasets>=4.0",
    "mlflow": "mlflow-skinny>=3.0",
    "pyarrow": "pyarrow>=18.0",
    "wandb": "wandb>=0.31",
}


def missing_package(name: str) -> str | None:
    """A sentence's end about a package of OPTIONAL that is not installed here, with the command that installs it;
    None if it is."""
    if find_spec(name) is not None:
        return None
    wanted = OPTIONAL[name]
    return f"expected the package {wanted.partition('>')[0]}, which is not installed here: pip install '{wanted}'"
