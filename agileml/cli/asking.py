"""The question before money is spent, machines are ended or files are removed."""

from __future__ import annotations

import sys

import typer


def ask(question: str, *, err: bool = False) -> None:
    """Return when the user agrees. err: ask on standard error.

    Raises Exit with code 1 where the user declines, BadParameter where standard input has no answer.
    """
    try:
        has_agreed = typer.confirm(question, err=err)
    except typer.Abort as error:
        if isinstance(error.__context__, EOFError):  # else it was Ctrl-C
            raise _nobody(question) from None
        raise
    if not has_agreed:
        typer.echo("Nothing was done.", err=True)
        raise typer.Exit(1)


def check_terminal(question: str) -> None:
    """Raise BadParameter where there is no terminal: what costs money or data is asked of a person, not of a pipe."""
    if not sys.stdin.isatty():
        raise _nobody(question)


def _nobody(question: str) -> typer.BadParameter:
    return typer.BadParameter(f"{question} There is nobody to ask here: say --yes")
