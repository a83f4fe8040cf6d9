"""PipeDream (thesis, 5.5.3 to 5.5.5; figures 5.13 and 5.15) by `proteus plan`, on recorded profiles.

What the thesis measured on GPUs the timing simulator gives here: it runs a plan's schedule action by action, with
start-up, waiting and transfers that share links, at the profile's seconds and the links' nominal rates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import pictures
from benchmarks.figures.figure import Claim, Figure, checked

ONE, FOUR = "configs/pipeline_cluster_a_1x4.yaml", "configs/pipeline_cluster_a_4x4.yaml"
DATA_PARALLEL = "data parallel"
SHARE = 0.10  # a printed share or ratio is met within so much
PROFILES = "other profiles and batches than the thesis', and links at their nominal rates"
SIMULATED = "measured: simulated action by action"


def plan(model: str, topology: str, options: str, target: str) -> str:
    """A command that plans a recorded profile."""
    profile = f"{{data}}/profiles/{model}.json"
    return f"proteus plan {profile} --topology {topology} --cost-model released {options} {target}"


def lines(path: Path) -> list[dict[str, Any]]:
    """The plans that `proteus plan --json` printed, the best first."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(*models: str) -> tuple[str, ...]:
    """The recordings that a figure needs."""
    return tuple(f"profiles/{model}.json" for model in models)


# Figure 5.13 (a): model parallelism, straight pipelines, pipelines with replicas.
GAINS = {"vgg16": 18.0, "alexnet": 7.0, "gnmt": None}


def simulated(found: Mapping[str, Any], name: str) -> float:
    """Simulated seconds of a row of `compared` by how its name begins."""
    return next(row["simulated_s"] for row in found["compared"] if row["name"].startswith(name))


def speedups(folder: Path) -> dict[str, dict[str, float]]:
    """Of each model the throughput over model parallelism's."""
    found = {}
    for model in GAINS:
        straight, free = (lines(folder / f"{model}-{kind}.txt")[0] for kind in ("straight", "free"))
        base_s = simulated(straight, "model parallelism")
        found[model] = {
            "model parallelism": 1.0,
            "straight pipeline": base_s / straight["simulated_seconds_per_minibatch"],
            f"the planner's ({free['config']})": base_s / free["simulated_seconds_per_minibatch"],
        }
    return found


def intra_batch(folder: Path) -> Sequence[Claim]:
    """Figure 5.13 (a): how much more pipelining alone gives, and with replicas."""
    claims = []
    for model, printed in GAINS.items():
        free = lines(folder / f"{model}-free.txt")[0]
        _, alone, replicated = speedups(folder)[model].values()
        claims.append(
            checked(
                f"pipelining alone over model parallelism, {model}",
                "2.5x or more",
                f"{alone:.2f}x",
                alone >= 2.5,
                PROFILES,
            )
        )
        if printed is not None:
            holds = abs(replicated / printed - 1) <= 0.25
            said = f"{replicated:.2f}x ({free['config']})"
            claims.append(checked(f"... with replicas, {model}", f"{printed:g}x", said, holds, PROFILES))
    same = lines(folder / "gnmt-free.txt")[0]["config"]
    return [*claims, checked("gnmt needs no replicas", "straight", same, same == "straight", PROFILES)]


# Section 5.5.4: GPipe on the planner's own stages, flushing at NOAM. GNMT-16 there, GNMT-8's profile here.
SIXTEEN = {"a": FOUR, "b": "configs/pipeline_cluster_b_2x8.yaml"}


def gpipe(folder: Path) -> Sequence[Claim]:
    """How much less GPipe gives on the same stages."""
    claims = []
    for cluster, printed in (("a", 0.55), ("b", 0.71)):
        found = lines(folder / f"{cluster}.txt")[0]
        slower = 1 - found["simulated_seconds_per_minibatch"] / simulated(found, "GPipe")
        claims.append(
            checked(
                f"GPipe's throughput below PipeDream's, cluster {cluster.upper()}",
                f"{printed:.0%}",
                f"{slower:.0%} ({found['config']})",
                abs(slower - printed) <= SHARE,
                f"{PROFILES}; GPipe's recomputing is not counted",
            )
        )
    return claims


# Figure 5.15: the plans of 16 workers, and of fewer.
PLANS = {
    "best": "--top 8 --machines 1,2,3",
    "data_parallel": "--max-stages 1 --machines 1,2,3",
    "straight": "--straight",
}


def rates(folder: Path) -> dict[str, list[tuple[int, str, float, float]]]:
    """Of each kind of plan: (workers, plan, predicted and simulated minibatches per second), no point twice."""
    found: dict[str, list[tuple[int, str, float, float]]] = {}
    for kind in PLANS:
        points = {}
        for each in lines(folder / f"{kind}.txt"):
            pace = 1 / each["seconds_per_minibatch"], 1 / each["simulated_seconds_per_minibatch"]
            workers = 4 * (each["machines"] or 4)
            points.setdefault(tuple(round(one, 2) for one in pace), (workers, each["config"], *pace))
        found[kind] = list(points.values())
    return found


def predicted(folder: Path) -> Sequence[Claim]:
    """Figure 5.15: predicted against simulated throughput, and whether the planner's choice is the best."""
    found = rates(folder)
    points = [point for kind in found.values() for point in kind]
    fit = float(np.corrcoef([p[2] for p in points], [p[3] for p in points])[0, 1])
    chosen = found["best"][0]
    best = max((p for p in points if p[0] == 16), key=lambda p: p[3])
    return [
        checked(
            "predicted and real throughput are strongly linearly correlated",
            "yes",
            f"r = {fit:.3f} over {len(points)} plans of 4 to 16 workers; {SIMULATED}",
            fit >= 0.9,
            "the cost model charges an exchange between servers for each minibatch of a server",
        ),
        checked(
            "the optimizer picks the best of those tried on 16 workers",
            "yes",
            f"{chosen[1]}: {chosen[3]:.2f} minibatches/s; best {best[1]}: {best[3]:.2f}",
            chosen[3] >= 0.99 * best[3],
            PROFILES,
        ),
    ]


def draw_rates(folder: Path) -> None:
    """Figure 5.15."""
    found = {kind.replace("_", " "): [(p[2], p[3]) for p in plans] for kind, plans in rates(folder).items()}
    title = "vgg16 on 4, 8, 12 and 16 workers of cluster A"
    words = ("predicted minibatches per second", "simulated minibatches per second")
    pictures.points(folder / "figure.png", found, *words, title)


def draw_speedups(folder: Path) -> None:
    """Figure 5.13 (a)."""
    title = "4 workers of cluster A, simulated"
    pictures.bars(folder / "figure.png", speedups(folder), "throughput over model parallelism", title)


FIGURES = (
    Figure(
        "pipedream-5.13a",
        "pipelines against model parallelism (figure 5.13 a), simulated",
        tuple(
            plan(model, ONE, options, f"> {{out}}/{model}-{kind}.txt")
            for model in GAINS
            for kind, options in (("straight", "--straight --json"), ("free", "--json"))
        ),
        intra_batch,
        "figure.png",
        recorded(*GAINS),
        draw_speedups,
    ),
    Figure(
        "pipedream-gpipe",
        "against GPipe on 16 workers (section 5.5.4), simulated",
        tuple(
            plan("gnmt", topology, "--json", f"> {{out}}/{cluster}.txt")
            for cluster, topology in SIXTEEN.items()
        ),
        gpipe,
        needs=recorded("gnmt"),
    ),
    Figure(
        "pipedream-5.15",
        "predicted and simulated throughput, VGG-16 (figure 5.15)",
        tuple(
            plan("vgg16", FOUR, f"{options} --json", f"> {{out}}/{kind}.txt")
            for kind, options in PLANS.items()
        ),
        predicted,
        "figure.png",
        recorded("vgg16"),
        draw_rates,
    ),
)
