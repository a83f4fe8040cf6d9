"""Runs `proteus simulate --availability`."""

from __future__ import annotations

from bidbrain.cli.run_prices import run_plans
from bidbrain.config import SimulateConfig
from bidbrain.history.availability import read_trace
from bidbrain.simulate.experiment import Experiment
from bidbrain.simulate.pool_plan import make_pool_plan


def run(settings: SimulateConfig, sweep: str | None) -> None:
    """Run `proteus simulate` on availability traces; raises the user errors of its parts."""
    traces = [read_trace(path) for path in settings.availability]

    def title(experiment: Experiment) -> str:
        names = ", ".join(trace.market.zone for trace in traces)
        rules = experiment.setting.rules
        return f"{settings.nodes} nodes, pools {names}, {rules}, spot at {settings.spot_share:g} of on-demand"

    run_plans(settings, sweep, lambda each: make_pool_plan(each, traces), title)
