"""The plots and the page of `proteus simulate --availability`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bidbrain.config import SimulateConfig
from bidbrain.report.page import write_page
from bidbrain.report.plots import plot_cost_against_runtime, plot_cost_and_runtime, plot_machine_hours
from bidbrain.report.pools import plot_pool_job, plot_pools
from bidbrain.simulate.experiment import Result, Row
from bidbrain.simulate.plan import Plan


def draw(
    plan: Plan, results: Sequence[Result], rows: Sequence[Row], settings: SimulateConfig, folder: Path
) -> Path:
    """Write the PNGs and report.html into `folder`; returns the page."""
    setting = plan.experiment.setting
    jobs = []
    for result in results:
        if result.scheme == "on_demand" or not result.finished:
            continue
        middle = sorted(result.finished, key=lambda o: (o.end_s - o.start_s, o.start_s))[
            len(result.finished) // 2
        ]
        _, ledger = plan.experiment.ledger(result.scheme, result.job_hours, middle.start_s, result.scheme)
        jobs.append(ledger)
    sections = [
        ("Cost and runtime", [plot_cost_and_runtime(rows, folder / "cost_and_runtime.png")]),
        ("Machine hours by kind", [plot_machine_hours(results, 1, folder / "machine_hours.png")]),
        ("Cost against runtime", [plot_cost_against_runtime(results, folder / "cost_against_runtime.png")]),
        (
            "One job in time (of the middle runtime)",
            [plot_pool_job(jobs, setting.pools, folder / "jobs.png")] if jobs else [],
        ),
        ("The availability behind it", [plot_pools(setting.pools, folder / "availability.png")]),
    ]
    return write_page(
        folder / "report.html",
        "What training would have cost on today's spot market",
        f"{len(setting.pools)} recorded pools, {setting.job.vcpus} nodes",
        plan.notes,
        rows,
        [(heading, images) for heading, images in sections if images],
        settings.as_yaml(),
    )
