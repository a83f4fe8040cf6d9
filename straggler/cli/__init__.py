"""The commands of `straggler`: `proteus stragglers`. One file a command; `mount` adds them to `proteus`.

Heavy imports stay inside the commands, so that `proteus --help` is quick. A command reads options, calls the package
and prints; an option or a table column may be added here without knowing the rest.
"""

from __future__ import annotations

import typer

from straggler.cli.stragglers import stragglers


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
    app.command()(stragglers)
