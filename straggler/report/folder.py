"""The folder of a simulation: its config, every run as CSV, the summaries as JSON and a figure as PNG."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from straggler.config import StragglerConfig
from straggler.report.figures import patterns_figure, save, variants_figure
from straggler.report.summary import summarise
from straggler.simulate.schemes import Row


def write_report(out: Path, config: StragglerConfig, rows: Sequence[tuple[str, Row]]) -> None:
    """Write config.yaml, runs.csv, summary.json and figure.png into a new or an empty folder, all or nothing."""
    # A folder that is there stays itself: it may be a link, a mounted one, or the one that the command runs in.
    is_there = out.is_dir()
    partial = out / ".partial" if is_there else out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        _write(partial, config, rows)
        if is_there:
            for file in sorted(partial.iterdir()):
                file.rename(out / file.name)
        else:
            partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(folder: Path, config: StragglerConfig, rows: Sequence[tuple[str, Row]]) -> None:
    summaries = summarise(rows)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(), sort_keys=False))
    (folder / "summary.json").write_text(
        json.dumps([asdict(summary) for summary in summaries], indent=1) + "\n"
    )
    with (folder / "runs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["variant", *asdict(rows[0][1])])
        writer.writerows([variant, *asdict(row).values()] for variant, row in rows)
    figure = variants_figure(config, summaries) if config.variants else patterns_figure(config, summaries)
    save(figure, folder / "figure.png")
