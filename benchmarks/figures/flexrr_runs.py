"""FlexRR in running jobs (thesis, figures 3.6 and 3.8 to 3.10, a setting of each) by a benchmark of the engine.

The thesis has 64 machines; this is eight, processes that pause until their part of a profile of slowness is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import pictures
from benchmarks.figures.figure import Claim, Figure, checked
from benchmarks.figures.flexrr import CALM, NEAR, POINTS
from benchmarks.figures.lbbsp import last_line

SLOW, POWER, DISRUPTED, UNEVEN = "slow-worker:200", "power-law:11", "disrupted-machine:100", "uneven:75"
SETTINGS = {SLOW: "3.6", POWER: "3.8", DISRUPTED: "3.9", UNEVEN: "3.10"}
SCHEMES = ("bsp", "ssp:1", "bsp-rr", "flexrr")
ALIKE = 0.10
BUSY = "other programs took this computer's cores, or the engine costs what the simulator leaves out"


class Measured:
    """The benchmark's rows by pattern and scheme."""

    def __init__(self, folder: Path) -> None:
        self._rows = {(row["pattern"], row["scheme"]): row for row in last_line(folder / "runs.txt")}

    def get(self, pattern: str, scheme: str, key: str = "over_ideal") -> float:
        """One number of a row."""
        return float(self._rows[pattern, scheme][key])

    def below_bsp(self, pattern: str, scheme: str) -> float:
        """By what share it takes less time than BSP."""
        return 1 - self.get(pattern, scheme, "of_bsp")


def help_in_jobs(folder: Path) -> Sequence[Claim]:
    """A statement of each figure, and how far the simulator is from the job on the same profiles."""
    runs = Measured(folder)
    slow = runs.get(SLOW, "flexrr")
    less = {scheme: runs.below_bsp(DISRUPTED, scheme) for scheme in SCHEMES[1:]}
    behind = runs.get(UNEVEN, "ssp:1") / runs.get(UNEVEN, "flexrr") - 1
    ratios = {
        (pattern, scheme): runs.get(pattern, scheme) / runs.get(pattern, scheme, "simulated")
        for pattern in SETTINGS
        for scheme in SCHEMES
    }
    (pattern, scheme), worst = max(ratios.items(), key=lambda found: abs(found[1] - 1))
    power = runs.below_bsp(POWER, "flexrr")
    return [
        checked(
            "FlexRR stays near Ideal at 200% (3.6)", "near Ideal", f"{slow:.3f} of Ideal", slow <= NEAR, BUSY
        ),
        checked(
            "flexrr below BSP, alpha 11 (3.8, MF)",
            "48%",
            f"{power:.0%}; Ideal itself {1 - 1 / runs.get(POWER, 'bsp'):.0%}",
            abs(power - 0.48) <= POINTS,
            CALM,
        ),
        checked(
            "FlexRR is the best where machines are disrupted at 100% (3.9)",
            "best",
            ", ".join(f"{scheme} {share:.0%} below BSP" for scheme, share in less.items()),
            max(less, key=lambda scheme: less[scheme]) == "flexrr",
            BUSY,
        ),
        checked(
            "SSP is slower than FlexRR with uneven work (3.10)",
            "54%",
            f"{behind:.0%}",
            abs(behind - 0.54) <= POINTS,
            BUSY,
        ),
        checked(
            "our simulator says what these jobs take",
            f"within {ALIKE:.0%}",
            f"at most {abs(worst - 1):.0%} apart ({scheme}, {pattern})",
            abs(worst - 1) <= ALIKE,
            BUSY,
        ),
    ]


def draw(folder: Path) -> None:
    """Time over Ideal of each scheme in each setting."""
    runs = Measured(folder)
    groups = {
        f"{pattern}\n({figure})": {scheme: runs.get(pattern, scheme) for scheme in SCHEMES}
        for pattern, figure in SETTINGS.items()
    }
    pictures.bars(
        folder / "figure.png", groups, "time over Ideal", "eight machines, running jobs", decimals=2
    )


FIGURES = (
    Figure(
        "flexrr-jobs",
        "FlexRR in running jobs, a setting of figures 3.6, 3.8, 3.9 and 3.10 each",
        (
            f"python benchmarks/bench_helping.py --rounds 1 --clock 1 --clocks 12 --patterns {' '.join(SETTINGS)} "
            "--seed {seed} --json > {out}/runs.txt",
        ),
        help_in_jobs,
        "figure.png",
        draw=draw,
    ),
)
