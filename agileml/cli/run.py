"""`proteus run`, `proteus report`, `proteus doctor`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agileml.config.job import JobConfig
    from agileml.config.text import ConfigError

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override one key of the config; may be repeated."),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder for the results.", show_default="a new one in runs/"),
]
Sequential = Annotated[
    bool, typer.Option("--sequential", help="Train in one process without Ray: the reference for the result.")
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Write trace.json, a timeline of every machine for Perfetto.")
]
ReplayOf = Annotated[
    Path | None,
    typer.Option(
        "--replay",
        metavar="RUN",
        help="With --sequential, for consistency elastic or a pipeline without a flush: repeat the run of this log.",
    ),
]
Supervise = Annotated[
    bool,
    typer.Option(
        "--supervise",
        help="Restart the run from its newest checkpoint when its process, Ray's head or all reliable machines die.",
    ),
]
MOST_RESTARTS = 10
Restarts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --supervise: the most restarts in a row without a newer checkpoint.",
        show_default=str(MOST_RESTARTS),
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="PATH", help="Go on from the newest whole checkpoint in a folder or s3://bucket/prefix."
    ),
]
ChangeOptimizer = Annotated[
    bool,
    typer.Option(
        "--change-optimizer",
        help="With --resume: rate, schedule and other settings of the optimizer may be new; its kind stays.",
    ),
]
Supervised = Annotated[bool, typer.Option("--supervised", hidden=True)]
Stage = Annotated[
    str | None,
    typer.Option(
        metavar="auto|thresholds|1|2|3",
        help="A fixed stage, or chosen by measurement (auto) or by thresholds.",
    ),
]


def mount(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(run)
    app.command()(report)
    app.command()(doctor)
    app.command()(chaos)


def run(
    config: Annotated[
        Path, typer.Argument(help="YAML file that describes the job, such as configs/demo.yaml.")
    ],
    settings: Settings = None,
    out: Out = None,
    address: Annotated[
        str | None,
        typer.Option(help="Join the Ray cluster at host:port, at its dashboard's http address, or auto."),
    ] = None,
    sequential: Sequential = False,
    replay: ReplayOf = None,
    stage: Stage = None,
    profile: Profile = False,
    resume: Resume = None,
    change_optimizer: ChangeOptimizer = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier run in --out.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With a market: show the first decision and what it costs.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before instances of a cloud are bought.")
    ] = False,
    supervise: Supervise = False,
    restarts: Restarts = None,
    supervised: Supervised = False,
) -> None:
    """Train a model on machines that come and go."""
    _exclude({"--sequential": sequential, "--dry-run": dry_run}, {"--supervise": supervise})
    _exclude({"--dry-run": dry_run, "--address": address is not None}, {"--sequential": sequential})
    if replay is not None and not sequential:
        raise typer.BadParameter("found --replay without --sequential, expected both")
    most = most_restarts(restarts, supervise=supervise)
    flags = tuple(settings or ())
    start = None
    if supervise:
        options = [*_words(flags, address, stage, resume), *(["--profile"] if profile else [])]
        options += ["--change-optimizer"] if change_optimizer else []
        start = supervisor_of(["run", str(config), *options], config.stem, resume, most, overwrite=overwrite)
    elif supervised:
        start = supervised_run(config.stem, resume, change_optimizer=change_optimizer)
    code = train(
        config,
        flags,
        lambda job: with_options(job, out=out, address=address, stage=stage, profile=profile),
        sequential=sequential,
        replay=replay,
        resume=resume,
        change_optimizer=change_optimizer,
        overwrite=overwrite,
        dry_run=dry_run,
        yes=yes or supervised,  # the supervisor has asked
        start=start,
    )
    raise typer.Exit(code)


def most_restarts(given: int | None, *, supervise: bool) -> int:
    """The most restarts in a row of a supervised run. Raises BadParameter for a run that is not supervised."""
    if given is not None and not supervise:
        raise typer.BadParameter("found --restarts without --supervise, expected both")
    return MOST_RESTARTS if given is None else given


def _exclude(some: dict[str, bool], other: dict[str, bool]) -> None:
    """Raise BadParameter where an option of each kind is given."""
    for one in (name for name, is_given in some.items() if is_given):
        for two in (name for name, is_given in other.items() if is_given):
            raise typer.BadParameter(f"found {one} with {two}, expected one of them")


def _words(flags: tuple[str, ...], address: str | None, stage: str | None, resume: str | None) -> list[str]:
    """Options of `proteus run` as they were given."""
    options = {"--address": address, "--stage": stage, "--resume": resume}
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    return [*(word for flag in flags for word in ("--set", flag)), *given]


def supervisor_of(
    command: list[str], name: str, resume: str | None, restarts: int, *, overwrite: bool = False
) -> Callable[[JobConfig], int]:
    """For `train`: run `proteus COMMAND` under a supervisor."""
    from agileml.cli.supervise import supervise

    return lambda job: supervise(job, name, command, resume, restarts, overwrite=overwrite)


def supervised_run(
    name: str, resume: str | None, *, change_optimizer: bool = False
) -> Callable[[JobConfig], int]:
    """For `train`: the process of a supervised run."""
    from agileml.cli.supervise import run_supervised

    return lambda job: run_supervised(job, name, resume, change_optimizer=change_optimizer)


def train(
    config: Path,
    flags: tuple[str, ...],
    settle: Callable[[JobConfig], JobConfig],
    *,
    sequential: bool = False,
    replay: Path | None = None,
    resume: str | None = None,
    change_optimizer: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    start: Callable[[JobConfig], int] | None = None,
) -> int:
    """Train by a config file, with `--set` flags and then `settle` applied. Returns the exit code.

    start: runs the settled config; None: in this process.

    Raises BadParameter for input that is wrong.
    """
    from agileml.application import InputError
    from agileml.config.job import load, locate
    from agileml.config.text import ConfigError
    from agileml.runs.folder import FolderError, StorageError

    try:
        job = settle(load(config, flags))
        from agileml.checkpoints.errors import CheckpointError
        from agileml.cluster.errors import ClusterError
        from agileml.session import run_job
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        if (dry_run or job.market is not None) and not sequential:
            from agileml.cli.market_preview import CloudError, may_run

            try:
                if not may_run(job, config.stem, dry_run=dry_run, yes=yes):
                    return 0
            except CloudError as error:
                raise typer.BadParameter(str(error)) from None
        if start is not None:
            return start(job)
        return run_job(
            job,
            name=config.stem,
            sequential=sequential,
            replay=replay,
            resume=resume,
            overwrite=overwrite,
            change_optimizer=change_optimizer,
        )
    except (ConfigError, InputError) as error:
        # The error names a key; `locate` adds its file and line (or its flag).
        raise typer.BadParameter(str(locate(_as_config_error(error), config, flags))) from None
    except (FolderError, ClusterError, CheckpointError) as error:
        raise typer.BadParameter(str(error)) from None
    except StorageError as error:
        typer.echo(f"proteus: {error}", err=True)
        return 1


def with_options(
    job: JobConfig, *, out: str | None, address: str | None, stage: str | None, profile: bool = False
) -> JobConfig:
    """The config with the options of the command line applied. Raises BadParameter."""
    if stage is not None and stage not in ("auto", "thresholds", "1", "2", "3"):
        raise typer.BadParameter(f"--stage: found {stage!r}, expected auto, thresholds, 1, 2 or 3")
    options: dict[str, object] = {"out": out, "address": address, "profile": profile or None}
    options["stage"] = int(stage) if stage and stage.isdecimal() else stage
    return job.changed(**{name: value for name, value in options.items() if value is not None})


def _as_config_error(error: Exception) -> ConfigError:
    """An application says `data.path: ...`; a ConfigError says the same in parts."""
    from agileml.config.text import ConfigError

    if isinstance(error, ConfigError):
        return error
    named = re.match(r"([a-z_]\w*(?:\.\w+)*): (.*)", str(error), re.DOTALL)
    if named is None:
        return ConfigError(str(error))
    return ConfigError(named[2], key=tuple(named[1].split(".")))


def chaos(
    config: Annotated[Path, typer.Argument(help="YAML file that describes the job.")],
    seed: Annotated[int, typer.Option(help="Seed of the plan; equal seeds give equal plans.")] = 0,
    faults: Annotated[int, typer.Option(min=1, help="Number of faults, spread over the run.")] = 6,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for everything.", show_default="a new one in runs/"),
    ] = None,
) -> None:
    """Train through random faults on real local nodes and compare with the sequential run, to the bit.

    Exit code 0 only if all faults fired, the bits are the same and no process is left.
    """
    from agileml.application import InputError
    from agileml.config.job import load
    from agileml.config.text import ConfigError
    from agileml.errors import RunError
    from agileml.runs.folder import FolderError, StorageError

    try:
        job = load(config, tuple(settings or ()))
        _check_chaos(job)
        from agileml.checkpoints.errors import CheckpointError
        from agileml.cli.chaos import chaos_folder, run_chaos
        from agileml.cluster.errors import ClusterError
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        if out is not None:
            out = Path(os.path.expanduser(out))  # no shell sees a `~` behind `--out=`
        with chaos_folder(out, f"chaos-{config.stem}-{seed}") as folder:
            verdict = run_chaos(job, seed, faults, folder)
    except (ConfigError, InputError, FolderError, ClusterError, CheckpointError) as error:
        raise typer.BadParameter(str(error)) from None
    except (RunError, StorageError) as error:
        if trace := getattr(error, "trace", ""):
            typer.echo(trace.rstrip(), err=True)
        typer.echo(f"proteus: {error}", err=True)
        raise typer.Exit(1) from None
    print(verdict)
    raise typer.Exit(0 if verdict.is_good else 1)


def _check_chaos(job: JobConfig) -> None:
    """Raise BadParameter for a job that no random faults can strike."""
    begin = job.machines.reliable + job.machines.transient
    if begin < 2 or job.machines.max < 3:
        raise typer.BadParameter(
            f"machines: found {begin} and machines.max of {job.machines.max}, expected at least 2 and a max "
            "of at least 3: chaos takes some away"
        )
    for key in ("plan", "address", "market"):
        if getattr(job, key):
            raise typer.BadParameter(
                f"{key}: found it, expected a config without: chaos makes its own plan and machines"
            )


def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, such as runs/demo-20260101-120000.")],
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead, draw the machines above the loss: .svg, .png or .pdf."),
    ] = None,
) -> None:
    """Rebuild report.html of a run from its config, events and summary."""
    if picture is not None:
        draw_picture(folder, picture)
        return
    from agileml.runs.folder import StorageError
    from agileml.runs.report.page import ReportError, rebuild

    try:
        print(rebuild(folder))
    except ReportError as error:
        raise typer.BadParameter(str(error)) from None
    except StorageError as error:
        typer.echo(f"proteus: {error}", err=True)
        raise typer.Exit(1) from None


def draw_picture(folder: Path, picture: Path) -> None:
    """Draw machines and loss of the run in a folder to a file. Raises BadParameter."""
    from agileml.events.schema import SchemaError
    from agileml.runs.event_log import EVENTS, read_events
    from agileml.runs.folder import StorageError
    from agileml.runs.report.picture import write_picture

    if picture.suffix not in (".svg", ".png", ".pdf"):
        raise typer.BadParameter(
            f"--picture: found {picture}, expected a name that ends in .svg, .png or .pdf"
        )
    if not os.path.isdir(picture.parent) or os.path.isdir(picture):
        raise typer.BadParameter(f"--picture: found {picture}, expected a new file in a folder that is there")
    try:
        drawn = write_picture(read_events(folder / EVENTS), picture)
    except SchemaError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(f"{error.filename} cannot be opened: {error.strerror}") from None
    except StorageError as error:
        typer.echo(f"proteus: {error}", err=True)
        raise typer.Exit(1) from None
    if not drawn:
        raise typer.BadParameter(
            f"{folder} has nothing to draw yet, expected a run with machines and two clocks"
        )
    print(picture)


def doctor(
    address: Annotated[
        str | None, typer.Option(help="Look at this Ray cluster instead of starting one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each finding.")] = False,
) -> None:
    """Check whether this computer can run Proteus, and advise on each problem."""
    from agileml.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(address, as_json=as_json))
