"""`proteus replay`: what another `balance` or `consistency` would have made of a recorded run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agileml.replay import Replayed


class Balance(StrEnum):
    """The values of `balance`."""

    STATIC = "static"
    LBBSP = "lbbsp"
    POOL = "pool"
    AUTO = "auto"


def mount(app: typer.Typer) -> None:
    """Add `proteus replay`."""
    app.command()(replay)


def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    balance: Annotated[
        list[Balance] | None,
        typer.Option(
            help="A value of `balance`; may be repeated.",
            show_default="static and lbbsp; pool with ssp and asp",
        ),
    ] = None,
    consistency: Annotated[
        str | None,
        typer.Option(help="bsp, asp, or ssp with its slack, such as ssp:3.", show_default="the run's"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each row.")] = False,
) -> None:
    """Simulate a recorded run with another `balance` or `consistency`, on machines as fast as they were."""
    from agileml.config.job import ConfigError, load
    from agileml.events.schema import SchemaError
    from agileml.replay import ReplayError, with_consistency
    from agileml.replay import replay as replayed
    from agileml.runs.event_log import EVENTS, read_events
    from agileml.runs.folder import CONFIG

    for name in (CONFIG, EVENTS):
        if not os.path.isfile(run / name):
            raise typer.BadParameter(f"RUN: {run} holds no {name}, expected the folder of a run")
    try:
        recorded = config = load(run / CONFIG)
        if config.consistency.kind == "elastic" or config.pipeline is not None:
            found = "a pipeline" if config.pipeline is not None else "supersteps"
            raise ReplayError(f"found a run with {found}, expected one with bsp, ssp or asp")
        if consistency is None and config.consistency.kind == "ssp" and not config.consistency.slack:
            consistency = "bsp"  # which it is, and which has balances to compare
        if consistency is not None:
            config = with_consistency(config, consistency)
        other = Balance.LBBSP if config.consistency.kind == "bsp" else Balance.POOL
        chosen = balance or [Balance.STATIC, other]
        rows = replayed(read_events(run / EVENTS), config, chosen, recorded=recorded)
    except (ConfigError, SchemaError, ReplayError) as error:
        raise typer.BadParameter(f"RUN: {run}: {error}") from None
    if not as_json:
        _show(rows)
        return
    for row in rows:
        more = {"clock_s": row.clock_s, "of_recorded": row.seconds / rows[0].seconds}
        print(json.dumps(asdict(row) | more))


def _show(rows: list[Replayed]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("balance", "s/clock", "seconds", "of recorded", "waiting"):
        table.add_column(heading, justify="left" if heading == "balance" else "right", no_wrap=True)
    for row in rows:
        waits = "-" if row.waiting_share is None else f"{row.waiting_share:.1%}"
        share = f"{row.seconds / rows[0].seconds:.3f}"
        table.add_row(row.policy, f"{row.clock_s:.4g}", f"{row.seconds:.4g}", share, waits)
    console = Console()
    console.print(f"{rows[0].clocks} clocks between changes of members")
    console.print(table)
