"""The table on screen and in files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bidbrain.files.whole_file import write_text
from bidbrain.simulate.experiment import Pair, Row, as_json


def write_tables(folder: Path, rows: Sequence[Row], pairs: Sequence[Pair]) -> None:
    """table.json, pairs.json, table.csv."""
    write_text(folder / "table.json", json.dumps(as_json(rows), indent=1) + "\n")
    write_text(folder / "pairs.json", json.dumps(as_json(pairs), indent=1) + "\n")
    out = io.StringIO()
    plain = as_json(rows)
    writer = csv.DictWriter(out, list(plain[0]) if plain else ["scheme"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    write_text(folder / "table.csv", out.getvalue())


def show(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def names_of(schemes: Iterable[str]) -> dict[str, str]:
    """The names of schemes side by side: of a class of the user's the last part, where no other scheme has it."""
    last = {scheme: scheme.rpartition(":")[2] for scheme in schemes}
    counts = Counter(last.values())
    return {scheme: name if counts[name] == 1 else scheme for scheme, name in last.items()}


def rich_tables(rows: Sequence[Row], title: str) -> list[Table]:
    """For people: one table per job length, one line per scheme; fits 80 columns."""
    tables = []
    shown = names_of(row.scheme for row in rows)
    for hours in dict.fromkeys(row.job_hours for row in rows):
        table = Table(
            title=f"{title}, jobs of {hours:g} h",
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        names = ["scheme", "cost", "95% interval", "runtime", "free", "evicted", "unfinished"]
        has_traffic = any(row.traffic > 0 for row in rows)
        for name in [*names, *["traffic"] * has_traffic]:
            table.add_column(name, justify="left" if name == "scheme" else "right", no_wrap=True)
        for row in rows:
            if row.job_hours != hours:
                continue
            table.add_row(
                shown[row.scheme] + (" *" if row.yardstick else ""),
                show(row.cost, 4),
                f"{show(row.cost_low)}-{show(row.cost_high)}",
                show(row.runtime),
                "-" if math.isnan(row.free_fraction) else f"{row.free_fraction:.1%}",
                show(row.evictions_per_job, 1),
                f"{row.unfinished} of {row.jobs}" if row.unfinished else "0",
                *[show(row.traffic, 4)] * has_traffic,
            )
        tables.append(table)
    return tables
