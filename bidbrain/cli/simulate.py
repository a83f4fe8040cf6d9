"""`proteus simulate`: schemes against recorded prices or recorded availability."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from bidbrain.config import SimulateConfig

SPAN = "FROM/TO"


def simulate(
    config: Path | None = typer.Argument(None, help="configs/simulate_*.yaml; options override its keys."),
    history: list[Path] | None = typer.Option(None, help="Price history: a file or folder; may be repeated."),
    made: str | None = typer.Option(
        None, help="Without a history: made prices, calm, turbulent or smooth, by --seed."
    ),
    types: list[str] | None = typer.Option(None, help="Machine types, separated by commas (default: all)."),
    zones: list[str] | None = typer.Option(None, help="Zones (us-east-1a, or a), by commas (default: all)."),
    product: str | None = typer.Option(None, help="How the product's name begins, such as Linux."),
    on_demand: list[str] | None = typer.Option(None, metavar="TYPE=USD", help="On-demand price per hour."),
    vcpus: list[str] | None = typer.Option(None, metavar="TYPE=N", help="vCPUs of a machine type."),
    train: str | None = typer.Option(
        None, metavar=SPAN, help="Window of the eviction tables (ISO 8601, UTC)."
    ),
    evaluate: str | None = typer.Option(
        None, metavar=SPAN, help="Window of the jobs' starts (ISO 8601, UTC)."
    ),
    allow_overlap: bool | None = typer.Option(None, "--allow-overlap", help="Let both windows overlap."),
    job_hours: list[str] | None = typer.Option(None, metavar="H,H", help="Job lengths in hours on demand."),
    job_vcpus: int | None = typer.Option(None, help="vCPUs of the on-demand job."),
    cap: float | None = typer.Option(None, help="Most vCPUs held, as a multiple of the job's."),
    starts: int | None = typer.Option(None, help="Jobs per scheme and length."),
    schemes: list[str] | None = typer.Option(None, help="Schemes by commas; your own: package.module:Class."),
    seed: int | None = typer.Option(None, help="Seed of the starts and of the bootstrap."),
    out: Path | None = typer.Option(
        None, help="Folder for tables, plots and report.html.", show_default="runs/simulate-TIME"
    ),
    rules: str | None = typer.Option(None, help="hourly_2016, per_second or per_second_paid."),
    reliable: int | None = typer.Option(None, help="Reliable on-demand machines (of 4 vCPUs)."),
    reliable_type: str | None = typer.Option(None, help="Type of the reliable machines (whole ones of it)."),
    min_delta: float | None = typer.Option(None, help="Least bid above the market price, $/h."),
    grant_delay_s: int | None = typer.Option(None, help="Seconds from a request to its grant."),
    boot_s: int | None = typer.Option(None, help="Seconds that a new machine boots; they are billed."),
    lambda_s: int | None = typer.Option(None, help="Seconds that an eviction stops the whole job."),
    sigma_s: int | None = typer.Option(None, help="Seconds that a grant stops the whole job."),
    phi: float | None = typer.Option(None, help="Worth of a vCPU beyond the job's own, 0 .. 1."),
    slot_vcpus: int | None = typer.Option(None, help="vCPUs of a request."),
    traffic_gb_per_h: float | None = typer.Option(
        None, help="GB that a machine sends and receives per hour."
    ),
    traffic_usd_per_gb: list[str] | None = typer.Option(None, metavar="A>B=USD", help="Price of a route."),
    home: str | None = typer.Option(None, help="Zone of on-demand machines, for the price of traffic."),
    availability: list[Path] | None = typer.Option(None, help="Availability traces, one per pool."),
    spot_share: float | None = typer.Option(None, help="Spot price of a node, as a share of on-demand."),
    spot_shares: list[str] | None = typer.Option(None, metavar="POOL=SHARE", help="The same for one pool."),
    deadline: float | None = typer.Option(
        None, help="Deadline for spot_2026 and expected_cost, in job hours."
    ),
    nodes: int | None = typer.Option(None, help="Nodes of the job on availability traces."),
    ledger: int | None = typer.Option(None, metavar="JOBS", help="Jobs per scheme to write to ledger.jsonl."),
    sweep: str | None = typer.Option(
        None, metavar="KEY=V,V", help="Plot results over values of one setting."
    ),
    processes: int | None = typer.Option(None, help="Processes (default: one per core)."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object for each row of the tables."),
) -> None:
    """Simulate what training jobs would have cost on recorded spot markets."""
    given = dict(locals())
    del given["config"], given["sweep"], given["as_json"]
    _with_options(config, given, sweep, as_json=as_json)


def _with_options(config: Path | None, options: dict[str, Any], sweep: str | None, *, as_json: bool) -> None:
    """Simulate with the options of the command line, by their names, over a config."""
    from bidbrain.cli import common
    from bidbrain.config import ConfigError, load_config

    options |= {name: common.split(options[name]) for name in ("types", "zones", "schemes")}
    keyed = ("on_demand", "vcpus", "spot_shares", "traffic_usd_per_gb")
    options |= {name: common.pairs(options[name], _flag(name)) for name in keyed}
    options["job_hours"] = common.numbers(options["job_hours"], _flag("job_hours"))
    with common.user_errors():
        given = {key: value for key, value in options.items() if value not in (None, [], {})}
        settings = load_config(config, given)
        if "made" in given and settings.history:
            raise ConfigError(f"--made: found {settings.made} with a history, expected one of them")
        _run(settings, sweep, as_json=as_json)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _run(settings: SimulateConfig, sweep: str | None, *, as_json: bool) -> None:
    from bidbrain.cli.run import run_pools, run_prices
    from bidbrain.config import ConfigError

    if settings.availability and settings.history:
        raise ConfigError("history and availability are two markets: name one of them")
    if settings.availability:
        run_pools(settings, sweep, as_json=as_json)
    elif settings.history or settings.made:
        run_prices(settings, sweep, as_json=as_json)
    else:
        raise ConfigError(
            "no market is named: --history PATH (prices), --made calm (made prices) or --availability PATH (pools)"
        )
