"""The places of a run: its working folder and its checkpoints, checked before it starts."""

from __future__ import annotations

import os


def return_to(folder: str | None) -> None:
    """Enter the working folder again where another of the same name has replaced it, as Ray does with uploads."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)


def check_resume(resume: str | None) -> None:
    """Raise CheckpointError for text that cannot name a place of checkpoints."""
    from agileml.checkpoints.errors import CheckpointError
    from agileml.config.checkpoint_location import location

    if resume is not None:
        try:
            location(resume)
        except ValueError as error:
            raise CheckpointError(f"--resume {resume}: {error}") from None
