"""Figures of pipelines: their verdicts follow from what `proteus plan` printed, and that is what it prints."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agileml.cli import main
from benchmarks.figures import plan_costs, plans
from benchmarks.figures.catalogue import FIGURES
from benchmarks.figures.figure import Claim, Verdict
from benchmarks.figures.redraw import PROGRAMS, ROOT
from pipeline.profile.layers import chain, write

YES, NO = Verdict.REPRODUCED, Verdict.DIFFERS


def verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    return [claim.verdict for claim in claims]


def printed(path: Path, *found: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in found))


def row(name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "config": "", "predicted_s": None, "simulated_s": seconds}


def stage(replicas: int, parameters: float, output: float, memory: float = 0.0) -> dict[str, Any]:
    return {
        "devices": list(range(replicas)),
        "parameter_bytes": parameters,
        "output_bytes": output,
        "memory_bytes": memory,
    }


def test_gains_over_model_parallelism_are_simulated_ones(tmp_path: Path) -> None:
    for model, free_s in (("vgg16", 0.055), ("alexnet", 0.5), ("gnmt", 0.25)):
        compared = [row("1F1B, 4 in flight", 0.25), row("model parallelism", 1.0)]
        base = {"config": "straight", "compared": compared}
        printed(tmp_path / f"{model}-straight.txt", base | {"simulated_seconds_per_minibatch": 0.25})
        printed(tmp_path / f"{model}-free.txt", base | {"simulated_seconds_per_minibatch": free_s})
    assert verdicts(plans.intra_batch(tmp_path)) == [YES, YES, YES, NO, YES, YES]
    plans.draw_speedups(tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_gpipe_is_compared_with_the_plan_on_the_same_stages(tmp_path: Path) -> None:
    found = {
        "config": "straight",
        "simulated_seconds_per_minibatch": 0.45,
        "compared": [row("GPipe, 4", 1.0)],
    }
    for cluster in "ab":
        printed(tmp_path / f"{cluster}.txt", found)
    assert verdicts(plans.gpipe(tmp_path)) == [YES, NO]


def test_predictions_that_order_plans_wrongly_differ(tmp_path: Path) -> None:
    def plan(config: str, predicted: float, simulated: float, machines: int | None = None) -> dict[str, Any]:
        seconds = {"seconds_per_minibatch": 1 / predicted, "simulated_seconds_per_minibatch": 1 / simulated}
        return {"config": config, "machines": machines, **seconds}

    printed(tmp_path / "best.txt", plan("12-1", 9, 10), plan("12-2", 9, 10), plan("3-1", 3, 3, 1))
    printed(tmp_path / "data_parallel.txt", plan("data parallel", 5, 5))
    printed(tmp_path / "straight.txt", plan("straight", 2, 2.1))
    claims = plans.predicted(tmp_path)
    assert verdicts(claims) == [YES, YES]
    assert "over 4 plans " in claims[0].ours  # the same point twice counts once
    plans.draw_rates(tmp_path)
    printed(tmp_path / "straight.txt", plan("straight", 2, 30))
    assert verdicts(plans.predicted(tmp_path)) == [NO, NO]


def test_memory_is_that_of_the_largest_stage(tmp_path: Path) -> None:
    for model in plan_costs.MODELS:
        printed(tmp_path / f"{model}-data-parallel.txt", {"stages": [stage(4, 0, 0, 1e9)]})
        most = 2e9 if model == "vgg16" else 1e9
        printed(tmp_path / f"{model}-straight.txt", {"stages": [stage(1, 0, 0, most), stage(1, 0, 0, 5e8)]})
    assert verdicts(plan_costs.memory(tmp_path)) == [NO, YES, YES, YES]
    plan_costs.draw_memory(tmp_path)


def test_bytes_are_those_of_cuts_and_of_replicas(tmp_path: Path) -> None:
    whole = {"config": "data parallel", "stages": [stage(4, 400e6, 0)]}
    for name in plan_costs.PLACES:
        output = 500e6 if name == "resnet18" else 1e6
        split = {"config": "2-1-1", "stages": [stage(2, 6e6, output), stage(1, 0, 1e6), stage(1, 394e6, 0)]}
        printed(tmp_path / f"{name}.txt", whole, split)
    # 2 (4 - 1) / 4 x 400; two cuts twice, and 2 (2 - 1) / 2 x 6 of the two replicas.
    assert plan_costs.moved(tmp_path)["vgg16"] == ("2-1-1", pytest.approx(600), pytest.approx(10))
    assert plan_costs.moved(tmp_path)["vgg16-16"] == ("2-1-1", pytest.approx(750), pytest.approx(10))
    assert verdicts(plan_costs.communication(tmp_path)) == [YES] * 5
    plan_costs.draw_communication(tmp_path)


def test_the_best_depths_are_told_from_the_pace(tmp_path: Path) -> None:
    def depths(pace: Sequence[float]) -> None:
        found = [
            {"in_flight": n, "simulated_s": s, "memory_bytes": [1e9 * (1 + n), 2e8]}
            for n, s in enumerate(pace, 1)
        ]
        printed(tmp_path / "depths.txt", {"depths": found})

    depths([4, 3, 2, 1, 1, 1, 1])
    assert verdicts(plan_costs.depth(tmp_path)) == [YES, YES, YES]
    plan_costs.draw_depth(tmp_path)
    depths([4, 3, 1, 1, 1, 1, 1])
    assert verdicts(plan_costs.depth(tmp_path)) == [YES, YES, NO]


def words_of(folder: Path) -> list[list[str]]:
    """Of all figures' commands."""
    return [
        shlex.split(command.format(out=folder, seed=0, data=folder))
        for figure in FIGURES
        for command in figure.commands
    ]


def test_commands_are_of_programs_and_files_that_there_are(tmp_path: Path) -> None:
    for words in words_of(tmp_path):
        assert words[0] in PROGRAMS
        for name in words[1:]:
            assert not name.startswith(("benchmarks/", "configs/")) or (ROOT / name).exists(), name


@pytest.mark.slow
def test_plan_takes_every_option_that_a_figure_gives_it(tmp_path: Path) -> None:
    model = tmp_path / "any.json"
    write(chain([3.0, 1.0, 2.0, 1.0], [4.0, 3.0, 2.0, 1.0], [1.0, 5.0, 9.0, 30.0]), model)
    tried = {
        tuple(words[3 : words.index(">" if ">" in words else "--out")])
        for words in words_of(tmp_path)
        if words[:2] == ["proteus", "plan"]
    }
    assert len(tried) > 5
    for options in tried:
        with pytest.raises(SystemExit) as ended:
            main(["plan", str(model), *options])
        assert not ended.value.code, options
