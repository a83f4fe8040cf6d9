"""The commands of `bidbrain`: `proteus simulate`, `prices`, `pools`, `market` and `bill`.

One module reads the options of each command; `run` runs a simulation and `draw` draws it.
Heavy imports stay inside the commands, so that `proteus --help` is quick. Begin with `simulate.py`.
"""

from __future__ import annotations

import typer

from bidbrain.cli.bill import bill
from bidbrain.cli.market import market
from bidbrain.cli.pools import pools
from bidbrain.cli.prices import prices
from bidbrain.cli.simulate import simulate


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
    app.command()(simulate)
    app.command()(bill)
    app.add_typer(prices, name="prices")
    app.add_typer(pools, name="pools")
    app.add_typer(market, name="market")
