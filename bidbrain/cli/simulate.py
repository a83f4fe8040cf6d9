"""`proteus simulate`: schemes against recorded prices or recorded availability."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bidbrain.config import SimulateConfig


def simulate(
    config: Path | None = typer.Argument(None, help="configs/simulate_*.yaml; options override its keys."),
    history: list[Path] | None = typer.Option(
        None, help="Price history: a file or a folder; may be repeated."
    ),
    types: list[str] | None = typer.Option(
        None, help="Machine types, by commas (default: all of the history)."
    ),
    zones: list[str] | None = typer.Option(None, help="Zones (us-east-1a, or a), by commas (default: all)."),
    product: str | None = typer.Option(None, help="Product, a prefix."),
    on_demand: list[str] | None = typer.Option(None, metavar="TYPE=USD", help="On-demand price per hour."),
    vcpus: list[str] | None = typer.Option(None, metavar="TYPE=N", help="vCPUs of a machine type."),
    train: str | None = typer.Option(
        None, metavar="FROM/TO", help="What eviction tables may see (ISO 8601, UTC)."
    ),
    evaluate: str | None = typer.Option(None, metavar="FROM/TO", help="Where jobs start (ISO 8601, UTC)."),
    allow_overlap: bool | None = typer.Option(None, "--allow-overlap", help="Let both windows overlap."),
    job_hours: list[str] | None = typer.Option(None, metavar="H,H", help="Lengths of the job on-demand."),
    job_vcpus: int | None = typer.Option(None, help="vCPUs of the on-demand job."),
    cap: float | None = typer.Option(None, help="Most vCPUs held, as a multiple of the job's."),
    starts: int | None = typer.Option(None, help="Jobs per scheme and length."),
    schemes: list[str] | None = typer.Option(
        None, help="Schemes by commas; your own as package.module:Class."
    ),
    seed: int | None = typer.Option(None, help="Seed of the starts and of the intervals."),
    out: Path | None = typer.Option(None, help="Folder for tables, plots and report.html."),
    rules: str | None = typer.Option(None, help="hourly_2016, per_second or per_second_paid."),
    reliable: int | None = typer.Option(None, help="Reliable on-demand machines (of 4 vCPUs)."),
    reliable_type: str | None = typer.Option(None, help="Their type (whole machines of it)."),
    min_delta: float | None = typer.Option(None, help="Least bid above the market, $/h."),
    grant_delay_s: int | None = typer.Option(None, help="Seconds from a request to its grant."),
    boot_s: int | None = typer.Option(None, help="Seconds that a new machine is billed and does nothing."),
    lambda_s: int | None = typer.Option(None, help="Seconds that an eviction stops the whole job."),
    sigma_s: int | None = typer.Option(None, help="Seconds that a grant stops the whole job."),
    phi: float | None = typer.Option(None, help="What a vCPU beyond the job's own counts, 0 .. 1."),
    slot_vcpus: int | None = typer.Option(None, help="vCPUs of a request."),
    availability: list[Path] | None = typer.Option(
        None, help="Availability traces (today's market): one per pool."
    ),
    spot_share: float | None = typer.Option(
        None, help="Spot price of a pool's node, as a share of on-demand."
    ),
    deadline: float | None = typer.Option(
        None, help="Deadline of spot_2026, as a multiple of the job's hours."
    ),
    nodes: int | None = typer.Option(None, help="Nodes of the job on availability traces."),
    ledger: int | None = typer.Option(
        None, metavar="JOBS", help="Write ledger.jsonl with so many jobs per scheme."
    ),
    sweep: str | None = typer.Option(
        None, metavar="KEY=V,V", help="Run a grid over one setting and plot it."
    ),
    processes: int | None = typer.Option(None, help="Processes (default: one per core)."),
) -> None:
    """Simulate what training jobs would have cost on recorded spot markets."""
    from bidbrain.cli import common
    from bidbrain.config import load_config

    given: dict[str, Any] = {
        "history": history or None,
        "types": common.split(types) or None,
        "zones": common.split(zones) or None,
        "product": product,
        "on_demand": common.pairs(on_demand, "--on-demand") or None,
        "vcpus": common.pairs(vcpus, "--vcpus") or None,
        "train": train,
        "evaluate": evaluate,
        "allow_overlap": allow_overlap,
        "job_hours": common.numbers(job_hours, "--job-hours") or None,
        "job_vcpus": job_vcpus,
        "cap": cap,
        "starts": starts,
        "schemes": common.split(schemes) or None,
        "seed": seed,
        "out": out,
        "rules": rules,
        "reliable": reliable,
        "reliable_type": reliable_type,
        "min_delta": min_delta,
        "grant_delay_s": grant_delay_s,
        "boot_s": boot_s,
        "lambda_s": lambda_s,
        "sigma_s": sigma_s,
        "phi": phi,
        "slot_vcpus": slot_vcpus,
        "availability": availability or None,
        "spot_share": spot_share,
        "deadline": deadline,
        "nodes": nodes,
        "ledger": ledger,
        "processes": processes,
    }
    # A user's own policy may be a module of the folder that the command runs in.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    with common.user_errors():
        settings = load_config(config, {key: value for key, value in given.items() if value is not None})
        _run(settings, sweep)


def _run(settings: SimulateConfig, sweep: str | None) -> None:
    from bidbrain.cli import run_pools, run_prices
    from bidbrain.config import ConfigError

    if settings.out is None:
        raise ConfigError("out is missing: the folder for tables, plots and the report (--out DIR)")
    if settings.availability and settings.history:
        raise ConfigError("history and availability are two markets: name one of them")
    if settings.availability:
        run_pools.run(settings, sweep)
    elif settings.history:
        run_prices.run(settings, sweep)
    else:
        raise ConfigError("no market is named: --history PATH (prices) or --availability PATH (pools)")
