"""PipeDream (thesis, chapter 5) by `proteus schedule` and `plan`; sizing (Zou et al.) by `proteus size`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures.figure import Claim, Figure, checked

NEVER = "the schedule has changed"
# What the figures draw, by stage, 1-based; later actions follow the same pattern.
DRAWN = {
    "5.2": ["F1 B1 F2 B2", "F1 B1 F2 B2", "F1 B1 F2 B2", "F1 B1 F2 B2"],
    "5.3": ["F1 F2 F3 F4 B1 B2 B3 B4 F5"] * 4,
    "5.4": ["F1 F2 F3 F4 B1 F5 B2 F6 B3", "F1 F2 F3 B1 F4 B2 F5 B3", "F1 F2 B1 F3 B2 F4", "F1 B1 F2 B2 F3"],
}


def drawn(figure: str) -> Callable[[Path], Sequence[Claim]]:
    def judge(folder: Path) -> Sequence[Claim]:
        text = (folder / "schedule.txt").read_text()
        stages = re.findall(r"^stage \d+ replica 1: (.*)$", text, re.M)
        same = len(stages) == 4 and all(
            found.startswith(begin) for found, begin in zip(stages, DRAWN[figure], strict=True)
        )
        cut = "; ".join(begin for begin in DRAWN[figure])
        ours = "; ".join(stage[: len(begin)] for stage, begin in zip(stages, DRAWN[figure], strict=False))
        return [checked("each stage's order of work", cut, ours, same, NEVER)]

    return judge


def schedule(figure: str, title: str, options: str) -> Figure:
    base = f"proteus schedule --replicas 1-1-1-1 --minibatches 8 {options}"
    commands = (f"{base} --out {{out}}/schedule.txt", f"{base} --out {{out}}/schedule.png")
    return Figure(f"pipedream-{figure}", title, commands, drawn(figure), "schedule.png")


PLANS = {  # table 5.1: model, topology -> plan and speedup over data parallelism
    ("vgg16", "1x4"): ("3-1", 2.14),
    ("vgg16", "4x4"): ("12-1", 4.78),
    ("alexnet", "1x4"): ("3-1", 3.40),
    ("alexnet", "4x4"): ("12-1", 4.62),
    ("gnmt", "1x4"): ("straight", 3.26),
    ("gnmt", "4x4"): ("straight", 2.67),
}
TOPOLOGIES = {"1x4": "configs/pipeline_cluster_a_1x4.yaml", "4x4": "configs/pipeline_cluster_a_4x4.yaml"}
NOMINAL = "other profiles and batches, links at their nominal rates; printed are times to accuracy with Gloo of 2018"


def plans(folder: Path) -> Sequence[Claim]:
    claims = []
    for (model, cluster), (printed, speedup) in PLANS.items():
        found = json.loads((folder / f"{model}-{cluster}" / "plan.json").read_text())
        ours = found["config"]
        gain = found["data_parallel_seconds"] / found["seconds_per_minibatch"]
        what = f"{model} on {cluster}, cluster A"
        claims.append(checked(f"plan of {what}", printed, ours, ours == printed, NOMINAL))
        claims.append(
            checked(
                f"speedup over data parallelism, {what}",
                f"{speedup:.2f}",
                f"{gain:.2f}",
                abs(gain / speedup - 1) <= 0.25,
                NOMINAL,
            )
        )
    return claims


def sizes(folder: Path) -> Sequence[Claim]:
    found = json.loads((folder / "sizes.json").read_text())["gpus"]
    gives = [float(number) for number in re.findall(r"give ([\d.]+)x", found["reason"])]
    return [
        checked(
            "GPUs for a speedup of 3 at an overhead of 10%",
            "4",
            str(found["answer"]),
            found["answer"] == 4,
            NEVER,
        ),
        checked("the speedup that they give", "3.14", f"{gives[0]:.2f}", gives[0] == 3.14, NEVER),
        checked("the speedup of 3 GPUs", "2.54", f"{gives[1]:.2f}", gives[1] == 2.54, NEVER),
    ]


FIGURES = (
    schedule("5.2", "model parallelism without pipelining (thesis, figure 5.2)", "--policy model-parallel"),
    schedule("5.3", "GPipe with four minibatches (figure 5.3)", "--policy gpipe --group 4"),
    schedule("5.4", "1F1B (figure 5.4)", "--policy 1f1b"),
    Figure(
        "pipedream-table-5.1",
        "plans and speedups (table 5.1), by the released cost model",
        tuple(
            f"proteus plan {{data}}/profiles/{model}.json --topology {TOPOLOGIES[cluster]} --cost-model released "
            f"--out {{out}}/{model}-{cluster}"
            for model, cluster in PLANS
        ),
        plans,
        "vgg16-4x4/plan.png",
        ("profiles/vgg16.json", "profiles/alexnet.json", "profiles/gnmt.json"),
    ),
    Figure(
        "sizing",
        "GPUs for a speedup (Zou et al., lemma 3.1)",
        ("proteus size configs/pipeline_sizing_alexnet.yaml --out {out}/sizes.json",),
        sizes,
    ),
)
