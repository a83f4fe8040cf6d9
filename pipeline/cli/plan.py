"""`proteus plan`: a model split into stages over machines, beside the other ways to train it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.common import check_out, progress, whole, write_text, writing

if TYPE_CHECKING:
    from pipeline.compare import Depth, Row
    from pipeline.partition.plan import Plan
    from pipeline.partition.planner import DoesNotFitError, Options
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
    in_flight: Annotated[
        str | None, typer.Option(help="Also simulate so many minibatches per input replica, such as 1,2,4.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.txt, schedule.txt, plan.json, plan.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each plan.")] = False,
) -> None:
    """Split a model into stages over machines, and compare with the other ways to train it."""
    from pipeline.compare import compare, depths
    from pipeline.partition.planner import Options, PartitionError, plans_for_machines, top_plans
    from pipeline.profile.layers import ProfileError, read
    from pipeline.schedule.actions import ScheduleError
    from pipeline.topology.levels import TopologyError, parse_bytes

    check_out(out, is_folder=True)
    try:
        where, file_memory, speeds = _topology(topology)
        options = Options(
            cost_model=cost_model,
            memory_bytes=file_memory if memory is None else parse_bytes(memory, "--memory"),
            recompute=_recompute(recompute),
            optimizer_factor=optimizer_factor,
            straight=straight,
            max_stages=max_stages,
            device_speed=speeds,
        )
        measured = read(profile) if batch is None else read(profile).scaled(batch=batch)
        with progress("planning") as on_progress:
            plans = top_plans(measured, where, top, options, on_progress=on_progress)
        rows = compare(plans[0], measured, where, options)
        tried = depths(plans[0], _counts(in_flight, "--in-flight"), options)
        counts = _counts(machines, "--machines")
        fewer = plans_for_machines(measured, where, counts, options) if counts else {}
    except (ProfileError, TopologyError, PartitionError, ScheduleError) as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        _print_json(plans, rows, tried, fewer, options)
    else:
        _print_all(plans, rows, tried, fewer)
    if out is not None:
        _write_plan(out, plans[0], rows, tried, options)
        typer.echo(f"Wrote plan.txt, schedule.txt, plan.json and plan.png to {out}", err=as_json)


def _counts(text: str | None, flag: str) -> list[int]:
    """The numbers of an option, none where it is not given. Raises BadParameter."""
    return [] if text is None else [whole(part, flag) for part in text.split(",")]


def _recompute(text: str) -> bool | str:
    """The option --recompute as the planner takes it. Raises PartitionError."""
    from pipeline.partition.planner import PartitionError

    if text not in ("never", "auto", "always"):
        raise PartitionError(f"--recompute must be never, auto or always, found {text!r}")
    return text if text == "auto" else text == "always"


def _print_all(
    plans: Sequence[Plan],
    rows: Sequence[Row],
    tried: Sequence[Depth],
    fewer: Mapping[int, Plan | DoesNotFitError],
) -> None:
    _print_plans(plans)
    _print_rows(rows, plans[0].data_parallel_seconds)
    _print_depths(tried)
    _print_counts(fewer)


def _print_plans(plans: Sequence[Plan]) -> None:
    """The best plan with its reasons, then the others; an empty line at the end."""
    best = plans[0]
    print(best.explain())
    print(best.table())
    for number, plan in enumerate(plans[1:], start=2):
        print(f"\n{number}. {plan.config}: {plan.seconds_per_minibatch * 1e3:.3f} ms per minibatch")
        print(plan.table())
    print()


def _print_counts(fewer: Mapping[int, Plan | DoesNotFitError]) -> None:
    """The best plan on each number of machines, or why none fits them."""
    for count, plan in fewer.items():
        if isinstance(plan, Exception):
            print(f"{count} machines: {plan}")
            continue
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


def _print_depths(tried: Sequence[Depth]) -> None:
    """A line for each number of minibatches in flight."""
    for depth in tried:
        memory = ", ".join(f"{one / 1e6:.1f}" for one in depth.memory_bytes)
        print(
            f"{depth.in_flight} in flight: {depth.simulated_s * 1e3:.3f} ms per minibatch simulated, "
            f"MB on a device of each stage: {memory}"
        )


def _numbers(
    plan: Plan, rows: Sequence[Row], options: Options, tried: Sequence[Depth] = ()
) -> dict[str, Any]:
    """The plan for programs; seconds that are infinite (it does not fit) are null."""
    from dataclasses import asdict

    from pipeline.compare import best_in_flight, simulate_long

    def known(seconds: float | None) -> float | None:
        return None if seconds is None or math.isinf(seconds) else seconds

    stages = [
        {
            "layers": list(s.layers),
            "devices": list(s.devices),
            "memory_bytes": s.memory_bytes,
            "parameter_bytes": s.parameter_bytes,
            "output_bytes": s.output_bytes,
        }
        for s in plan.stages
    ]
    count = best_in_flight(plan, options)
    return {
        "model": plan.model,
        "topology": plan.topology,
        "cost_model": plan.cost_model,
        "config": plan.config,
        "in_flight_per_input_replica": count,
        "seconds_per_minibatch": plan.seconds_per_minibatch,
        "simulated_seconds_per_minibatch": simulate_long(plan, count).seconds_per_minibatch(),
        "lower_bound_seconds": plan.lower_bound_seconds,
        "data_parallel_seconds": known(plan.data_parallel_seconds),
        "stages": stages,
        "compared": [{**asdict(row), "simulated_s": known(row.simulated_s)} for row in rows],
        "depths": [asdict(depth) for depth in tried],
        "does_not_fit": None,  # of a count of machines
    }


def _print_json(
    plans: Sequence[Plan],
    rows: Sequence[Row],
    tried: Sequence[Depth],
    fewer: Mapping[int, Plan | DoesNotFitError],
    options: Options,
) -> None:
    """A line for each plan, the best first, then for each number of machines."""
    for number, plan in enumerate(plans):
        of_best = (rows, tried) if number == 0 else ((), ())
        found = {"machines": None, **_numbers(plan, of_best[0], options, of_best[1])}
        print(json.dumps(found, allow_nan=False))
    for count, best in fewer.items():
        if isinstance(best, Exception):
            found = {**dict.fromkeys(found), "machines": count, "does_not_fit": str(best)}
        else:
            found = {"machines": count, **_numbers(best, [], options)}
        print(json.dumps(found, allow_nan=False))


def _write_plan(out: Path, plan: Plan, rows: Sequence[Row], tried: Sequence[Depth], options: Options) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}") from None
    numbers = _numbers(plan, rows, options, tried)
    try:
        _write_files(out, plan, numbers, options)
    finally:
        if not any(out.iterdir()):
            out.rmdir()


def _write_files(out: Path, plan: Plan, numbers: dict[str, Any], options: Options) -> None:
    from pipeline.compare import plan_schedule, simulate_long
    from pipeline.report.plans import draw_plan

    in_flight = numbers["in_flight_per_input_replica"]
    write_text(out / "plan.txt", plan.to_text())
    write_text(out / "schedule.txt", str(plan_schedule(plan, 6 * plan.workers, in_flight)))
    write_text(out / "plan.json", json.dumps(numbers, indent=1, allow_nan=False) + "\n")
    with writing(out / "plan.png"):
        draw_plan(
            plan,
            simulate_long(plan, in_flight),
            out / "plan.png",
            optimizer_factor=options.optimizer_factor,
        )


def _topology(text: str) -> tuple[Topology, float | None, tuple[float, ...] | None]:
    """A topology from text or from a YAML file (levels, memory, device_speed)."""
    from pipeline.topology.file import read_topology
    from pipeline.topology.levels import parse_topology

    if text.endswith((".yaml", ".yml")):
        found = read_topology(Path(text))
        return found.topology, found.memory_bytes, found.device_speed
    return parse_topology(text), None, None
