"""PipeDream's memory, communication and depth (thesis, 5.5.5; figures 5.16 to 5.18) by `proteus plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import pictures
from benchmarks.figures.figure import Claim, Figure, checked
from benchmarks.figures.plans import DATA_PARALLEL, FOUR, ONE, PROFILES, SHARE, lines, plan, recorded

ON_PAR = 1.10
EARLY = (
    "an early stage keeps the activations of as many minibatches as there are stages from it on, and a network of "
    "convolutions has its largest at the front"
)

# Figure 5.16.
MODELS = ("vgg16", "alexnet", "resnet18", "gnmt")


def footprints(folder: Path) -> dict[str, tuple[float, list[float]]]:
    """Of each model: bytes of a worker of data parallelism, and of each stage of the straight pipeline."""
    return {
        model: (
            lines(folder / f"{model}-data-parallel.txt")[0]["stages"][0]["memory_bytes"],
            [stage["memory_bytes"] for stage in lines(folder / f"{model}-straight.txt")[0]["stages"]],
        )
        for model in MODELS
    }


def memory(folder: Path) -> Sequence[Claim]:
    """Figure 5.16: the largest stage beside a worker of data parallelism."""
    return [
        checked(
            f"the largest stage is on par with data parallelism, {model}",
            "on par",
            f"{max(stages) / whole:.2f} of its {whole / 1e9:.2f} GB, {len(stages)} stages",
            max(stages) <= ON_PAR * whole,
            EARLY,
        )
        for model, (whole, stages) in footprints(folder).items()
    ]


# Figure 5.17: model, topology.
PLACES = {"vgg16": ONE, "vgg16-16": FOUR, "alexnet": ONE, "resnet18": ONE, "gnmt": ONE}
CUT_AT = (
    "over links of 12 GB/s the planner cuts where computing is even, between convolutions with large outputs, and not "
    "where least is moved"
)


def moved(folder: Path) -> dict[str, tuple[str, float, float]]:
    """Of each model: its best plan that is not data parallel; MB per minibatch of data parallelism and of that plan.

    Data parallelism over m workers moves 2 (m - 1) w bytes for m minibatches (thesis 5.3.1), so do the replicas of a
    stage; a cut moves its activations and as many bytes of gradients for each minibatch.
    """
    found = {}
    for name, topology in PLACES.items():
        other = next(each for each in lines(folder / f"{name}.txt") if each["config"] != DATA_PARALLEL)
        stages = other["stages"]
        workers = 4 if topology == ONE else 16
        weights = sum(stage["parameter_bytes"] for stage in stages)
        through = sum(2 * stage["output_bytes"] for stage in stages)
        for stage in stages:
            replicas = len(stage["devices"])
            through += 2 * (replicas - 1) / replicas * stage["parameter_bytes"]
        found[name] = (other["config"], 2 * (workers - 1) / workers * weights / 1e6, through / 1e6)
    return found


def communication(folder: Path) -> Sequence[Claim]:
    """Figure 5.17 and what the text says of VGG-16 on 16 workers: who moves less."""
    found = moved(folder)
    claims = []
    for name, what, less in (
        ("vgg16", "vgg16 on 4 workers", True),
        ("gnmt", "gnmt on 4 workers", True),
        ("resnet18", "resnet18 (ResNet-50 there) on 4 workers", False),
    ):
        config, whole, ours = found[name]
        said = f"{ours:.0f} MB a minibatch ({config}), data parallel {whole:.0f} MB"
        printed = "less" if less else "more"
        claims.append(
            checked(
                f"the best other plan moves {printed} than data parallelism, {what}",
                printed,
                said,
                (ours < whole) == less,
                CUT_AT,
            )
        )
    for name, workers in (("vgg16", 4), ("vgg16-16", 16)):
        config, whole, ours = found[name]
        saved = round(1 - ours / whole, 2) + 0.0
        said = f"{saved:.0%} ({config})"
        claims.append(
            checked(f"saved, vgg16 on {workers} workers", "95%", said, abs(saved - 0.95) <= SHARE, CUT_AT)
        )
    return claims


# Figure 5.18.
def depths(folder: Path) -> list[dict[str, Any]]:
    """Pace and memory of each depth."""
    return list(lines(folder / "depths.txt")[0]["depths"])


def depth(folder: Path) -> Sequence[Claim]:
    """Figure 5.18: what a pipeline's depth gives and takes; the pace alone, not the updates that a model needs."""
    found = {each["in_flight"]: each for each in depths(folder)}
    none = found[1]["memory_bytes"]
    total = {count: sum(each["memory_bytes"]) for count, each in found.items()}
    grows = [total[count] for count in range(2, 8)]
    fit = float(np.corrcoef(range(2, 8), grows)[0, 1]) ** 2
    pace = {count: each["simulated_s"] for count, each in found.items()}
    best_s = min(pace.values())
    said = ", ".join(f"{count}: {1e3 * seconds:.1f}" for count, seconds in pace.items())
    return [
        checked(
            "without pipelining the stages' memory differs",
            "differs",
            f"{min(none) / 1e9:.2f} to {max(none) / 1e9:.2f} GB",
            max(none) > 1.2 * min(none),
            PROFILES,
        ),
        checked(
            "memory grows in proportion from depth 2 to 7",
            "grows",
            f"{grows[0] / 1e9:.1f} to {grows[-1] / 1e9:.1f} GB on all stages, R2 = {fit:.3f}",
            fit > 0.95 and sorted(grows) == grows,
            PROFILES,
        ),
        checked(
            "depths 4 (NOAM) and 7 are the best",
            "best",
            f"ms a minibatch by depth: {said}",
            max(pace[4], pace[7]) <= 1.02 * best_s and min(pace[1], pace[2], pace[3]) > 1.02 * best_s,
            PROFILES,
        ),
    ]


def draw_memory(folder: Path) -> None:
    """Figure 5.16."""
    groups = {
        model: {"data parallel": whole / 1e9}
        | {f"stage {number}": stage / 1e9 for number, stage in enumerate(stages, 1)}
        for model, (whole, stages) in footprints(folder).items()
    }
    pictures.bars(
        folder / "figure.png", groups, "GB on a worker", "straight pipelines on 4 workers, NOAM in flight"
    )


def draw_communication(folder: Path) -> None:
    """Figure 5.17."""
    groups = {
        name.replace("-16", ", 16 workers"): {"data parallel": whole, config: ours}
        for name, (config, whole, ours) in moved(folder).items()
    }
    pictures.bars(folder / "figure.png", groups, "MB moved for a minibatch", "4 workers, or 16", decimals=0)


def draw_depth(folder: Path) -> None:
    """Figure 5.18."""
    found = depths(folder)
    pace = {"": {each["in_flight"]: 1 / each["simulated_s"] for each in found}}
    memory = {
        f"stage {stage + 1}": {each["in_flight"]: each["memory_bytes"][stage] / 1e9 for each in found}
        for stage in range(len(found[0]["memory_bytes"]))
    }
    panels = [("minibatches per second, simulated", pace), ("GB on a worker", memory)]
    pictures.curves(folder / "figure.png", panels, "minibatches in flight", "gnmt, straight on 4 workers")


FIGURES = (
    Figure(
        "pipedream-5.16",
        "memory of each stage (figure 5.16), by the planner's model",
        tuple(
            plan(model, ONE, options, f"> {{out}}/{model}-{kind}.txt")
            for model in MODELS
            for kind, options in (
                ("data-parallel", "--max-stages 1 --json"),
                ("straight", "--straight --json"),
            )
        ),
        memory,
        "figure.png",
        recorded(*MODELS),
        draw_memory,
    ),
    Figure(
        "pipedream-5.17",
        "bytes moved (figure 5.17), by the planner's stages",
        tuple(
            plan(name.partition("-")[0], topology, "--top 20 --json", f"> {{out}}/{name}.txt")
            for name, topology in PLACES.items()
        ),
        communication,
        "figure.png",
        recorded(*MODELS),
        draw_communication,
    ),
    Figure(
        "pipedream-5.18",
        "pipeline depth, GNMT-8 on 4 workers (figure 5.18), simulated",
        (plan("gnmt", ONE, "--straight --in-flight 1,2,3,4,5,6,7 --json", "> {out}/depths.txt"),),
        depth,
        "figure.png",
        recorded("gnmt"),
        draw_depth,
    ),
)
