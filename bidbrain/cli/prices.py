"""`proteus prices`: look at a price history, make one, fetch one, export its eviction tables."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bidbrain.history.prices import History
    from bidbrain.instants import Interval
    from bidbrain.report.market_summary import MarketSummary

prices = typer.Typer(no_args_is_help=True, help="Price histories: show, generate, fetch, evictions.")

HISTORY = typer.Argument(..., help="Price history: files or folders.")
TYPES = typer.Option(None, help="Machine types, by commas (default: all).")
ZONES = typer.Option(None, help="Zones (us-east-1a, or a), by commas (default: all).")
ON_DEMAND = typer.Option(None, metavar="TYPE=USD", help="On-demand price per hour.")
PRODUCT = typer.Option("Linux/UNIX", help="How the product's name begins, such as Linux.")
WINDOW = typer.Option(None, metavar="FROM/TO", help="Part of the history (ISO 8601, UTC).")


def _select(
    history: list[Path], types: list[str] | None, zones: list[str] | None, product: str
) -> tuple[History, set[str]]:
    """The markets that were asked for, and the other products of the history."""
    from bidbrain.cli.common import load_history, split, user_errors
    from bidbrain.simulate.plan import choose_markets

    recorded = load_history(history)
    with user_errors():
        chosen = recorded.select(choose_markets(recorded, split(types), split(zones), product))
    return chosen, {each.product for each in recorded.markets} - {each.product for each in chosen.markets}


def _window(text: str | None, history: History, option: str) -> Interval:
    from bidbrain.instants import Interval

    if text is None:
        return history.window
    try:
        window = Interval.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
    inside = window.overlap(history.window)
    if not inside.seconds:
        raise typer.BadParameter(
            f"{option} {window} lies outside of the history (it covers {history.window})"
        )
    return inside


@prices.command()
def show(
    history: list[Path] = HISTORY,
    types: list[str] | None = TYPES,
    zones: list[str] | None = ZONES,
    on_demand: list[str] | None = ON_DEMAND,
    product: str = PRODUCT,
    window: str | None = WINDOW,
    out: Path | None = typer.Option(None, help="Write the plot here (PNG)."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each market."),
) -> None:
    """A table (and with --out a plot) per market: prices against on-demand, share of time below it, changes a day."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from bidbrain.cli.common import check_place, prices_of, writing
    from bidbrain.instants import show_instant
    from bidbrain.report.market_summary import summarise_market
    from bidbrain.report.tables import show as shown

    if out is not None:
        if out.suffix != ".png":
            raise typer.BadParameter(f"{out}: the name of a plot ends in .png")
        check_place(out)
    own = prices_of(on_demand, "--on-demand")
    chosen, others = _select(history, types, zones, product)
    span = _window(window, chosen, "--window")
    known = _on_demand_prices(chosen, own, span.start_s)
    console = Console(stderr=True) if as_json else Console() if sys.stdout.isatty() else Console(width=110)
    markets = f"{len(chosen.markets)} market{'s' * (len(chosen.markets) > 1)}"
    table = Table(
        title=f"{markets}, {show_instant(span.start_s)} to {show_instant(span.end_s)} ($/h)",
        title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for name in ("market", "on-demand", "mean", "median", "least", "most", "below", "changes/day"):
        table.add_column(name, justify="left" if name == "market" else "right", no_wrap=True)
    for market in chosen.markets:
        price = known.get(market.instance_type)
        row = summarise_market(chosen, market, span, price)
        if as_json:
            print(json.dumps({"market": str(market), **_figures(row, price)}))
            continue
        table.add_row(
            str(market),
            "-" if price is None else f"{price / 1e6:g}",
            *(shown(figure / 1e6, 4) for figure in (row.mean, row.median, row.least, row.most)),
            "-" if row.share_below is None else f"{row.share_below:.1%}",
            shown(row.changes_per_day, 1),
        )
    if not as_json:
        console.print(table)
    for note in _notes(chosen, known, own, others):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        from bidbrain.report.markets import drawn_of, plot_prices

        if some := drawn_of(chosen):
            console.print(f"note: {out} has {some} (--types, --zones)", highlight=False, markup=False)
        with writing(out):
            console.print(str(plot_prices(chosen, known, span, out)), highlight=False, markup=False)


def _on_demand_prices(history: History, own: Mapping[str, int], at_s: int) -> dict[str, int]:
    """By type, micro-dollars/h: the user's own, else those of the table, which has plain Linux alone."""
    from bidbrain.machines import UnknownTypeError, types_at

    known: dict[str, int] = {}
    for market in history.markets:
        name = market.instance_type
        if name in own:
            known[name] = own[name]
        elif market.product.startswith("Linux"):
            with suppress(UnknownTypeError):
                known[name] = types_at([name], at_s, {}, {})[name][0]
    return known


def _notes(
    history: History, known: Mapping[str, int], own: Mapping[str, int], others: Collection[str]
) -> list[str]:
    """Sentences about data that `show` lacks: on-demand prices, other products, hours without rows."""
    from bidbrain.simulate.plan import price_notes, unused_note

    missing = sorted({market.instance_type for market in history.markets} - set(known))
    notes = (
        [f"no on-demand price is known for {', '.join(missing)} (--on-demand TYPE=USD)"] if missing else []
    )
    notes += price_notes([market for market in history.markets if market.instance_type in known], own)
    notes += unused_note("--on-demand", own, history)
    notes += _left_out(others)
    notes += [f"a hole of {hole.seconds / 3600:.0f} h without any row: {hole}" for hole in history.holes]
    return [*notes, *history.market_notes]


def _left_out(products: Collection[str]) -> list[str]:
    """A sentence about other products than the one that was asked for, if there are any."""
    names = ", ".join(sorted(products))
    return [f"prices of other products are left out: {names} (--product NAME)"] if products else []


def _figures(row: MarketSummary, on_demand: int | None) -> dict[str, float | None]:
    """The figures of a row of `show`, in $/h; None where there is none."""
    from bidbrain.money import usd

    def plain(figure: float) -> float | None:
        return None if math.isnan(figure) else figure

    dollars = {"mean": row.mean, "median": row.median, "least": row.least, "most": row.most}
    return {
        "on_demand_usd_per_h": None if on_demand is None else usd(on_demand),
        **{f"{name}_usd_per_h": plain(figure / 1e6) for name, figure in dollars.items()},
        "share_below_on_demand": row.share_below,
        "changes_per_day": plain(row.changes_per_day),
    }


@prices.command()
def generate(
    out: Path = typer.Argument(..., help="The file to write (.csv, .csv.gz or .csv.zst)."),
    types: list[str] = typer.Option(["c4.xlarge"], help="Machine types, by commas."),
    zones: list[str] = typer.Option(["us-east-1a,us-east-1b,us-east-1c"], help="Zones, by commas."),
    window: str = typer.Option(
        "2016-03-01/2016-05-01", metavar="FROM/TO", help="Window to cover (ISO 8601, UTC)."
    ),
    character: str = typer.Option("calm", help="calm, turbulent or smooth."),
    seed: int = typer.Option(0, min=0, help="Equal seeds make equal markets."),
    on_demand: list[str] | None = ON_DEMAND,
) -> None:
    """Make a seeded market of a given character, for people without recordings. It is no evidence about a real one."""
    from bidbrain.cli.common import prices_of, split, user_errors, writing
    from bidbrain.history.archive import repeated_rows_of, write_rows
    from bidbrain.history.generate import Character
    from bidbrain.history.generate import generate as make
    from bidbrain.instants import Interval
    from bidbrain.machines import types_at

    if character not in list(Character):
        raise typer.BadParameter(f"character {character!r}: there are {', '.join(Character)}")
    if not out.name.endswith((".csv", ".csv.gz", ".csv.zst")):
        raise typer.BadParameter(f"{out}: the name of a made history ends in .csv, .csv.gz or .csv.zst")
    try:
        span = Interval.parse(window)
    except ValueError as error:
        raise typer.BadParameter(f"--window: {error}") from None
    for option, names in (("--types", types), ("--zones", zones)):
        if not split(names):
            raise typer.BadParameter(f"{option}: found no name, expected at least one")
    own = prices_of(on_demand, "--on-demand")
    with user_errors():
        listed = types_at([t for t in split(types) if t not in own], span.start_s, {}, {})
    costs = {name: price for name, (price, _) in listed.items()} | own
    markets = [(kind, zone, costs[kind]) for kind in split(types) for zone in split(zones)]
    with writing(out):
        count = write_rows(out, repeated_rows_of(make(markets, span, Character(character), seed)))
    print(f"{out}: {count} prices of {len(markets)} made {character} markets (not recorded; seed {seed})")


@prices.command()
def fetch(
    archive: Path = typer.Argument(..., help="CSV archive to add to (.csv, .csv.gz or .csv.zst)."),
    region: str = typer.Option("us-east-1", help="AWS region."),
    types: list[str] | None = TYPES,
    days: float = typer.Option(90.0, min=0.01, max=90.0, help="How far back; AWS keeps 90 days."),
    product: str = typer.Option("Linux/UNIX", help="Product description."),
    endpoint_url: str | None = typer.Option(None, help="Another EC2 endpoint.", hidden=True),
) -> None:
    """Fetch spot price history from AWS and add it to an archive, without doubles."""
    import time

    import boto3
    from botocore.exceptions import BotoCoreError

    from bidbrain.cli.common import split, user_errors, writing
    from bidbrain.history.archive import append_rows
    from bidbrain.history.fetch import FetchError, fetch_rows
    from bidbrain.instants import DAY_S, Interval

    if not archive.name.endswith((".csv", ".csv.gz", ".csv.zst")):
        raise typer.BadParameter(f"{archive}: the name of an archive ends in .csv, .csv.gz or .csv.zst")
    now_s = int(time.time())
    window = Interval(now_s - int(days * DAY_S), now_s)
    try:
        client = boto3.client("ec2", region_name=region, endpoint_url=endpoint_url)
        with user_errors(), writing(archive):
            new, total = append_rows(archive, fetch_rows(client, window, split(types), [product]))
    except (FetchError, BotoCoreError, ValueError) as error:
        raise typer.BadParameter(" ".join(str(error).split())) from None
    print(f"{archive}: {new} new rows, {total} in all")


@prices.command()
def evictions(
    history: list[Path] = HISTORY,
    out: Path = typer.Option(..., help="CSV to write."),
    types: list[str] | None = TYPES,
    zones: list[str] | None = ZONES,
    product: str = PRODUCT,
    window: str | None = WINDOW,
) -> None:
    """Export beta and time to eviction per market and bid delta, exact over all start instants of a window."""
    from bidbrain.cli.common import writing
    from bidbrain.report.market_summary import write_evictions
    from bidbrain.risk.eviction import EvictionTable

    chosen, others = _select(history, types, zones, product)
    span = _window(window, chosen, "--window")
    with writing(out):
        table = EvictionTable.train(chosen, chosen.markets, span)
        count = write_evictions(table, out)
    print(f"{out}: {count} rows, {len(table.markets)} markets x {len(table.deltas)} deltas, {span}")
    for note in _left_out(others):
        print(f"note: {note}")
