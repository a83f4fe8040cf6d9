"""Trainings in one process: FlexRR's iterations to converge (thesis, figure 3.7), PipeDream's stashing (figure 5.14).

For the first the simulator notes what each scheme's workers read and when they push; a softmax regression on digits is
then trained with exactly that staleness and that help. The thesis trained MF and LDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import pictures
from benchmarks.figures.figure import Claim, Figure, checked
from benchmarks.figures.flexrr import CALM
from benchmarks.figures.lbbsp import last_line

DELAYS = (0, 50, 100, 200, 400)
SCHEMES = ("bsp", "ssp:1", "bsp-rr", "flexrr")
MODEL = "another model than the thesis' MF: softmax regression on digits at a small learning rate"


def found(folder: Path, key: str) -> dict[str, dict[int, float]]:
    """`iterations` or `seconds` to converge, of each scheme by the delay in percent."""
    rows = last_line(folder / "trained.txt")
    return {
        scheme: {
            int(row["pattern"].partition(":")[2]): float(row[key]) for row in rows if row["scheme"] == scheme
        }
        for scheme in SCHEMES
    }


def convergence(folder: Path) -> Sequence[Claim]:
    """Figure 3.7 (a)."""
    needed, seconds = found(folder, "iterations"), found(folder, "seconds")
    base = needed["bsp"][0]
    bsp = sorted({*needed["bsp"].values(), *needed["bsp-rr"].values()})
    claims = [
        checked(
            "BSP and BSP RR need the same iterations at any delay",
            "112",
            ", ".join(f"{count:g}" for count in bsp),
            len(bsp) == 1,
            MODEL,
        )
    ]
    for scheme, printed, most in (("ssp:1", "113", 1.02), ("flexrr", "114 to 115", 1.04)):
        counts = needed[scheme].values()
        said = f"{min(counts):g} to {max(counts):g}, BSP {base:g}"
        claims.append(
            checked(f"{scheme} needs hardly more", printed, said, base <= max(counts) <= most * base, MODEL)
        )
    order = sorted(SCHEMES, key=lambda name: seconds[name][400])
    said = ", ".join(f"{scheme} {seconds[scheme][400]:.0f} s" for scheme in order)
    claims.append(
        checked(
            "time to converge at 400%: FlexRR, BSP RR, SSP, BSP",
            "in this order",
            said,
            order == ["flexrr", "bsp-rr", "ssp:1", "bsp"],
            MODEL,
        )
    )
    calm = 1 - seconds["flexrr"][0] / seconds["bsp"][0]
    return [
        *claims,
        checked("FlexRR before BSP without delays", "10%", f"{calm:.0%}", abs(calm - 0.10) <= 0.05, CALM),
    ]


def draw(folder: Path) -> None:
    """Figure 3.7 (a): time to converge."""
    curves = {scheme: dict(by) for scheme, by in found(folder, "seconds").items()}
    title = "softmax regression on digits, 16 workers"
    pictures.curves(folder / "figure.png", [("seconds to converge", curves)], "delay, %", title)


SLOW = "with small steps the weights hardly change between a minibatch's forward and its backward"
WITHIN = 0.02  # of plain SGD's loss: the target


def stashing(folder: Path) -> Sequence[Claim]:
    """Figure 5.14: whether trainings in four stages reach the loss of plain SGD."""
    losses = {row["training"]: row["losses"] for row in last_line(folder / "losses.txt")}
    mean = {name: sum(found) / len(found) for name, found in losses.items()}
    target = (1 + WITHIN) * mean["plain SGD"]
    said = {name: f"{loss:.4f}, target {target:.4f}" for name, loss in mean.items()}
    kept, without = mean["stash"] <= target, mean["none"] > target
    return [
        checked("with weight stashing the target loss is reached", "reached", said["stash"], kept, SLOW),
        checked("without it the target is missed", "missed", said["none"], without, SLOW),
    ]


PATTERNS = " ".join(f"slow-worker:{delay}" for delay in DELAYS)
CONVERGENCE = Figure(
    "flexrr-3.7",
    "iterations to converge (thesis, figure 3.7 a)",
    (
        f"python benchmarks/bench_straggler_training.py --schemes {','.join(SCHEMES)} --patterns '{PATTERNS}' "
        "--rates 0.06 --seed {seed} --json > {out}/trained.txt",
    ),
    convergence,
    "figure.png",
    draw=draw,
)
STASHING = Figure(
    "pipedream-5.14",
    "weight stashing (figure 5.14), a small language model",
    (
        "python benchmarks/bench_pipeline_loss.py --models language --trainings 'plain SGD,stash,none' "
        "--seed {seed} --json > {out}/losses.txt",
    ),
    stashing,
)
