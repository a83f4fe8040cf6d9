"""BidBrain (thesis, figures 4.7 to 4.9 and the results of 4.5.2), by `proteus simulate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures.figure import Claim, Figure, checked

OTHER = "other months and machine types than the thesis', whose recording is not there"


def simulated(folder: Path) -> Sequence[Claim]:
    rows = json.loads((folder / "simulation" / "table.json").read_text())
    claims = []
    for hours in (2.0, 20.0):
        found: dict[str, dict[str, Any]] = {row["scheme"]: row for row in rows if row["job_hours"] == hours}
        ours, standard, agileml = (
            found[name] for name in ("proteus", "standard_checkpoint", "standard_agileml")
        )
        saved = 1 - ours["cost"]
        less = 1 - ours["cost"] / standard["cost"]
        faster = 1 - ours["runtime"] / standard["runtime"]
        worth = 1 - agileml["cost"] / standard["cost"]
        free = ours["free_fraction"]
        job = f", jobs of {hours:g} h"
        calm = f"{OTHER}; with few evictions there is little to save on, and the reliable machines are billed"
        claims += [
            checked(f"Proteus below on-demand{job}", "83-85%", f"{saved:.1%}", 0.80 <= saved <= 0.90, OTHER),
            checked(
                f"Proteus below standard + checkpoint{job}",
                "42-47%",
                f"{less:.1%}",
                0.37 <= less <= 0.52,
                calm,
            ),
            checked(f"its runtime below that{job}", "32-43%", f"{faster:.1%}", 0.27 <= faster <= 0.48, OTHER),
            checked(
                f"AgileML instead of checkpoints saves{job}",
                "18-20%",
                f"{worth:.1%}",
                0.13 <= worth <= 0.25,
                calm,
            ),
            checked(f"machine hours that were free{job}", "32%", f"{free:.1%}", 0.27 <= free <= 0.37, calm),
        ]
    return claims


def market(name: str, title: str, config: str, recording: str) -> Figure:
    words = f"proteus simulate configs/{config} --history {{data}}/{recording}"
    command = f"{words} --seed {{seed}} --out {{out}}/simulation"
    picture = "simulation/cost_and_runtime.png"
    return Figure(name, title, (command,), simulated, picture, (recording,))


FIGURES = (
    market(
        "bidbrain-2016",
        "cost and runtime, spring 2016 (thesis, figures 4.7 to 4.9)",
        "simulate_2016.yaml",
        "spot/2016-02_2016-04_us-east-1.csv.gz",
    ),
    market(
        "bidbrain-2015",
        "the same, summer 2015, a turbulent market",
        "simulate_2015.yaml",
        "spot/2015-03_2015-08_us-east-1.csv.gz",
    ),
)
