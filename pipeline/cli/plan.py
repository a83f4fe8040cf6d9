"""`proteus plan`: a model split into stages over machines, beside the other ways to train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.common import check_out, progress, whole, write_text

if TYPE_CHECKING:
    from pipeline.compare import Row
    from pipeline.partition.plan import Plan
    from pipeline.partition.planner import Options
    from pipeline.profile.layers import Profile
    from pipeline.topology.levels import Topology


def plan_command(
    profile: Annotated[Path, typer.Argument(help="Profile, as `proteus profile` writes it.")],
    topology: Annotated[
        str,
        typer.Option(help="Levels from the innermost, COUNTxBYTES_PER_S: 4x12e9,4x1.25e9; or a YAML file."),
    ],
    cost_model: Annotated[str, typer.Option(help="thesis or released.")] = "thesis",
    memory: Annotated[str | None, typer.Option(help="Memory of each device, such as 16GB.")] = None,
    recompute: Annotated[str, typer.Option(help="never, auto or always.")] = "never",
    optimizer_factor: Annotated[float, typer.Option(help="Optimizer state per byte of weights.")] = 1.0,
    straight: Annotated[bool, typer.Option("--straight", help="No replicated stages.")] = False,
    max_stages: Annotated[int | None, typer.Option(help="The most stages that a plan may have.")] = None,
    batch: Annotated[int | None, typer.Option(help="Scale the profile to this minibatch.")] = None,
    top: Annotated[int, typer.Option(help="Number of plans to show, the best first.")] = 1,
    machines: Annotated[
        str | None, typer.Option(help="Also plan for these counts of the outermost machines, such as 3,4,5.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.txt, schedule.txt, plan.json, plan.png.")
    ] = None,
) -> None:
    """Split a model into stages over machines, and compare with the other ways to train it."""
    from pipeline.compare import compare
    from pipeline.partition.planner import Options, PartitionError, top_plans
    from pipeline.profile.layers import ProfileError, read
    from pipeline.topology.levels import TopologyError, parse_bytes

    check_out(out)
    try:
        if recompute not in ("never", "auto", "always"):
            raise PartitionError(f"--recompute must be never, auto or always, found {recompute!r}")
        where, file_memory, speeds = _topology(topology)
        limit = parse_bytes(memory, "--memory") if memory is not None else file_memory
        options = Options(
            cost_model=cost_model,
            memory_bytes=limit,
            recompute=recompute if recompute == "auto" else recompute == "always",
            optimizer_factor=optimizer_factor,
            straight=straight,
            max_stages=max_stages,
            device_speed=speeds,
        )
        measured = read(profile)
        if batch is not None:
            measured = measured.scaled(batch=batch)
        with progress("planning") as on_progress:
            plans = top_plans(measured, where, top, options, on_progress=on_progress)
        best = plans[0]
        _print_plans(plans)
        _print_rows(compare(best, measured, where, options), best.data_parallel_seconds)
        if machines is not None:
            _print_counts(
                [whole(part, "--machines") for part in machines.split(",")], measured, where, options
            )
    except (ProfileError, TopologyError, PartitionError) as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        _write_plan(out, best, measured, where, options)


def _print_plans(plans: Sequence[Plan]) -> None:
    """The best plan with its reasons, then the others; an empty line at the end."""
    best = plans[0]
    print(best.explain())
    print(best.table())
    for number, plan in enumerate(plans[1:], start=2):
        print(f"\n{number}. {plan.config}: {plan.seconds_per_minibatch * 1e3:.3f} ms per minibatch")
        print(plan.table())
    print()


def _print_counts(counts: list[int], profile: Profile, topology: Topology, options: Options) -> None:
    """The best plan on each of these numbers of machines."""
    from pipeline.partition.planner import plans_for_machines

    for count, plan in plans_for_machines(profile, topology, counts, options).items():
        print(
            f"{count} machines: {plan.config}, {plan.workers} devices, "
            f"{plan.seconds_per_minibatch * 1e3:.3f} ms per minibatch"
        )


def _print_rows(rows: Sequence[Row], data_parallel_s: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ms per minibatch")
    for name in ("", "stages", "predicted", "simulated", "against data parallelism"):
        table.add_column(name, justify="left" if name in ("", "stages") else "right")
    base = next((row.simulated_s for row in rows if row.name == "data parallelism"), data_parallel_s)
    for row in rows:
        predicted = "" if row.predicted_s is None else f"{row.predicted_s * 1e3:.3f}"
        ratio = "does not fit" if base == float("inf") else f"{base / row.simulated_s:.2f}x"
        table.add_row(row.name, row.config, predicted, f"{row.simulated_s * 1e3:.3f}", ratio)
    Console(width=110).print(table)
    if rows[0].simulated_s > 1.02 * base and rows[0].config != "data parallel":
        print(
            "Simulated, data parallelism is faster: the cost model charges an exchange of gradients between servers "
            "for every minibatch of a server, the simulation once per round of all replicas."
        )


def _write_plan(out: Path, plan: Plan, profile: Profile, topology: Topology, options: Options) -> None:
    import json
    from dataclasses import asdict

    from pipeline.compare import best_in_flight, compare, plan_schedule, simulate_long
    from pipeline.report.plans import draw_plan

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}") from None
    write_text(out / "plan.txt", plan.to_text())
    in_flight = best_in_flight(plan, options)
    write_text(out / "schedule.txt", str(plan_schedule(plan, 6 * plan.workers, in_flight)))
    rows = [asdict(row) for row in compare(plan, profile, topology, options)]
    stages = [
        {"layers": list(s.layers), "devices": list(s.devices), "memory_bytes": s.memory_bytes}
        for s in plan.stages
    ]
    numbers = {
        "model": plan.model,
        "topology": plan.topology,
        "cost_model": plan.cost_model,
        "config": plan.config,
        "in_flight_per_input_replica": in_flight,
        "seconds_per_minibatch": plan.seconds_per_minibatch,
        "lower_bound_seconds": plan.lower_bound_seconds,
        "data_parallel_seconds": plan.data_parallel_seconds,
        "stages": stages,
        "compared": rows,
    }
    write_text(out / "plan.json", json.dumps(numbers, indent=1) + "\n")
    draw_plan(
        plan,
        simulate_long(plan, in_flight),
        out / "plan.png",
        optimizer_factor=options.optimizer_factor,
    )
    print(f"Wrote plan.txt, schedule.txt, plan.json and plan.png to {out}")


def _topology(text: str) -> tuple[Topology, float | None, tuple[float, ...] | None]:
    """A topology from text or from a YAML file (levels, memory, device_speed)."""
    from pipeline.topology.file import read_topology
    from pipeline.topology.levels import parse_topology

    if text.endswith((".yaml", ".yml")):
        found = read_topology(Path(text))
        return found.topology, found.memory_bytes, found.device_speed
    return parse_topology(text), None, None
