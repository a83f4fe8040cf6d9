"""`proteus pools`: the observed risk of pools, and AWS's interruption bands, which estimates begin from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from bidbrain.live.keeping import Objects

pools = typer.Typer(
    help="The risk of spot pools: what was learned, and where learning begins.", no_args_is_help=True
)
PLACE = "A folder, or s3://BUCKET/proteus/NAME/risk of a stack."


def _objects(place: str) -> Objects:
    from bidbrain.live.keeping import FolderObjects

    if not place.startswith("s3://"):
        if Path(place).exists() and not Path(place).is_dir():
            raise typer.BadParameter(f"{place} is a file, expected a folder or s3://BUCKET/PREFIX")
        return FolderObjects(Path(place))
    from bidbrain.aws.calls import client
    from bidbrain.aws.objects import BucketObjects

    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    if not bucket or not prefix:
        raise typer.BadParameter(f"found {place!r}, expected s3://BUCKET/PREFIX")
    return BucketObjects(client("s3", "us-east-1"), bucket, prefix)


@pools.command()
def refresh(
    download: Path = typer.Argument(..., help="spot-advisor-data.json, which you downloaded from AWS."),
    to: str = typer.Option(..., help=PLACE),
) -> None:
    """Begin from newer interruption bands: those of a download of AWS's Spot Instance Advisor."""
    from bidbrain.cli.common import unwritable
    from bidbrain.live.cloud import CloudError
    from bidbrain.live.keeping import BANDS
    from bidbrain.risk.bands import SOURCE, BandsError, bands_of_advisor, show_bands

    try:
        rows = bands_of_advisor(download.read_text("utf-8-sig"), str(download))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise typer.BadParameter(f"{download}: {why} (expected a download of {SOURCE})") from None
    except BandsError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        _objects(to).put(BANDS, show_bands(rows).encode())
    except CloudError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise unwritable(f"{to}/{BANDS}", error) from None
    regions = len({region for region, _, _ in rows})
    print(f"{to}/{BANDS}: {len(rows)} types in {regions} regions")


@pools.command()
def show(
    place: str = typer.Argument(..., help=PLACE),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each pool."),
) -> None:
    """Show the statistics that the jobs of a stack gathered: node hours, losses, refusals, the rate of each pool."""
    import time

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from bidbrain.cli.harmless import harmless
    from bidbrain.live.cloud import CloudError
    from bidbrain.live.keeping import read_kept
    from bidbrain.risk.book import Known, RiskBook
    from bidbrain.risk.pooled import sums_of

    if not place.startswith("s3://") and not Path(place).exists():
        raise typer.BadParameter(
            f"{place}: no such folder, expected one or s3://BUCKET/proteus/NAME/risk of a stack"
        )
    try:
        kept = read_kept(_objects(place))
    except OSError as error:
        raise typer.BadParameter(f"{place}: cannot be read ({error.strerror})") from None
    except CloudError as error:
        raise typer.BadParameter(str(error)) from None
    for problem in kept.problems:
        print(harmless(f"proteus: {problem}; it is left out"), file=sys.stderr)
    if not kept.tally.cells:
        if as_json:
            return
        print(f"{place}: nothing was learned yet ({kept.writers} jobs)")
        return
    now_s = max(int(time.time()), max(hour_s for _, hour_s in kept.tally.cells) + 3600)
    book = RiskBook(Known.of_tally(kept.tally, now_s, kept.bands))
    console = Console() if sys.stdout.isatty() else Console(width=110)
    table = Table(
        title=f"{place}: {kept.writers} jobs, older counts fade by half in 14 days", title_justify="left"
    )
    for name in ("pool", "node hours", "lost", "refused", "% lost per hour"):
        table.add_column(name, justify="left" if name == "pool" else "right")
    for market, cell in sorted(sums_of(kept.tally, now_s).items()):
        rate = book.usual(market, now_s)
        if as_json:
            counts = {"node_hours": cell.node_h, "lost": cell.lost, "refused": cell.refused}
            print(json.dumps({"pool": str(market), **counts, "lost_per_h": rate}))
            continue
        table.add_row(
            escape(harmless(str(market))),
            f"{cell.node_h:.1f}",
            f"{cell.lost:.1f}",
            f"{cell.refused:.1f}",
            f"{100 * rate:.2f}",
        )
    if not as_json:
        console.print(table)
