"""The plots and the page of `proteus simulate`: of a market by prices, or of pools by availability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bidbrain.config import SimulateConfig
from bidbrain.instants import Interval
from bidbrain.report.markets import drawn_of, plot_job, plot_prices
from bidbrain.report.page import write_page
from bidbrain.report.plots import plot_cost_against_runtime, plot_cost_and_runtime, plot_machine_hours
from bidbrain.report.pools import plot_pool_job, plot_pools
from bidbrain.simulate.experiment import Result, Row
from bidbrain.simulate.plan import Plan

DRAWN_JOBS = ("proteus", "renewal")


def draw(
    plan: Plan, results: Sequence[Result], rows: Sequence[Row], settings: SimulateConfig, folder: Path
) -> Path:
    """Write the PNGs and report.html into `folder`; returns the page."""
    setting = plan.experiment.setting
    vcpus_per_machine = 1 if setting.pools else setting.reliable.vcpus_per_machine
    sections = [
        ("Cost and runtime", [plot_cost_and_runtime(rows, folder / "cost_and_runtime.png")]),
        (
            "Machine hours by kind",
            [plot_machine_hours(results, vcpus_per_machine, folder / "machine_hours.png")],
        ),
        ("Cost against runtime", [plot_cost_against_runtime(results, folder / "cost_against_runtime.png")]),
    ]
    if setting.pools:
        title = "What training would have cost on today's spot market"
        subtitle = f"{len(setting.pools)} recorded pools, {setting.job.vcpus} nodes"
        sections += [
            ("One job in time (of the middle runtime)", _pool_jobs(plan, results, folder)),
            ("The availability behind it", [plot_pools(setting.pools, folder / "availability.png")]),
        ]
    else:
        title = "What training would have cost on the spot market"
        some = f" ({drawn_of(setting.history)})" if drawn_of(setting.history) else ""
        subtitle = f"{len(setting.listings)} markets, trained on {setting.train}, jobs start in {_span(plan)}"
        sections += [
            ("One job in time", _jobs(plan, results, folder)),
            (f"The prices behind it{some}", [_prices(plan, folder)]),
        ]
    shown = [(heading, images) for heading, images in sections if images]
    page = folder / "report.html"
    return write_page(page, title, subtitle, plan.notes, rows, shown, settings.as_yaml())


def _pool_jobs(plan: Plan, results: Sequence[Result], folder: Path) -> list[Path]:
    """The job of the middle runtime of every scheme, in one image."""
    jobs = []
    for result in results:
        if result.scheme == "on_demand" or not result.finished:
            continue
        by_runtime = sorted(result.finished, key=lambda o: (o.end_s - o.start_s, o.start_s))
        start_s = by_runtime[len(by_runtime) // 2].start_s
        jobs.append(plan.experiment.ledger(result.scheme, result.job_hours, start_s, result.scheme)[1])
    return [plot_pool_job(jobs, plan.experiment.setting.pools, folder / "jobs.png")] if jobs else []


def _span(plan: Plan) -> Interval:
    pieces = plan.experiment.evaluate
    return Interval(pieces[0].start_s, pieces[-1].end_s)


def _jobs(plan: Plan, results: Sequence[Result], folder: Path) -> list[Path]:
    """The longest job of the middle cost, for the schemes worth a look (else the last that holds machines)."""
    experiment = plan.experiment
    longest = max(result.job_hours for result in results)
    usable = [
        r
        for r in results
        if r.job_hours == longest and r.finished and not r.yardstick and r.scheme != "on_demand"
    ]
    chosen = [r for r in usable if r.scheme in DRAWN_JOBS or ":" in r.scheme] or usable[-1:]
    images = []
    for result in chosen:
        middle = sorted(result.finished, key=lambda o: (o.micro_usd, o.start_s))[len(result.finished) // 2]
        _, ledger = experiment.ledger(result.scheme, longest, middle.start_s, result.scheme)
        name = "".join(c if c.isalnum() else "_" for c in result.scheme)
        images.append(plot_job(ledger, experiment.setting.history, folder / f"job_{name}.png"))
    return images


def _prices(plan: Plan, folder: Path) -> Path:
    setting = plan.experiment.setting
    evaluate = _span(plan)
    window = Interval(min(setting.train.start_s, evaluate.start_s), max(setting.train.end_s, evaluate.end_s))
    on_demand = {listing.market.instance_type: listing.on_demand for listing in setting.listings}
    shade = (("train", setting.train), ("evaluate", evaluate))
    return plot_prices(setting.history, on_demand, window, folder / "prices.png", shade)
