"""report.html: one file that holds everything, to be passed on."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2

from bidbrain.files.whole_file import write_text
from bidbrain.report.tables import show
from bidbrain.simulate.experiment import Row

HEADER = (
    "scheme",
    "job h",
    "cost",
    "95% interval",
    "runtime",
    "free",
    "evictions per job",
    "jobs",
    "unfinished",
)
HOW_TO_READ = (
    "Every scheme runs the same jobs, from the same random starts, against the recorded market; the bill follows the"
    " market's rules line by line. Cost and runtime are means over finished jobs, relative to the same job on on-demand"
    " machines alone (1.0): a cost of 0.15 is 85% cheaper, a runtime of 0.7 is 30% faster. Intervals are 95%, from a"
    " bootstrap over days, since jobs of one day see one market. 'Free' is the share of machine time that was refunded"
    " because the provider took the machines back. Schemes with * know the future: they show what is left to win and"
    " cannot be run. 'Traffic' is the part of the cost that is data between zones and regions. Whether two schemes"
    " differ is in pairs.json, which compares them job by job."
)


def write_page(
    path: Path,
    title: str,
    subtitle: str,
    notes: Sequence[str],
    rows: Sequence[Row],
    sections: Sequence[tuple[str, Sequence[Path]]],
    settings: str,
) -> Path:
    """Tables, plots (embedded) and settings in one page."""
    source = files("bidbrain.report").joinpath("page.html").read_text("utf-8")
    template = jinja2.Environment(autoescape=True).from_string(source)
    has_traffic = any(row.traffic > 0 for row in rows)
    table = [
        (
            row.scheme + (" *" if row.yardstick else ""),
            f"{row.job_hours:g}",
            show(row.cost, 4),
            f"{show(row.cost_low, 4)} .. {show(row.cost_high, 4)}",
            show(row.runtime),
            "-" if math.isnan(row.free_fraction) else f"{row.free_fraction:.1%}",
            show(row.evictions_per_job, 2),
            row.jobs,
            row.unfinished,
            *[show(row.traffic, 4)] * has_traffic,
        )
        for row in rows
    ]
    embedded = [
        (heading, [base64.b64encode(image.read_bytes()).decode() for image in images])
        for heading, images in sections
    ]
    text = template.render(
        title=title,
        subtitle=subtitle,
        how_to_read=HOW_TO_READ,
        notes=notes,
        header=(*HEADER, *["traffic"] * has_traffic),
        table=table,
        sections=embedded,
        settings=settings,
    )
    write_text(path, text)
    return path
