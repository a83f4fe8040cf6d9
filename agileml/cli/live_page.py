"""`proteus watch`: serves the live page, or writes it to a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from agileml.runs.live.server import PageServer, page


def show(look: Callable[[], dict[str, Any]], port: int, freeze: Path | None) -> None:
    """Serve the views of `look` until Ctrl-C; with `freeze`, write the present one to that file.

    Raises BadParameter for a port or a file that cannot be used.
    """
    if freeze is not None:
        from agileml.runs.folder import RunFolder, StorageError

        try:
            RunFolder.write_text(freeze, page(look()))
        except StorageError as error:
            raise typer.BadParameter(str(error)) from None
        print(freeze)
        return
    try:
        served = PageServer(look, port)
    except OSError as error:
        raise typer.BadParameter(f"--port {port}: {error.strerror}") from None
    with served:
        print(served.url, flush=True)
        typer.echo("open it in a browser on this computer; Ctrl-C ends it, the run goes on", err=True)
        while True:
            time.sleep(3600)
