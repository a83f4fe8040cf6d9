"""The places of a run: its working folder and its checkpoints, checked before it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agileml.cluster.travel import PACKAGES
from agileml.config.text import ConfigError
from agileml.runs.folder import FolderError


def check_shadows(folder: Path) -> None:
    """Raise FolderError for a file in the working folder that hides a module which every process of a run imports.

    Processes on Ray nodes look into the working folder first, so a `random.py` there ends them before they can say why.
    A checkout of ours may be the working folder of what was installed from it: the code is the same.
    """
    for entry in sorted(folder.iterdir()):
        # Unlike `Path.is_file` this takes a folder that we may not enter for none.
        is_package = os.path.isfile(entry / "__init__.py")
        name = entry.stem if entry.suffix == ".py" else entry.name if is_package else ""
        loaded = sys.modules.get(name)
        if loaded is None:
            continue
        spec = getattr(loaded, "__spec__", None)
        place = getattr(spec, "origin", None)
        if place is None or (place not in ("built-in", "frozen") and Path(place).is_relative_to(folder)):
            continue
        if not is_package or not _is_ours(entry):
            raise FolderError(
                f"{entry} hides the module {name} that Ray's processes need, expected another name for it"
            )
        # An installed module that the checkout lacks, as a build leaves it, does no harm: the checkout is found first.
        if not _code_in(entry).items() <= _code_in(Path(place).parent).items():
            raise FolderError(
                f"{entry} is other code of Proteus than what is installed in {Path(place).parent}, expected the same: "
                "install this checkout again, or call the command in another folder"
            )


def _is_ours(package: Path) -> bool:
    """True for a folder of a checkout of ours: all our packages lie side by side in it."""
    return package.name in PACKAGES and all(
        (package.parent / name / "__init__.py").is_file() for name in PACKAGES
    )


def _code_in(package: Path) -> dict[str, bytes]:
    """The modules of a package: the content of each file by its path within it."""
    return {str(file.relative_to(package)): file.read_bytes() for file in package.rglob("*.py")}


def return_to(folder: str | None) -> None:
    """Enter the working folder again where another of the same name has replaced it, as Ray does with uploads."""
    try:
        os.getcwd()
    except FileNotFoundError:
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)


def resume_place(resume: str | Path | None, *, change_optimizer: bool, verify: bool) -> str | None:
    """The place of checkpoints to resume from, as text. Raises CheckpointError where it cannot be one.

    Raises ConfigError for a changed optimizer without a resume, or where one process is to compute the same bits.
    """
    if change_optimizer and resume is None:
        raise ConfigError(
            "found --change-optimizer without --resume, expected both: a new run has the optimizer of its config",
            key=("optimizer",),
        )
    if change_optimizer and verify:
        raise ConfigError(
            "found true with --change-optimizer, expected false: one process would train all clocks with the new "
            "settings",
            key=("verify",),
        )
    from agileml.checkpoints.errors import CheckpointError
    from agileml.config.checkpoint_location import location

    if resume is None:
        return None
    try:
        location(place := str(resume))
    except ValueError as error:
        raise CheckpointError(f"--resume {resume}: {error}") from None
    return place
