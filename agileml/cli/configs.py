"""`proteus configs`: the example configs that come with the package, for users without a checkout."""

from __future__ import annotations

import json
import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

FOLDER = "configs"  # of a checkout, and of the copies


def mount(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(configs)


def examples() -> list[Path]:
    """The files that come with the package, by name."""
    import agileml.config

    folder = Path(agileml.config.__file__).parent / "examples"
    return sorted(file for file in folder.iterdir() if file.is_file())


def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this one, such as demo.")
    ] = None,
    copy: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help=f"Copy all of them to the folder {FOLDER} in DIR; files there stay."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List them as one JSON object each.")] = False,
) -> None:
    """List the example configs that come with Proteus, print one, or copy them all."""
    found = examples()
    if copy is not None:
        if name is not None:
            raise typer.BadParameter("found a name with --copy, expected one of them")
        # No shell sees a `~` behind `--copy=`.
        _copy(found, Path(os.path.expanduser(copy)) / FOLDER)
    elif name is not None:
        by_stem = {file.stem: file for file in found} | {file.name: file for file in found}
        if name not in by_stem:
            from agileml.config.text import nearest

            raise typer.BadParameter(f"found {name!r}, {nearest(name, sorted(f.stem for f in found))}")
        print(by_stem[name].read_text(encoding="utf-8"), end="")
    elif as_json:
        for file in found:
            print(json.dumps({"name": file.stem, "path": str(file), "about": _about(file)}))
    else:
        for file in found:
            print(f"{file.stem:<36} {_about(file)}".rstrip())


def _copy(found: list[Path], to: Path) -> None:
    from agileml.runs.folder import RunFolder, StorageError

    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--copy: {to} cannot be made a folder: {error.strerror}") from None
    try:
        for file in found:
            if (to / file.name).exists():
                typer.echo(f"proteus: {to / file.name} is there already and stays", err=True)
            else:
                RunFolder.write_text(to / file.name, file.read_text(encoding="utf-8"))
    except StorageError as error:
        typer.echo(f"proteus: {error}", err=True)
        raise typer.Exit(1) from None
    print(to)


def _about(file: Path) -> str:
    """A config's description of itself: the first sentence of its first comment, or a JSON file's `description`."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return str(json.loads(text).get("description", ""))
    # The comment ends at an empty line of it, or at a command, which is indented.
    comment = "\n".join(takewhile(lambda line: re.match(r"# ?\S", line), text.splitlines()))
    words = " ".join(comment.replace("#", " ").split())
    return re.sub(r"\. [A-Z].*", ".", words)
