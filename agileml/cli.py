"""The `proteus` command. Each package brings its own commands; this module only mounts them.

Bad input leaves a command as `typer.BadParameter(sentence)`: it is printed on one line, exit code 2.
"""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

import agileml.checkpoint_cli
import agileml.run_cli
import agileml.sizing_cli
import bidbrain.cli
import pipeline.cli
import straggler.cli

INTERRUPTED = 130

app = typer.Typer(
    name="proteus",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def proteus() -> None:
    """Train models on machines that can be taken away at any moment."""


agileml.run_cli.mount(app)
bidbrain.cli.mount(app)
straggler.cli.mount(app)
pipeline.cli.mount(app)
agileml.sizing_cli.mount(app)
agileml.checkpoint_cli.mount(app)


def _sentence(error: TyperException) -> str:
    if isinstance(error, typer.BadParameter) and error.param is None:
        message = error.message  # says itself what it is about
    else:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(message.split())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    try:
        status = app(args=arguments, standalone_mode=False)
    except TyperException as error:
        print(f"proteus: {_sentence(error)}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer makes this of a KeyboardInterrupt inside a command
        print("proteus: interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
