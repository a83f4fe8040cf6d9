"""The body of `proteus simulate --availability`: run, show, write, draw."""

from __future__ import annotations

import yaml
from rich.console import Console

from bidbrain.accounts.ledger import write_ledgers
from bidbrain.cli import run_prices
from bidbrain.cli.common import make_folder
from bidbrain.config import SimulateConfig
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.availability import read_trace
from bidbrain.report.tables import rich_tables, write_tables
from bidbrain.simulate.experiment import compare, summarise
from bidbrain.simulate.pool_plan import make_pool_plan


def run(settings: SimulateConfig, sweep: str | None) -> None:
    """Everything of one `proteus simulate` on availability traces; raises the user errors of the parts."""
    assert settings.out is not None
    console = run_prices.make_console()
    traces = [read_trace(path) for path in settings.availability]
    if sweep is not None:
        key, values = run_prices.parse_sweep(sweep)
        plans = [make_pool_plan(run_prices.with_value(settings, key, value), traces) for value in values]
        run_prices.run_sweep(settings, key, values, [plan.experiment for plan in plans], console)
        return
    plan = make_pool_plan(settings, traces)
    run_prices.say(plan.notes, console)
    results = run_prices.simulate_all(plan.experiment, settings)
    rows = [summarise(result, settings.seed) for result in results]
    folder = make_folder(settings.out)
    write_tables(folder, rows, compare(results, settings.seed))
    names = ", ".join(trace.market.zone for trace in traces)
    _head(names, plan.experiment.setting.rules, settings, console)
    for table in rich_tables(rows, "all on-demand = 1"):
        console.print(table)
    run_prices.say_unfinished(rows, console)
    if settings.ledger:
        ledgers = run_prices.ledgers_of(plan.experiment, results, settings.ledger)
        count = write_ledgers(folder / "ledger.jsonl", ledgers)
        write_rows(folder / "prices.csv", rows_of(plan.experiment.setting.history))
        console.print(f"{folder / 'ledger.jsonl'}: {count} jobs (their prices: {folder / 'prices.csv'})")
    from bidbrain.cli.draw_pools import draw

    text = yaml.safe_dump(settings.model_dump(mode="json", exclude={"processes", "out"}), sort_keys=False)
    console.print(f"{draw(plan, results, rows, text, folder)}")


def _head(names: str, rules: str, settings: SimulateConfig, console: Console) -> None:
    line = f"{settings.nodes} nodes, pools {names}, {rules}, spot at {settings.spot_share:g} of on-demand"
    console.print(line, soft_wrap=True, highlight=False)
