"""`proteus schedule`: a static schedule as text, checked, simulated and drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.common import check_out, whole, write_text, writing

if TYPE_CHECKING:
    from pipeline.schedule.actions import Schedule
    from pipeline.schedule.timing import Timeline


def schedule_command(
    replicas: Annotated[str, typer.Option(help="Replicas of each stage, such as 1-4-1.")],
    minibatches: Annotated[int, typer.Option(help="How many minibatches.")] = 12,
    policy: Annotated[
        str, typer.Option(help="1f1b, 1f1b-flush, zero-bubble, gpipe or model-parallel.")
    ] = "1f1b",
    in_flight: Annotated[
        int | None,
        typer.Option(help="1f1b, 1f1b-flush, zero-bubble: minibatches per input replica (NOAM)."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(
            help="gpipe, 1f1b-flush, zero-bubble: minibatches per flush; double-buffered: per update."
        ),
    ] = None,
    drains: Annotated[
        str | None,
        typer.Option(
            help="1f1b, gpipe, model-parallel: empty the pipeline after these minibatches, such as 6,12."
        ),
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
    from pipeline.schedule.actions import ScheduleError
    from pipeline.schedule.check import problems
    from pipeline.schedule.versions import VersionsError

    check_out(out)
    if out is not None and out.suffix != ".txt":
        _check_picture(out)
    try:
        counts = [whole(part, "--replicas") for part in replicas.split("-")]
        ends = [whole(part, "--drains") for part in drains.split(",")] if drains else []
        forward_s = _seconds(forward, "--forward", counts, 1.0)
        backward_s = _seconds(backward, "--backward", counts, 2.0)
        _check_used(policy, in_flight, group, barrier, versions)
        made = _schedule(policy, counts, minibatches, in_flight, group, ends, forward_s, backward_s, barrier)
        text = str(made) if versions is None else _with_versions(made, versions, group)
    except (ScheduleError, VersionsError) as error:
        raise typer.BadParameter(str(error)) from None
    print(text, end="")
    for sentence in problems(made, barrier=barrier):
        print(f"problem: {sentence}")
    timeline = _simulated(made, forward_s, backward_s)
    if out is not None:
        _write_schedule(out, text, timeline)


def _simulated(made: Schedule, forward_s: list[float], backward_s: list[float]) -> Timeline:
    """The schedule in time, with a line about it."""
    from pipeline.schedule.timing import StageCost, simulate

    timeline = simulate(
        made, [StageCost(f, b, weights_s=b / 2) for f, b in zip(forward_s, backward_s, strict=True)]
    )
    over = "with start and drain" if timeline.long_run_seconds() is None else "in the long run"
    print(
        f"simulated without communication: {timeline.makespan_s:g} s, {timeline.seconds_per_minibatch():g} s per "
        f"minibatch {over}, idle {timeline.bubble():.1%}"
    )
    return timeline


def _check_used(
    policy: str, in_flight: int | None, group: int | None, barrier: bool, versions: str | None
) -> None:
    """Raises ScheduleError for an option that this policy has nothing to do with."""
    from pipeline.schedule.actions import Policy, ScheduleError

    plain, one_at_a_time = Policy.ONE_F_ONE_B.value, Policy.MODEL_PARALLEL.value
    if in_flight is not None and policy in (Policy.GPIPE.value, one_at_a_time):
        raise ScheduleError(f"--in-flight is not for {policy}: leave it out")
    if barrier and policy != plain:
        raise ScheduleError(f"--barrier is for {plain}, not for {policy}")
    if group is not None and policy in (plain, one_at_a_time) and versions != "double-buffered":
        raise ScheduleError(f"--group is not for {policy} but with --versions double-buffered: leave it out")


def _schedule(
    policy: str,
    counts: list[int],
    minibatches: int,
    in_flight: int | None,
    group: int | None,
    ends: list[int],
    forward_s: list[float],
    backward_s: list[float],
    barrier: bool,
) -> Schedule:
    """The schedule that the options describe. Raises ScheduleError."""
    from pipeline.schedule.actions import Policy, ScheduleError
    from pipeline.schedule.policies import flush, gpipe, model_parallel, one_f_one_b

    if policy not in [p.value for p in Policy]:
        raise ScheduleError(f"--policy must be one of {', '.join(p.value for p in Policy)}, found {policy!r}")
    if policy == Policy.GPIPE.value:
        return gpipe(counts, minibatches, sum(counts) if group is None else group, drains=ends)
    if policy == Policy.MODEL_PARALLEL.value:
        return model_parallel(counts, minibatches, drains=ends)
    if policy in (Policy.FLUSH.value, Policy.ZERO_BUBBLE.value):
        if ends:
            raise ScheduleError(f"--drains is not for {policy}: the pipeline empties after every group")
        return flush(
            counts,
            minibatches,
            minibatches if group is None else group,
            zero_bubble=policy == Policy.ZERO_BUBBLE.value,
            in_flight=in_flight,
            forward_s=forward_s,
            backward_s=backward_s,
        )
    return one_f_one_b(
        counts,
        minibatches,
        in_flight=in_flight,
        drains=ends,
        forward_s=forward_s,
        backward_s=backward_s,
        barrier=barrier,
    )


def _with_versions(made: Schedule, name: str, group: int | None) -> str:
    """The schedule's text with the weight version of every action. Raises ScheduleError, VersionsError."""
    from pipeline.schedule.actions import ScheduleError
    from pipeline.schedule.versions import Versions, trace

    if name not in [v.value for v in Versions]:
        names = ", ".join(v.value for v in Versions)
        raise ScheduleError(f"--versions must be one of {names}, found {name!r}")
    mode = Versions(name)
    traced = trace(made, mode, group=group if mode is Versions.DOUBLE_BUFFERED else None)
    return f"{traced}kept versions per worker: {' '.join(map(str, traced.peak))}\n"


def _seconds(text: str | None, flag: str, counts: list[int], unit: float) -> list[float]:
    """Times per stage; balanced ones by default."""
    if text is None:
        return [unit * count for count in counts]
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{flag} takes seconds per stage, such as 1,4,1, found {text!r}") from None
    if len(found) != len(counts) or not all(0 < seconds < math.inf for seconds in found):
        raise typer.BadParameter(
            f"{flag} takes {len(counts)} positive numbers, one per stage, found {text!r}"
        )
    return found


def _check_picture(out: Path) -> None:
    from pipeline.report.figure import PictureError, check_ending

    try:
        check_ending(out)
    except PictureError as error:
        raise typer.BadParameter(f"--out {error}, or .txt for text") from None


def _write_schedule(out: Path, text: str, timeline: Timeline) -> None:
    if out.suffix == ".txt":
        write_text(out, text)
    else:
        from pipeline.report.plans import draw_timeline

        with writing(out):
            draw_timeline(timeline, out)
    print(f"Wrote {out}")
