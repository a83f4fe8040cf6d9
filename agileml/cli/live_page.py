"""`proteus watch`: serves the live page, or writes it to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from agileml.runs.live.server import PageServer
from agileml.runs.report.page import page

LEAST_TOKEN = 16


def show(look: Callable[[], dict[str, Any]], port: int, freeze: Path | None, token_path: Path | None) -> None:
    """Serve the views of `look` until Ctrl-C; with `freeze`, write the present one to that file.

    Raises BadParameter for a port or a token's file that cannot be used, Exit for a page that cannot be written.
    """
    if freeze is not None:
        from agileml.runs.folder import RunFolder, StorageError

        try:
            RunFolder.write_text(freeze, page(look()))
        except StorageError as error:
            typer.echo(f"proteus: {error}", err=True)
            raise typer.Exit(1) from None
        print(freeze)
        return
    token = None if token_path is None else _token(token_path)
    try:
        served = PageServer(look, port, token=token)
    except OSError as error:
        raise typer.BadParameter(f"--port {port}: {error.strerror}") from None
    with served:
        print(served.url, flush=True)
        typer.echo("open it in a browser on this computer; Ctrl-C ends it, the run goes on", err=True)
        served.wait()


def _token(file: Path) -> str:
    """The token in a file of the user's own. Raises BadParameter."""
    try:
        token, mode = file.read_text().strip(), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--token-path {file}: cannot be read ({error})") from None
    if mode & 0o077:
        raise typer.BadParameter(f"--token-path {file}: others may read it, expected mode 0600")
    if len(token) < LEAST_TOKEN:
        raise typer.BadParameter(
            f"--token-path {file}: found {len(token)} characters, expected {LEAST_TOKEN} at least"
        )
    return token
