"""The commands of `pipeline`: `proteus profile`, `plan`, `schedule`, `size`, `pipeline`. `mount` adds them.

Heavy imports stay inside the commands, so that `proteus --help` is quick. A command reads options, calls the package
and prints; an option or a line of output may be changed here without knowing the rest.
"""

from __future__ import annotations

import typer

from pipeline.cli import run_pipeline
from pipeline.cli.plan import plan_command
from pipeline.cli.profile import profile_command
from pipeline.cli.schedule import schedule_command
from pipeline.cli.size import size


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
    app.command("profile")(profile_command)
    app.command("plan")(plan_command)
    app.command("schedule")(schedule_command)
    app.command("size")(size)
    app.add_typer(run_pipeline.app, name="pipeline")
