"""AgileML on hosts with shaped links (thesis, figures 4.10 to 4.15), by three benchmarks that need root.

The thesis has 64 machines at 1 Gbit/s, this is eight hosts at 200 Mbit/s that share one computer's cores; work of a
clock sleeps, so that they do not take computing from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures.figure import Claim, Figure, Verdict, checked
from benchmarks.figures.lbbsp import last_line
from benchmarks.hosts import why_not

CALM = 1.2  # what the same layout may take at the end over what it took at the beginning
NEAR = 0.05
NEAR_LINEAR = 0.80
EIGHT = "eight hosts instead of 64, and how much of a clock MF computes there is not printed; here about half"
FEWER = "with 8 hosts a machine that only backs up is an eighth of all, not a 64th"
BUSY = "other programs took this computer's cores: the layout of the beginning took {0:.2f} of its time at the end"
UNHIDDEN = "the exchange of 4 MB is not all hidden, or other programs took this computer's cores"
AGAIN = "traditional, again"


def said(ratio: float) -> str:
    """A clock over that of the traditional layout."""
    return f"{ratio:.2f} of traditional"


def stages(folder: Path) -> Sequence[Claim]:
    """Figures 4.10 to 4.13; nothing can be said if the computer was busy with other things."""
    found: dict[str, float] = last_line(folder / "stages.txt")
    if not 1 / CALM <= found[AGAIN] <= CALM:
        return [Claim("stages 1, 2 and 3", "", "", Verdict.CANNOT, BUSY.format(found[AGAIN]))]
    one = {ratio: found[f"stage 1, {layout}"] for ratio, layout in (("1:1", "4 + 4"), ("7:1", "1 + 7"))}
    two, three = found["stage 2, 1 + 7"], found["stage 3, 1 + 7"]
    even = {stage: found[f"stage {stage}, 4 + 4"] for stage in (2, 3)}
    return [
        checked(
            "stage 1 costs nothing at 1:1 (4.10)", "none", said(one["1:1"]), one["1:1"] <= 1 + NEAR, EIGHT
        ),
        checked(
            "... and much where machines are few (4.10)",
            "over 1.85 at 15:1",
            f"{said(one['7:1'])} at 7:1",
            one["7:1"] > 1.85,
            EIGHT,
        ),
        checked("stage 2 costs nothing at 7:1 (4.11)", "none", said(two), two <= 1 + NEAR, EIGHT),
        checked(
            "stage 3 equals the traditional layout (4.12)",
            "1.00 at 63:1",
            f"{said(three)} at 7:1",
            three <= 1 + NEAR,
            FEWER,
        ),
        checked(
            "stage 2 beats stage 3 at 1:1 (4.13)",
            "at 8 + 8",
            f"{said(even[2])} and {even[3]:.2f}, at 4 + 4",
            even[2] < even[3],
            EIGHT,
        ),
    ]


def scaling(folder: Path) -> Sequence[Claim]:
    """Figure 4.14."""
    found: dict[str, dict[str, float]] = last_line(folder / "scaling.txt")
    claims = []
    for label, seconds in found.items():
        counts = sorted(map(int, seconds))
        most = counts[-1]
        share = seconds["1"] / seconds[str(most)] / most
        ours = f"{share:.2f} of linear from 1 to {most}"
        what = f"near-linear scaling ({label})"
        claims.append(checked(what, "near-linear, 4 to 64", ours, share >= NEAR_LINEAR, UNHIDDEN))
    return claims


def changes(folder: Path) -> Sequence[Claim]:
    """Figure 4.15: what a change costs, of a clock."""
    found: dict[str, float] = last_line(folder / "changes.txt")
    join, leave = (found[f"compute rules, {kind}"] for kind in ("join", "notice"))
    because = "the work that was under way is done again, or other programs took the cores"
    return [
        checked("machines join without disruption", "none", f"{join:.3f} of a clock", join <= NEAR, because),
        checked("a blip where they leave, of a clock", "0.13", f"{leave:.3f}", leave <= 0.13, because),
    ]


def on_hosts(name: str, title: str, command: str, judge: Callable[[Path], Sequence[Claim]]) -> Figure:
    """A figure of a benchmark that makes hosts of its own."""
    return Figure(f"agileml-{name}", title, (f"python benchmarks/{command}",), judge, lacks=why_not)


FIGURES = (
    on_hosts(
        "4.10",
        "stages 1, 2, 3 on eight hosts (thesis, figures 4.10 to 4.13)",
        "bench_stages.py --part thesis --rounds 1 --clocks 6 --model-mb 8 --work-s 4.8 --json > {out}/stages.txt",
        stages,
    ),
    on_hosts(
        "4.14",
        "scaling from one to eight hosts (figure 4.14)",
        "bench_scaling.py --sleep --counts 1,8 --clocks 3 --json > {out}/scaling.txt",
        scaling,
    ),
    on_hosts(
        "4.15",
        "three machines join five, three leave (figure 4.15)",
        "bench_changes.py --quick --rounds 3 --json > {out}/changes.txt",
        changes,
    ),
)
