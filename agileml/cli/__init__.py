"""The `proteus` command. Each package brings its own commands; this module mounts them.

Begin with `run.py`. A command reads options, calls the package and prints; heavy imports stay inside it, so that
`proteus --help` is quick. Bad input leaves it as `typer.BadParameter(sentence)`: one line on stderr, exit code 2.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

import bidbrain.cli
import pipeline.cli
import straggler.cli
from agileml.cli import aws, checkpoint, clean, configs, jobs, kubernetes, machines, replay, run

INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="proteus",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"proteus {version('proteus-train')}")
        raise typer.Exit


@app.callback()
def proteus(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train models on machines that can be taken away at any moment."""


run.mount(app)
jobs.mount(app)
machines.mount(app)
clean.mount(app)
configs.mount(app)
bidbrain.cli.mount(app)
straggler.cli.mount(app)
pipeline.cli.mount(app)
checkpoint.mount(app)
replay.mount(app)
aws.mount(app)
kubernetes.mount(app)


@cache
def _command() -> TyperGroup:
    """All commands with their options, read from the annotations once for all calls of `main`."""
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def _sentence(error: TyperException) -> str:
    if isinstance(error, typer.BadParameter) and error.param is None:
        message = error.message  # names its subject itself
    else:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(message.split())


def _give_up_output(error: OSError) -> None:
    """Say that standard output takes no more, as a file on a full disk."""
    with suppress(OSError):  # a test's output has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
    if not isinstance(error, BrokenPipeError):  # `| head` wants no more
        print(f"proteus: the output cannot be written: {error.strerror}", file=sys.stderr)


def _is_nowhere() -> bool:
    """True where the working folder was removed, also if another one has its name by now."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _open_closed_streams() -> None:
    """Lead standard streams that are closed, as by `>&-`, to nowhere: the next file to be opened would take the place
    of one, and get what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # no name or sign may end a run that is done
    status: object = 1
    try:
        status = _command()(args=arguments, standalone_mode=False)
    except OSError as error:  # of `print`: commands name the files that they write
        if error.filename is None and _is_nowhere():
            print(
                "proteus: the working folder is gone, expected one that is there: change to it again",
                file=sys.stderr,
            )
            sys.exit(2)
        if error.filename is not None or error.errno not in FULL:
            raise
        _give_up_output(error)
    except TyperException as error:
        if sentence := _sentence(error):  # none when the help was shown instead of a command
            from agileml.application import without_secrets
            from bidbrain.cli.harmless import harmless

            # It may quote a presigned address.
            print(f"proteus: {harmless(without_secrets(sentence))}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer makes this of a KeyboardInterrupt inside a command
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ray's shutdown follows; it is short
        print("proteus: interrupted", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError as error:
        _give_up_output(error)
        status = status or 1
    try:
        sys.stderr.flush()
    except OSError:  # nobody can be told, and Python's own last try would change the exit code
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    sys.exit(status if isinstance(status, int) else 0)
