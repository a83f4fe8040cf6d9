"""The commands of `pipeline`. Heavy imports stay inside the commands, so that `proteus --help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.partition.plan import Plan
    from pipeline.partition.planner import Options
    from pipeline.profile.layers import Profile
    from pipeline.schedule.actions import Schedule
    from pipeline.schedule.timing import Timeline
    from pipeline.topology.levels import Topology


def mount(app: typer.Typer) -> None:
    """Add the commands of this package to the `proteus` command."""
    app.command("profile")(profile_command)
    app.command("plan")(plan_command)
    app.command("schedule")(schedule_command)


def profile_command(
    model: Annotated[
        str,
        typer.Argument(
            help="package.file:function or path/file.py:function; it returns (model, inputs) or (model, inputs, loss)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the profile as JSON here.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples in the minibatch, noted in the profile.")] = None,
    repeats: Annotated[int, typer.Option(help="Steps to measure.")] = 20,
    warm_up: Annotated[int, typer.Option(help="Steps before.")] = 3,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads for torch.")] = None,
) -> None:
    """Measure a torch model layer by layer: seconds forward and backward, bytes, graph."""
    import torch

    from pipeline.profile.layers import ProfileError, write
    from pipeline.profile.loading import LoadError, load_function, to_device
    from pipeline.profile.profiler import profile_module, sum_of_outputs

    _check_out(out)
    if batch is not None and batch < 1:
        raise typer.BadParameter(f"--batch must be 1 or more, found {batch}")
    if warm_up < 0:
        raise typer.BadParameter(f"--warm-up must be 0 or more, found {warm_up}")
    if threads is not None:
        if threads < 1:
            raise typer.BadParameter(f"--threads must be 1 or more, found {threads}")
        torch.set_num_threads(threads)
    try:
        made = load_function(model)()
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise LoadError(
                f"{model} must return (model, inputs) or (model, inputs, loss), found {type(made).__name__}"
            )
        module, inputs = to_device(made[0], device), to_device(tuple(made[1]), device)
        loss = made[2] if len(made) == 3 else sum_of_outputs
        with _progress("profiling") as on_progress:
            measured = profile_module(
                module,
                inputs,
                loss=loss,
                batch=batch,
                warm_up=warm_up,
                repeats=repeats,
                on_progress=on_progress,
            )
    except (ProfileError, LoadError) as error:
        raise typer.BadParameter(str(error)) from None
    print(measured.profile.table())
    print(
        f"The layers add up to {measured.layers_over_step:.1%} of the whole step of {measured.step_s * 1e3:.3f} ms "
        f"(steps vary by {measured.spread:.1%})."
    )
    if measured.unattributed_bytes:
        print(f"{measured.unattributed_bytes / 1e6:.3f} MB of weights were not used by any layer.")
    if out is not None:
        write(measured.profile, out)
        print(f"Wrote {out}")


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
    max_stages: Annotated[int | None, typer.Option(help="At most so many stages.")] = None,
    batch: Annotated[int | None, typer.Option(help="Scale the profile to this minibatch.")] = None,
    top: Annotated[int, typer.Option(help="Show so many of the best plans.")] = 1,
    machines: Annotated[
        str | None, typer.Option(help="Also plan for these counts of the outermost machines, such as 3,4,5.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.txt, schedule.txt, plan.json, plan.png.")
    ] = None,
) -> None:
    """Split a model into stages over machines, and compare with the other ways to train it."""
    from pipeline.compare import compare
    from pipeline.partition.planner import Options, PartitionError, plans_for_machines, top_plans
    from pipeline.profile.layers import ProfileError, read
    from pipeline.topology.levels import TopologyError

    _check_out(out)
    try:
        if recompute not in ("never", "auto", "always"):
            raise PartitionError(f"--recompute must be never, auto or always, found {recompute!r}")
        where, file_memory, speeds = _topology(topology)
        limit = _size(memory, "--memory") if memory is not None else file_memory
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
        with _progress("planning") as on_progress:
            plans = top_plans(measured, where, top, options, on_progress=on_progress)
        best = plans[0]
        print(best.explain())
        print(best.table())
        for number, plan in enumerate(plans[1:], start=2):
            print(f"\n{number}. {plan.config}: {plan.seconds_per_minibatch * 1e3:.3f} ms per minibatch")
            print(plan.table())
        print()
        _print_rows(compare(best, measured, where, options), best.data_parallel_seconds)
        if machines is not None:
            counts = [_whole(part, "--machines") for part in machines.split(",")]
            for count, plan in plans_for_machines(measured, where, counts, options).items():
                print(
                    f"{count} machines: {plan.config}, {plan.workers} devices, "
                    f"{plan.seconds_per_minibatch * 1e3:.3f} ms per minibatch"
                )
    except (ProfileError, TopologyError, PartitionError) as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        _write_plan(out, best, measured, where, options)


def schedule_command(
    replicas: Annotated[str, typer.Option(help="Replicas of each stage, such as 1-4-1.")],
    minibatches: Annotated[int, typer.Option(help="How many minibatches.")] = 12,
    policy: Annotated[str, typer.Option(help="1f1b, gpipe or model-parallel.")] = "1f1b",
    in_flight: Annotated[int | None, typer.Option(help="1f1b: minibatches per input replica (NOAM).")] = None,
    group: Annotated[
        int | None, typer.Option(help="gpipe: minibatches per flush; double-buffered: per update.")
    ] = None,
    drains: Annotated[
        str | None, typer.Option(help="Empty the pipeline after these minibatches, such as 6,12.")
    ] = None,
    barrier: Annotated[
        bool, typer.Option("--barrier", help="1f1b: replicas add up gradients inside the backward, as DDP.")
    ] = False,
    versions: Annotated[
        str | None, typer.Option(help="Show versions: stashing, vertical-sync, none or double-buffered.")
    ] = None,
    forward: Annotated[
        str | None, typer.Option(help="Seconds of a forward per stage, such as 1,4,1.")
    ] = None,
    backward: Annotated[str | None, typer.Option(help="Seconds of a backward per stage.")] = None,
    out: Annotated[Path | None, typer.Option(help="Picture (.png, .svg) or text (.txt) to write.")] = None,
) -> None:
    """Print a static schedule, check it, simulate it, draw it."""
    from pipeline.schedule.actions import Policy, ScheduleError, gpipe, model_parallel, one_f_one_b
    from pipeline.schedule.check import problems
    from pipeline.schedule.timing import StageCost, simulate
    from pipeline.schedule.versions import Versions, VersionsError, trace

    _check_out(out)
    try:
        counts = [_whole(part, "--replicas") for part in replicas.split("-")]
        ends = [_whole(part, "--drains") for part in drains.split(",")] if drains else []
        forward_s = _seconds(forward, "--forward", counts, 1.0)
        backward_s = _seconds(backward, "--backward", counts, 2.0)
        if policy not in [p.value for p in Policy]:
            raise ScheduleError(f"--policy must be 1f1b, gpipe or model-parallel, found {policy!r}")
        if policy == Policy.GPIPE.value:
            made = gpipe(counts, minibatches, group or sum(counts), drains=ends)
        elif policy == Policy.MODEL_PARALLEL.value:
            made = model_parallel(counts, minibatches, drains=ends)
        else:
            made = one_f_one_b(
                counts,
                minibatches,
                in_flight=in_flight,
                drains=ends,
                forward_s=forward_s,
                backward_s=backward_s,
                barrier=barrier,
            )
        text = str(made)
        if versions is not None:
            if versions not in [v.value for v in Versions]:
                names = ", ".join(v.value for v in Versions)
                raise ScheduleError(f"--versions must be one of {names}, found {versions!r}")
            mode = Versions(versions)
            traced = trace(made, mode, group=group if mode is Versions.DOUBLE_BUFFERED else None)
            text = f"{traced}kept versions per worker: {' '.join(map(str, traced.peak))}\n"
    except (ScheduleError, VersionsError) as error:
        raise typer.BadParameter(str(error)) from None
    print(text, end="")
    for sentence in problems(made, barrier=barrier):
        print(f"problem: {sentence}")
    timeline = simulate(made, [StageCost(f, b) for f, b in zip(forward_s, backward_s, strict=True)])
    print(
        f"simulated without communication: {timeline.makespan_s:g} s, {timeline.seconds_per_minibatch():g} s per "
        f"minibatch in the long run, idle {timeline.bubble():.1%}"
    )
    if out is not None:
        _write_schedule(out, made, text, timeline)


def _write_schedule(out: Path, made: Schedule, text: str, timeline: Timeline) -> None:
    if out.suffix == ".txt":
        _write_text(out, text)
    else:
        from pipeline.report import PictureError, draw_timeline

        try:
            draw_timeline(timeline, out)
        except PictureError as error:
            raise typer.BadParameter(str(error)) from None
    print(f"Wrote {out}")


def _write_plan(out: Path, plan: Plan, profile: Profile, topology: Topology, options: Options) -> None:
    import json
    from dataclasses import asdict

    from pipeline.compare import best_in_flight, compare, plan_schedule, simulate_long
    from pipeline.report import draw_plan

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}") from None
    _write_text(out / "plan.txt", plan.to_text())
    in_flight = best_in_flight(plan, options)
    _write_text(out / "schedule.txt", str(plan_schedule(plan, 6 * plan.workers, in_flight)))
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
    _write_text(out / "plan.json", json.dumps(numbers, indent=1) + "\n")
    draw_plan(
        plan,
        simulate_long(plan, in_flight),
        out / "plan.png",
        optimizer_factor=options.optimizer_factor,
    )
    print(f"Wrote plan.txt, schedule.txt, plan.json and plan.png to {out}")


def _print_rows(rows: object, data_parallel_s: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ms per minibatch")
    for name in ("", "stages", "predicted", "simulated", "against data parallelism"):
        table.add_column(name, justify="left" if name in ("", "stages") else "right")
    assert isinstance(rows, list)
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


def _topology(text: str) -> tuple[Topology, float | None, tuple[float, ...] | None]:
    """A topology from text or from a YAML file (levels, memory, device_speed)."""
    from pipeline.topology.file import read_topology
    from pipeline.topology.levels import parse_topology

    if text.endswith((".yaml", ".yml")):
        found = read_topology(Path(text))
        return found.topology, found.memory_bytes, found.device_speed
    return parse_topology(text), None, None


def _size(text: str, flag: str) -> float:
    from pipeline.topology.levels import parse_bytes

    return parse_bytes(text, flag)


def _whole(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{flag} takes whole numbers, found {text!r}") from None


def _seconds(text: str | None, flag: str, counts: list[int], unit: float) -> list[float]:
    """Times per stage; balanced ones by default."""
    if text is None:
        return [unit * count for count in counts]
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{flag} takes seconds per stage, such as 1,4,1, found {text!r}") from None
    if len(found) != len(counts) or min(found) <= 0:
        raise typer.BadParameter(
            f"{flag} takes {len(counts)} positive numbers, one per stage, found {text!r}"
        )
    return found


def _check_out(out: Path | None) -> None:
    """Fail before the work, not after it, where the result cannot be written."""
    if out is not None and not out.parent.exists():
        raise typer.BadParameter(f"the folder {out.parent} does not exist")


def _write_text(path: Path, text: str) -> None:
    import os

    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text)
        os.replace(part, path)
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


def _progress(what: str):  # type: ignore[no-untyped-def]
    """A bar on stderr, as a context that gives `on_progress(done, total)`."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def bar():  # type: ignore[no-untyped-def]
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    return bar()
