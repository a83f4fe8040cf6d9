"""The commands of `bidbrain`. Heavy imports stay inside the commands, so that `proteus --help` is quick."""

from __future__ import annotations

import typer


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
