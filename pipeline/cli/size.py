"""`proteus size`: how many GPUs, how many parameter servers, which minibatch, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.common import write_text

if TYPE_CHECKING:
    from pipeline.sizing.config import SizingConfig


def size(
    config: Annotated[Path, typer.Argument(help="YAML file with any of: gpus, servers, minibatch.")],
    out: Annotated[Path | None, typer.Option(help="Also write the answers as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each answer.")] = False,
) -> None:
    """Answer how many GPUs a speedup takes, how many parameter servers, and which minibatch is fastest."""
    import json

    from pipeline.sizing.rules import SizingError

    asked = load(config)
    answers = {}
    try:
        for key, unit in (("gpus", "GPUs"), ("servers", "parameter servers"), ("minibatch", "per minibatch")):
            question = getattr(asked, key)
            if question is not None:
                answer = question.answer()
                answers[key] = {"answer": answer.count, "reason": answer.reason}
                if as_json:
                    print(json.dumps({"name": asked.name, "question": key, **answers[key]}))
                else:
                    print(f"{asked.name}: {answer.count} {unit}: {answer.reason}")
    except (SizingError, ValueError) as error:
        raise typer.BadParameter(f"{config}: {error}") from None
    if out is not None:
        write_text(out, json.dumps({"name": asked.name, **answers}, indent=1) + "\n")


def load(path: Path) -> SizingConfig:
    """Read and check a config file. Raises typer.BadParameter with one sentence."""
    from pydantic import ValidationError

    from pipeline.sizing.config import SizingConfig
    from pipeline.yaml_text import YamlTextError, read_yaml

    try:
        raw = read_yaml(path)
    except YamlTextError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        return SizingConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise typer.BadParameter(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
