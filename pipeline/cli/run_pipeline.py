"""`proteus pipeline`: profile, plan and run a training that a config describes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.common import check_out, new_folder, write_profile, write_text, writing

if TYPE_CHECKING:
    from pipeline.profile.layers import Profile
    from pipeline.run.job import Job, StageShape
    from pipeline.run.planning import Planned
    from pipeline.run.result import WorkerReport

app = typer.Typer(help="Train a model by a pipeline of processes.", no_args_is_help=True)

_CONFIG = typer.Argument(help="YAML file, see docs/guides/pipelines.md.")
_SET = typer.Option(
    "--set", help="key=value: another value for a key of the config; may be given several times."
)
_PROFILE = typer.Option(help="Profile that `proteus pipeline profile` wrote; by default it is measured now.")


@app.command("profile")
def profile_training(
    config: Annotated[Path, _CONFIG],
    out: Annotated[Path | None, typer.Option(help="Write the profile as JSON here.")] = None,
    repeats: Annotated[int, typer.Option(help="Steps to measure.", min=1)] = 5,
    changes: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Measure the layers that can be cut between, for one microbatch."""
    check_out(out)
    with _sentences():
        job = _job(config, changes)
        measured = _measured(job, None, repeats)
        print(measured.table())
        if out is not None:
            write_profile(measured, out)
            print(f"Wrote {out}")


@app.command("plan")
def plan_training(
    config: Annotated[Path, _CONFIG],
    profile: Annotated[Path | None, _PROFILE] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the plan here; `plan: FILE` in a config runs it.")
    ] = None,
    changes: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Choose the stages for the config's workers on this host."""
    from pipeline.run.config import check_open
    from pipeline.run.planning import plan_of

    check_out(out)
    with _sentences():
        job = _job(config, changes)
        check_open(job.config)
        plan = plan_of(job, _measured(job, profile))
        print(plan.explain())
        print(plan.table())
        if out is not None:
            write_text(out, plan.to_text())
            print(f"Wrote {out}")


@app.command("run")
def run_training(
    config: Annotated[Path | None, typer.Argument(help="YAML file; not with --replay.")] = None,
    profile: Annotated[Path | None, _PROFILE] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one below runs/.")
    ] = None,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="All workers in this process, one after the other: the same bits."),
    ] = False,
    replay: Annotated[
        Path | None,
        typer.Option(help="With --sequential: a run's folder, whose config, stages and start are taken."),
    ] = None,
    changes: Annotated[list[str] | None, _SET] = None,
) -> None:
    """Train. Prints the losses, params_sha256, and the predicted and measured times."""
    with _sentences():
        if (config is None) == (replay is None):
            raise typer.BadParameter("give a config, or --sequential --replay RUN")
        if replay is not None and not sequential:
            raise typer.BadParameter("--replay is for --sequential")
        if replay is not None and (changes or profile is not None):
            raise typer.BadParameter("--set and --profile are for a config: a replay is the run as it was")
        with _fresh_folder(out) as found:
            if replay is not None:
                job, shape = _replayed(replay)
                _train(job, shape, found, None, sequential=True)
            else:
                assert config is not None
                job = _job(config, changes)
                chosen = _planned(job, profile)
                print(f"Plan: {chosen.reason}")
                _train(job, chosen.shape, found, chosen, sequential=sequential)


def _train(job: Job, shape: StageShape, folder: Path, chosen: Planned | None, *, sequential: bool) -> None:
    from pipeline.run.memory import predicted_bytes
    from pipeline.run.processes import restore, run_processes, save_start
    from pipeline.run.result import collected, minibatch_losses, run_here

    lists = job.schedule(shape)
    predicted = predicted_bytes(job, shape, lists)
    write_text(folder / "schedule.txt", str(lists))
    if chosen is not None and chosen.plan is not None:
        write_text(folder / "plan.txt", chosen.plan.to_text())
    with writing(folder):
        save_start(job, shape, folder)
    begin = time.perf_counter()
    if sequential:
        # As a worker does: here the loss was called before, to measure and to predict, and it may count its calls.
        job, shape = restore(folder)
        tensors, reports = run_here(job, shape)
    else:
        run_processes(job, shape, folder)
        tensors, reports = collected(folder, shape)
    wall_s = time.perf_counter() - begin
    _write_result(folder, job, tensors, reports, wall_s)
    losses = minibatch_losses(reports, job.config.parts)
    for number in sorted({1, *range(0, len(losses), max(1, len(losses) // 10)), len(losses)} - {0}):
        print(f"minibatch {number}: loss {losses[number - 1]:.6f}")
    _print_stages(reports, predicted, sequential)
    if chosen is not None and not sequential:
        print(
            f"{_pace_s(reports, job) * 1e3:.2f} ms per minibatch (predicted {chosen.minibatch_s * 1e3:.2f}), "
            f"{wall_s:.1f} s with the start of the processes"
        )
    print(f"Wrote {folder}")


def _write_result(
    folder: Path, job: Job, tensors: dict[str, Any], reports: list[WorkerReport], wall_s: float
) -> None:
    from pipeline.run.result import minibatch_losses
    from pipeline.run.tensor_files import digest, write_tensors

    whole = {name: tensors.get(name, value) for name, value in job.traced.values.items()}
    sha = digest(whole)
    with writing(folder):
        write_tensors(folder / "model.safetensors", job.state_dict(whole))
    losses = minibatch_losses(reports, job.config.parts)
    summary = {
        "params_sha256": sha,
        "minibatches": len(losses),
        "losses": [loss if math.isfinite(loss) else None for loss in losses],  # JSON has no NaN
        "wall_s": wall_s,
        "workers": [
            {"stage": r.stage + 1, "compute_s": r.compute_s, "wait_s": r.wait_s, "versions": r.versions}
            for r in reports
        ],
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    print(f"params_sha256 {sha}")


def _pace_s(reports: list[WorkerReport], job: Job) -> float:
    """Seconds per minibatch of the first stage, without the first tenth."""
    parts = job.config.parts
    spans = [span for report in reports if report.stage == 0 for span in report.spans]
    ends = sorted(span.end_s for span in spans)
    skipped = len(ends) // 10
    per_minibatch = len(ends) / (max(span.action.minibatch for span in spans) / parts)
    return (ends[-1] - ends[skipped]) / max(len(ends) - 1 - skipped, 1) * per_minibatch


def _print_stages(reports: list[WorkerReport], predicted: list[int], sequential: bool) -> None:
    from pipeline.schedule.actions import Kind

    print(
        f"{'stage':>5} {'worker':>6} {'forward s':>10} {'backward s':>11} {'weights s':>10} {'waiting s':>10} "
        f"{'versions':>8} {'MB of tensors, predicted':>25} {'resident':>9}"
    )
    for report in reports:
        kinds = [report.seconds(kind) for kind in Kind]
        measured = "-" if sequential or report.memory_bytes is None else f"{report.memory_bytes / 1e6:.1f}"
        waits = "-" if sequential else f"{report.wait_s:.2f}"
        print(
            f"{report.stage + 1:>5} {report.number:>6} {kinds[0]:>10.2f} {kinds[1]:>11.2f} {kinds[2]:>10.2f} "
            f"{waits:>10} {report.versions:>8} {predicted[report.stage] / 1e6:>25.1f} {measured:>9}"
        )


def _job(config: Path, changes: list[str] | None) -> Job:
    import torch

    from pipeline.run.config import read_config
    from pipeline.run.job import Job
    from pipeline.yaml_text import YamlTextError, parse_yaml

    given = {}
    for change in changes or []:
        key, sep, value = change.partition("=")
        if not sep:
            raise typer.BadParameter(f"--set takes key=value, found {change!r}")
        try:
            given[key] = parse_yaml(value, f"--set {key}: {value!r}")
        except YamlTextError as error:
            raise typer.BadParameter(str(error)) from None
    read = read_config(config, given)
    torch.set_num_threads(read.threads)
    return Job(read)


def _replayed(folder: Path) -> tuple[Job, StageShape]:
    import torch

    from pipeline.run.processes import restore

    job, shape = restore(folder)
    torch.set_num_threads(job.config.threads)
    return job, shape


def _measured(job: Job, path: Path | None, repeats: int = 5) -> Profile:
    from pipeline.profile.layers import read
    from pipeline.run.planning import check_profile, profile_of

    if path is None:
        return profile_of(job, repeats)
    found = read(path)
    check_profile(job, found)
    return found


def _planned(job: Job, profile: Path | None) -> Planned:
    from pipeline.run.planning import planned

    return planned(job, _measured(job, profile))


@contextmanager
def _fresh_folder(out: Path | None) -> Iterator[Path]:
    """A folder for this run alone, which goes again if it stays empty. Raises BadParameter."""
    found = _made_folder(out)
    held = os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # a batch system may start a command several times at once
            raise typer.BadParameter(f"{found} is that of a run that has just begun") from None
        except OSError:  # a file system without locks: nobody can tell
            pass
        try:
            yield found
        finally:
            if not any(found.iterdir()):
                found.rmdir()
    finally:
        os.close(held)


def _made_folder(out: Path | None) -> Path:
    if out is None:
        return new_folder(Path("runs") / time.strftime("pipeline-%Y%m%d-%H%M%S"))
    out = Path(os.path.expanduser(out))  # no shell sees a `~` behind `--out=`
    if os.path.exists(out) and not os.path.isdir(out):
        raise typer.BadParameter(f"{out} is a file; expected a folder or a new name")
    try:
        if os.path.isdir(out) and any(out.iterdir()):
            raise typer.BadParameter(f"{out} is there already and not empty: name another folder")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be made: {error.strerror}") from None
    return out


@contextmanager
def _sentences() -> Iterator[None]:
    """Errors of bad input as one sentence and exit code 2."""
    from pipeline.partition.plan import PlanError
    from pipeline.partition.planner import PartitionError
    from pipeline.profile.layers import ProfileError
    from pipeline.profile.user_model import LoadError
    from pipeline.run.config import RunError
    from pipeline.schedule.actions import ScheduleError
    from pipeline.schedule.versions import VersionsError
    from pipeline.stages.layering import StageError
    from pipeline.topology.levels import TopologyError

    of_partition, of_model = (PlanError, PartitionError, TopologyError), (ProfileError, LoadError, StageError)
    try:
        yield
    except (*of_partition, *of_model, RunError, ScheduleError, VersionsError) as error:
        raise typer.BadParameter(str(error)) from None
