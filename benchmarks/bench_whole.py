"""The whole run (`configs/whole.yaml`), and the same with one part switched off at a time: what each part contributes.

    python benchmarks/bench_whole.py [--quick] [--seeds 5] [--out DIR] [--link 100mbit]

With `--out` figures are kept in DIR/figures.json run by run, and the same command goes on where it was interrupted.

A market is played on local Ray nodes that stand for machines of 16 and 32 vCPUs. While the job trains, machines are
lost, one is slowed down twice, and the controller dies once. Every run must end with the bits of one process. The
switched-off part costs seconds of the job (`seconds`), dollars of its bill (`usd`), or time that machines wait for each
other (`waiting`); what on-demand machines would cost is in the bill of the run itself. With --quick one seed and a
third of the clocks: too short for a figure, long enough to see that all of it runs.

With --link the reliable machine is behind a link of that rate, and a model of 314 kB is trained in a third of the
clocks: there it should pay to keep the parameters on transient machines, so that part alone is switched off.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import ray
from hosts import HostsError, Link
from narrow_link import narrow_link

import agileml
from agileml.config.job import load

matplotlib.use("Agg")
from matplotlib import pyplot

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "whole.yaml"
FIGURES = ("seconds", "usd", "waiting")


@dataclass(frozen=True)
class Part:
    """A part of the system: the keys that switch it off, and the figure that is then larger."""

    name: str
    off: Mapping[str, Any]
    figure: str


TRANSIENT_PARAMETERS = Part("parameters on transient machines", {"stage": 1}, "seconds")
PARTS = (
    Part("shares by speed", {"balance": "static"}, "waiting"),
    Part("BidBrain's bids", {"market": {"policy": "standard_agileml"}}, "usd"),
    TRANSIENT_PARAMETERS,
)
# 314 kB of parameters.
LARGER = {"data": {"kind": "blobs", "examples": 2500, "features": 784, "classes": 100}}


def trained(values: Mapping[str, Any], off: Mapping[str, Any], seed: int, out: Path) -> dict[str, float]:
    """The figures of one run, whose bits are checked."""
    values = {
        **values,
        **off,
        "seed": seed,
        "market": {**values["market"], **off.get("market", {}), "seed": seed},
    }
    result = agileml.run(values, out=str(out), overwrite=True)  # of a run that was interrupted
    if result.code:
        sys.exit(
            f"{out}: the run ended with code {result.code}: its bits are not those of one process, or no bill"
        )
    summary = result.summary
    market = summary["market"]
    return {
        "seconds": summary["seconds"],
        "usd": market["usd"],
        "on_demand_usd": market["on_demand_usd"],
        "waiting": summary["waiting_share"],
        "evictions": market["evictions"],
    }


class Kept:
    """The figures of the runs that have ended, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}

    def figures(self, name: str, run: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Those of a run, which is made if it has not ended before."""
        if name not in self._rows:
            self._rows[name] = run()
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._rows, indent=1))
            new.replace(self._path)
        return self._rows[name]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="for the runs and the picture; a temporary folder")
    parser.add_argument("--link", help="rate of the reliable machine's link, such as 100mbit; needs root")
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="whole-"))
    out.mkdir(parents=True, exist_ok=True)
    kept = Kept(out / "figures.json")
    seeds = range(1, 2 if arguments.quick else 1 + arguments.seeds)
    values = load(CONFIG).model_dump(exclude_unset=True, mode="json")
    parts: tuple[Part, ...] = PARTS
    place = ""
    if arguments.link:
        values, parts, place = {**values, **LARGER}, (TRANSIENT_PARAMETERS,), f"-{arguments.link}"
    if arguments.quick or arguments.link:
        values = shortened(values)
    print(
        f"{os.cpu_count()} cores {platform.machine()}, load {os.getloadavg()[0]:.1f}, "
        f"python {platform.python_version()}, ray {ray.__version__}"
        + (f"; the reliable machine's link: {arguments.link}" if arguments.link else "")
    )
    print(
        f"{'seed':>4} {'without':34}{'seconds':>9}{'usd':>8}{'waiting':>9}{'evictions':>10}  of on demand",
        flush=True,
    )
    rows: list[dict[str, dict[str, float]]] = []
    with narrow_link(Link(arguments.link)) if arguments.link else contextlib.nullcontext():
        for seed in seeds:
            row: dict[str, dict[str, float]] = {}
            for name, off in (("", {}), *((part.name, part.off) for part in parts)):
                folder = (
                    out / f"{seed}-{name.replace(' ', '-') or 'whole'}{place}{'-quick' * arguments.quick}"
                )
                row[name] = found = kept.figures(folder.name, partial(trained, values, off, seed, folder))
                print(
                    f"{seed:4} {name or '(nothing: all of it)':34}{found['seconds']:9.1f}{found['usd']:8.2f}"
                    f"{found['waiting']:9.1%}{found['evictions']:10.0f}  {found['usd'] / found['on_demand_usd']:.1%}",
                    flush=True,
                )
            rows.append(row)
    for part in parts:
        more = [row[part.name][part.figure] / row[""][part.figure] for row in rows]
        worse = sum(each > 1 for each in more)
        print(
            f"without {part.name}: {part.figure} x {statistics.median(more):.2f} (median), "
            f"more in {worse} of {len(rows)}"
        )
    draw(rows, parts, out / f"whole{place}.png")
    print(f"runs and picture: {out}")


def shortened(values: dict[str, Any]) -> dict[str, Any]:
    """A third of the clocks, of the events' clocks, and of the job."""
    plan = [{**event, "at_clock": event["at_clock"] // 3} for event in values["plan"]]
    market = {**values["market"], "job_hours": values["market"]["job_hours"] / 3}
    return {**values, "clocks": values["clocks"] // 3, "plan": plan, "market": market}


def draw(rows: list[dict[str, dict[str, float]]], parts: Sequence[Part], path: Path) -> None:
    """A panel for each figure: a bar for each part that was switched off, a dot for each seed, 1 is the whole run."""
    figure, axes = pyplot.subplots(1, len(FIGURES), figsize=(11, 3.2), sharey=True)
    for axis, name in zip(axes, FIGURES, strict=True):
        for place, part in enumerate(parts):
            ratios = [row[part.name][name] / row[""][name] for row in rows]
            colour = "#c8432b" if part.figure == name else "#9aa5b1"
            axis.barh(place, sum(ratios) / len(ratios), color=colour, height=0.5)
            axis.plot(ratios, [place] * len(ratios), "o", color="black", markersize=3)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_title(f"{name}, without / with", fontsize=9)
    axes[0].set_yticks(range(len(parts)), [part.name for part in parts], fontsize=9)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    try:
        main()
    except HostsError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted")
