"""`proteus submit`, `status`, `logs`, `stop`: runs of a cluster, and runs of this computer by their folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agileml.cli.run import (
    ChangeOptimizer,
    Restarts,
    Settings,
    Stage,
    Supervise,
    Supervised,
    most_restarts,
)
from agileml.runs.progress import SEQUENTIAL, Snapshot, duration, left_s, line, parse_line
from bidbrain.cli.harmless import harmless

if TYPE_CHECKING:
    from agileml.cluster.job_server import JobServer, SubmittedJob
    from agileml.config.job import JobConfig
    from agileml.runs.status import RunStatus

Address = Annotated[
    str | None,
    typer.Option(
        help="The cluster: host:port, its dashboard's http address, or auto.",
        show_default="RAY_API_SERVER_ADDRESS, or the cluster of this computer",
    ),
]
TAIL_LINES = 5  # of a job that is over
MESSAGE_CHARACTERS = 400  # of one that has printed nothing
LATER_S = 60.0  # that a process may need to end after its run; a notebook lives on


def mount(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(submit)
    app.command()(status)
    app.command()(logs)
    app.command()(stop)
    app.command()(watch)
    app.command(hidden=True)(submitted)


@contextmanager
def sentences() -> Iterator[None]:
    """Turn errors of addresses, folders and ids into one sentence."""
    from agileml.cluster.errors import ClusterError
    from agileml.runs.folder import FolderError

    try:
        yield
    except (ClusterError, FolderError) as error:
        raise typer.BadParameter(str(error)) from None


def server_at(address: str | None) -> JobServer:
    """The job server of a cluster, checked within 3 s. Raises ClusterError."""
    from agileml.cluster.job_server import URL_VARIABLE, JobServer, find_server

    return JobServer(find_server(address or os.environ.get(URL_VARIABLE) or "auto"))


def folder_of(run: str, address: str | None) -> Path | None:
    """The folder of a run; None: this is a job's id. Raises BadParameter for the path of something else."""
    if address is not None and os.sep not in run:
        return None  # its results, copied from the head, may lie here under its id
    if os.path.isdir(run):
        return Path(run)
    expected = "expected the id of a job or the folder of a run"
    if os.path.exists(run):
        raise typer.BadParameter(f"{run} is a file, {expected}")
    if os.sep in run:
        raise typer.BadParameter(f"{run} does not exist, {expected}")
    return None


def submit(
    config: Annotated[Path, typer.Argument(help="YAML file that describes the job, in the working folder.")],
    address: Address = None,
    settings: Settings = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Folder for the results, on the head.", show_default="~/proteus-runs/ID"
        ),
    ] = None,
    stage: Stage = None,
    resume: Annotated[
        str | None, typer.Option(metavar="PATH", help="Go on from the newest whole checkpoint there.")
    ] = None,
    change_optimizer: ChangeOptimizer = False,
    python: Annotated[
        str, typer.Option(help="The interpreter on the head that has Proteus' packages.")
    ] = "python",
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Do not ask before a job is submitted that buys instances of a cloud."),
    ] = False,
    supervise: Supervise = False,
    restarts: Restarts = None,
) -> None:
    """Run a job on a cluster; this computer may be switched off. Uploads the working folder and prints the job's id."""
    most = most_restarts(restarts, supervise=supervise)
    flags = tuple(settings or ())
    job = _job_to_submit(config, flags, out, stage)
    if job.market is not None:
        from agileml.cli.market_preview import ask_to_submit

        ask_to_submit(job, yes=yes)
    with sentences():
        from importlib.metadata import version

        from agileml.cluster.job_server import CONFIG, OURS, STOP_WAIT_S, WATCH
        from agileml.cluster.submission import submission
        from agileml.session.places import check_shadows

        options = {"--out": out, "--stage": stage, "--resume": resume}
        given = [word for name, value in options.items() if value is not None for word in (name, value)]
        given += ["--change-optimizer"] if change_optimizer else []
        if supervise:
            given += ["--supervise", "--restarts", str(most)]
        order = submission(config, [*(w for flag in flags for w in ("--set", flag)), *given], python=python)
        check_shadows(order.folder)
        # `auto` in a config is the cluster that the job runs in, wherever that is: no address of it from here.
        server = server_at(address or (None if job.address == "auto" else job.address))
        typer.echo(f"uploading {order.folder} to {server.url}", err=True)
        where = f"{order.id} --address {server.url}"
        about = {OURS: version("proteus-train"), CONFIG: config.stem, WATCH: f"proteus watch {where}"}
        server.submit(order.id, order.entrypoint, order.runtime_env(STOP_WAIT_S), about)
    print(order.id, flush=True)
    typer.echo(f"follow it: proteus logs -f {where} (or watch, on a page)", err=True)
    typer.echo(f"end it:    proteus stop {where}", err=True)


def _job_to_submit(config: Path, flags: tuple[str, ...], out: str | None, stage: str | None) -> JobConfig:
    """The job that a config describes. Raises BadParameter, also for what the head would refuse."""
    from agileml.cli.run import with_options
    from agileml.cluster.submission import settled
    from agileml.config.job import load
    from agileml.config.text import ConfigError

    try:
        job = with_options(load(config, flags), out=out, address=None, stage=stage)
        settled(job, config.stem, Path("/"))  # that of the head is not known here
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    return job


def submitted(
    job: str, config: Path, settings: Settings = None, out: str | None = None, stage: str | None = None,
    resume: str | None = None, supervise: Supervise = False, restarts: Restarts = None,
    supervised: Supervised = False, change_optimizer: ChangeOptimizer = False,
) -> None:  # fmt: skip
    """The command that `submit` has a cluster run: `run`, with its results in the head's home folder."""
    from agileml.cli.run import supervised_run, supervisor_of, train, with_options
    from agileml.cluster.submission import below_results, settled

    def settle(found: JobConfig) -> JobConfig:
        return settled(with_options(found, out=out, address=None, stage=stage), job, Path.home())

    flags = tuple(settings or ())
    place = resume and below_results(resume, Path.home())
    start = None
    if supervise:
        options = {"--stage": stage, "--resume": resume}
        given = [word for name, value in options.items() if value is not None for word in (name, value)]
        given += ["--change-optimizer"] if change_optimizer else []
        words = ["submitted", job, str(config), *(w for flag in flags for w in ("--set", flag)), *given]
        start = supervisor_of(words, config.stem, place, most_restarts(restarts, supervise=True))
    elif supervised:
        start = supervised_run(config.stem, place, change_optimizer=change_optimizer)
    # The user was asked when submitting it.
    raise typer.Exit(
        train(config, flags, settle, resume=place, change_optimizer=change_optimizer, yes=True, start=start)
    )


def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[ID|DIR]", help="A job of the cluster, or the folder of a run.")
    ] = None,
    address: Address = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each run.")] = False,
) -> None:
    """Show how far runs are: stage, clock, machines, clocks/s, spend, time left. Without an id: all jobs."""
    with sentences():
        if run is not None and (folder := folder_of(run, address)) is not None:
            from agileml.runs.status import read_status

            _show_folder(read_status(folder), as_json)
            return
        server = server_at(address)
        jobs = server.jobs() if run is None else [server.job(run)]
        if not jobs and not as_json:
            print(f"no jobs at {server.url}")
        for job in jobs:
            _show_job(job, server, as_json, is_one=run is not None)


def _show_folder(found: RunStatus, as_json: bool) -> None:
    if as_json:
        more: dict[str, Any] = {
            "run": str(found.folder),
            "state": found.state.value,
            "seconds": found.seconds,
        }
        more["process"] = asdict(found.process)
        print(_json(found.snapshot, found.clocks_per_s, more))
        return
    who = f" (process {found.process.pid} of {found.process.host})" if found.state == "running" else ""
    print(harmless(f"{found.folder}: {found.state}{who}, {duration(found.seconds)}"))
    print(harmless(line(found.snapshot, found.clocks_per_s if found.state == "running" else None)))


def _show_job(job: SubmittedJob, server: JobServer, as_json: bool, *, is_one: bool) -> None:
    log = _output(job, server)
    standing = newest(log)
    seconds = (job.ended_s or time.time()) - job.started_s if job.started_s else 0.0
    if as_json:
        more: dict[str, Any] = {
            "run": job.id,
            "state": job.state,
            "seconds": seconds,
            "exit_code": job.exit_code,
        }
        print(_json(standing[0] if standing else None, standing[1] if standing else None, more))
        return
    print(f"{job.id}: {job.state}, {duration(seconds)}")
    if standing is not None:
        print(f"  {line(standing[0], None if job.is_over else standing[1])}")
    if is_one:
        said = _plain(log)[-TAIL_LINES:] if job.is_over else []
        if not said and standing is None and job.message:  # what Ray says, as of a job that could not begin
            said = [" ".join(job.message.split())[:MESSAGE_CHARACTERS]]
        for text in said:
            print(f"  {text}")


def _output(job: SubmittedJob, server: JobServer) -> list[str]:
    """The lines that a job has printed; none, and a sentence, where they have gone with the node that it ran on."""
    from agileml.cluster.errors import ClusterError

    try:
        return [] if job.state == "PENDING" else server.log(job.id).splitlines()
    except ClusterError as error:
        typer.echo(f"proteus: {error}", err=True)
        return []


def newest(log: list[str]) -> tuple[Snapshot, float | None] | None:
    """The last line of progress in a run's output."""
    return next((parsed for text in reversed(log) if (parsed := parse_line(text)) is not None), None)


def _plain(log: list[str]) -> list[str]:
    return [text for text in log if text.strip() and parse_line(text) is None]


def _json(snapshot: Snapshot | None, clocks_per_s: float | None, more: dict[str, Any]) -> str:
    known = asdict(snapshot) if snapshot is not None else {}
    if snapshot is not None:
        known |= {
            "clocks_per_s": clocks_per_s,
            "left_s": left_s(snapshot, clocks_per_s) if clocks_per_s else None,
        }
    from agileml.runs.folder import plain

    return json.dumps(plain(more | known))


def logs(
    run: Annotated[str, typer.Argument(metavar="ID", help="A job of the cluster.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print until the job ends.")] = False,
    address: Address = None,
) -> None:
    """Print what a job has printed. With -f: until it ends; the exit code is then 1 if it failed."""
    if (folder := folder_of(run, address)) is not None:
        from agileml.runs.event_log import EVENTS

        if not os.path.isfile(folder / EVENTS):
            raise typer.BadParameter(f"{run} holds no run, expected the id of a job")
        raise typer.BadParameter(
            f"{run} is a folder: its run printed to its own terminal, and `proteus status {run}` says how it stands; "
            "expected --address for a job of this id"
        )
    with sentences():
        server = server_at(address)
        job = server.job(run)
        if not follow:
            print(server.log(job.id), end="")
            return
        server.follow(job.id, lambda text: print(text, end="", flush=True))
        if (job := server.job(run)).state == "FAILED":
            raise typer.Exit(1)


def watch(
    run: Annotated[
        str, typer.Argument(metavar="ID|DIR", help="A job of the cluster, or the folder of a run.")
    ],
    address: Address = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1.", show_default="a free one")
    ] = 0,
    token_path: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token, for programs.", show_default="a new token"),
    ] = None,
    freeze: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page as it is now to one file instead.")
    ] = None,
) -> None:
    """Show a run on a page that follows it: on 127.0.0.1, behind a token, until Ctrl-C."""
    from agileml.cli.live_page import show
    from agileml.runs.event_log import EVENTS
    from agileml.runs.live.sources import RunPage, of_job
    from agileml.runs.report.page import MOST_TOLD
    from agileml.runs.report.view import MOST_NEWS

    with sentences():
        if (folder := folder_of(run, address)) is not None:
            if not os.path.isfile(folder / EVENTS):
                raise typer.BadParameter(f"{run} holds no run, expected a folder with {EVENTS}")
            look = RunPage(folder, MOST_NEWS if freeze is None else MOST_TOLD).look
        else:
            server = server_at(address)
            server.job(run)
            look = of_job(run, lambda: server.log(run), lambda: server.job(run).state)
        show(look, port, freeze, token_path)


def stop(
    run: Annotated[
        str, typer.Argument(metavar="ID|DIR", help="A job of the cluster, or the folder of a run.")
    ],
    address: Address = None,
    wait: Annotated[bool, typer.Option(help="Wait until it has ended.")] = True,
) -> None:
    """End a run early, at its next cut, which becomes its result and its last checkpoint."""
    with sentences():
        if (folder := folder_of(run, address)) is not None:
            _stop_folder(folder, wait)
        else:
            _stop_job(run, server_at(address), wait)


def _stop_folder(folder: Path, wait: bool) -> None:
    from agileml.runs.owner import is_owner_alive
    from agileml.runs.status import State, read_status, stop_process

    found = read_status(folder)
    if found.state is not State.RUNNING:
        print(f"{folder}: it was over already ({found.state})")
        return
    if found.snapshot.note == SEQUENTIAL and is_owner_alive(found.process, folder):
        raise typer.BadParameter(
            f"{folder} is a run with --sequential, which has no cut to end with: Ctrl-C, or kill {found.process.pid}, "
            "ends it without a result"
        )
    if not stop_process(found.process, folder):
        raise typer.BadParameter(
            f"{folder} belongs to process {found.process.pid} of {found.process.host}, stop it there"
        )
    print(f"{folder}: asked to end with its next cut")
    over_s = None
    while wait and is_owner_alive((found := read_status(folder)).process, folder):
        if found.state is not State.RUNNING:
            over_s = over_s or time.monotonic()
            if time.monotonic() - over_s >= LATER_S:
                break
        time.sleep(0.2)
    if wait:
        # Read once more: it may have ended between the last look at the folder and the one at its process.
        _show_folder(read_status(folder), as_json=False)


def _stop_job(name: str, server: JobServer, wait: bool) -> None:
    job = server.job(name)
    if job.is_over:
        print(f"{name}: it was over already ({job.state})")
        return
    server.stop(name)
    print(f"{name}: asked to end with its next cut")
    while wait and not (job := server.job(name)).is_over:
        time.sleep(0.5)
    if wait:
        _show_job(job, server, as_json=False, is_one=True)
