"""Figures of stragglers, trainings, batched pulls and hosts: verdicts follow from what the benchmarks printed."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import agileml, flexrr_runs, ibatch, lbbsp, training
from benchmarks.figures.figure import Claim, Verdict
from benchmarks.figures.redraw import ROOT, redraw

YES, NO = Verdict.REPRODUCED, Verdict.DIFFERS


def verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    return [claim.verdict for claim in claims]


def said(path: Path, found: Any) -> None:
    path.write_text("a table\n" + json.dumps(found) + "\n")


def trained(scheme: str, pattern: str, iterations: float, seconds: float) -> dict[str, Any]:
    return {"scheme": scheme, "pattern": pattern, "iterations": iterations, "seconds": seconds}


def test_iterations_to_converge_are_compared_with_bsps(tmp_path: Path) -> None:
    def rows(flexrr: float) -> list[dict[str, Any]]:
        takes = {"bsp": (112, 5.0), "ssp:1": (113, 3.0), "bsp-rr": (112, 2.0), "flexrr": (flexrr, 1.0)}
        return [
            trained(scheme, f"slow-worker:{delay}", count, 100 + delay * grows - (scheme == "flexrr") * 10)
            for delay in training.DELAYS
            for scheme, (count, grows) in takes.items()
        ]

    said(tmp_path / "trained.txt", rows(115))
    assert verdicts(training.convergence(tmp_path)) == [YES] * 5
    training.draw(tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    said(tmp_path / "trained.txt", rows(150))
    assert verdicts(training.convergence(tmp_path))[2] is NO


def test_a_training_reaches_its_target_or_misses_it(tmp_path: Path) -> None:
    def losses(without: float) -> list[dict[str, Any]]:
        found = {"plain SGD": [1.0, 1.0], "stash": [1.01, 1.0], "none": [without, without]}
        return [{"training": name, "losses": each} for name, each in found.items()]

    said(tmp_path / "losses.txt", losses(1.5))
    assert verdicts(training.stashing(tmp_path)) == [YES, YES]
    said(tmp_path / "losses.txt", losses(1.01))
    assert verdicts(training.stashing(tmp_path)) == [YES, NO]


def simulated(folder: Path, times: Mapping[tuple[str, str], tuple[float, float]]) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        {"pattern": p, "scheme": s, "variant": "", "per_iteration_s": took, "waiting_share": waited}
        for (p, s), (took, waited) in times.items()
    ]
    (folder / "summary.json").write_text(json.dumps(rows))


def test_lb_bsp_is_judged_at_each_level(tmp_path: Path) -> None:
    def run(ours: float) -> Sequence[Claim]:
        times = {}
        for slower, pattern in zip((1.0, 1.9, 2.9), lbbsp.LEVELS.values(), strict=True):
            times |= {(pattern, s): (slower, slower / 10) for s in ("bsp", "ssp:10", "lb-bsp:ema")}
            times |= {(pattern, "asp"): (1.0, 0.0), (pattern, lbbsp.OURS): (ours, ours - 1)}
        simulated(tmp_path / "simulated", times)
        return lbbsp.levels(tmp_path)

    said(
        tmp_path / "trained.txt",
        [trained("bsp", "", 100, 300), trained("asp", "", 120, 200), trained(lbbsp.OURS, "", 100, 100)],
    )
    assert verdicts(run(1.02)) == [YES] * 11
    lbbsp.draw_levels(tmp_path)
    worse = verdicts(run(1.2))
    assert worse[:3] == [NO] * 3
    assert worse[5:8] == [NO] * 3


def test_predictors_are_judged_where_resources_explain_the_speed(tmp_path: Path) -> None:
    errors = {"memoryless": 11.85, "EMA 0.2": 7.85, "ARIMA(2,2,1)": 9.67, "NARX": 4.78}
    real = errors | {"NARX": 8.0}
    said(
        tmp_path / "traces.txt",
        {"bursts, explained": errors, "bursts, not explained": real, "recorded": real},
    )
    took = {
        "bsp": 1.0,
        "lb-bsp:memoryless": 0.584,
        "lb-bsp:ema": 0.489,
        "lb-bsp:arima": 0.523,
        lbbsp.OURS: 0.423,
    }
    simulated(tmp_path / "simulated", {(lbbsp.CHANGING, name): (time, 0) for name, time in took.items()})
    assert verdicts(lbbsp.predictors(tmp_path)) == [YES] * 5 + [NO]
    lbbsp.draw_predictors(tmp_path)


def test_ibatch_is_judged_against_what_is_printed(tmp_path: Path) -> None:
    found = {
        name: {
            "parameters_m": ibatch.PARAMETERS_M[name],
            "speedups": {
                "6": dict.fromkeys(ibatch.MOST, 5.8),
                "30": ibatch.PRINTED[name],
                "72": ibatch.MOST if name == "VGG19-22K" else dict.fromkeys(ibatch.MOST, 50),
            },
        }
        for name in ibatch.PRINTED
    }
    said(tmp_path / "speedups.txt", found)
    claims = ibatch.speedups(tmp_path)
    differ = [claim.what for claim in claims if claim.verdict is NO]
    assert differ == ["layer by layer is better than the default, 30 nodes"]  # nor is it in print
    ibatch.draw(tmp_path)


def test_networks_have_the_parameters_that_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "network_layers", raising=False)
    from network_layers import NETWORKS

    counted = {name: sum(layer.parameters for layer in make()) for name, make in NETWORKS.items()}
    assert counted == {
        "GoogLeNet": 6_998_552,
        "Inception-V3": 27_161_264,
        "VGG19": 143_667_240,
        "VGG19-22K": 229_052_817,
    }


@pytest.mark.slow
def test_ibatch_runs_and_its_rate_meets_the_figure_that_it_is_fitted_to(tmp_path: Path) -> None:
    redraw(ibatch.FIGURES[0], tmp_path, tmp_path, 0)
    found = ibatch.Speedups(tmp_path / "ibatch-5")
    assert found.get("VGG19-22K", "default") == pytest.approx(22.0)
    assert all(found.get(name, "iBatch") >= found.get(name, "layer by layer") for name in ibatch.PRINTED)


@pytest.mark.slow
def test_a_training_runs_and_is_moved_by_the_seed(tmp_path: Path) -> None:
    figure = training.CONVERGENCE
    commands = tuple(
        f"{command.partition(' > ')[0]} --quick > {{out}}/trained.txt" for command in figure.commands
    )
    short = replace(figure, commands=tuple(c.replace("--rates 0.06", "--rates 0.35") for c in commands))
    times = []
    for seed in (0, 1):
        redraw(short, tmp_path / str(seed), tmp_path, seed)
        times.append(training.found(tmp_path / str(seed) / figure.name, "seconds"))
    assert times[0]["bsp"][400] != times[1]["bsp"][400]


def test_hosts_are_judged_only_where_the_computer_was_calm(tmp_path: Path) -> None:
    ratios = {f"stage 1, {layout}": ratio for layout, ratio in (("4 + 4", 1.0), ("1 + 7", 3.0))}
    ratios |= {"stage 2, 1 + 7": 1.02, "stage 3, 1 + 7": 1.0, "stage 2, 4 + 4": 1.1, "stage 3, 4 + 4": 1.4}
    said(tmp_path / "stages.txt", ratios | {agileml.AGAIN: 1.05})
    assert verdicts(agileml.stages(tmp_path)) == [YES] * 5
    said(tmp_path / "stages.txt", ratios | {agileml.AGAIN: 3.0})
    (claim,) = agileml.stages(tmp_path)
    assert claim.verdict is Verdict.CANNOT
    assert "took 3.00 of its time" in claim.because

    said(tmp_path / "scaling.txt", {"all": {"1": 8.0, "8": 1.2}, "stage 3": {"1": 8.0, "8": 2.0}})
    assert verdicts(agileml.scaling(tmp_path)) == [YES, NO]
    said(tmp_path / "changes.txt", {"compute rules, join": -0.01, "compute rules, notice": 0.5})
    assert verdicts(agileml.changes(tmp_path)) == [YES, NO]


def test_running_jobs_are_beside_their_simulation_and_what_is_printed(tmp_path: Path) -> None:
    def rows(flexrr: float, simulated: float) -> list[dict[str, Any]]:
        over = {"bsp": 2.1, "ssp:1": 1.6, "bsp-rr": 1.2, "flexrr": flexrr}
        return [
            {
                "pattern": pattern,
                "scheme": scheme,
                "over_ideal": found,
                "of_bsp": found / 2.1,
                "simulated": found * (simulated if scheme == "flexrr" else 1.0),
                "moved_share": 0.1,
            }
            for pattern in flexrr_runs.SETTINGS
            for scheme, found in over.items()
        ]

    said(tmp_path / "runs.txt", rows(1.04, 1.05))
    claims = flexrr_runs.help_in_jobs(tmp_path)
    assert verdicts(claims) == [YES] * 5
    assert claims[1].ours == "50%; Ideal itself 52%"
    flexrr_runs.draw(tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    said(tmp_path / "runs.txt", rows(1.25, 0.8))
    assert verdicts(flexrr_runs.help_in_jobs(tmp_path)) == [NO, YES, NO, NO, NO]
