"""A run as `proteus run` starts it: its end is printed, and becomes an exit code."""

from __future__ import annotations

from pathlib import Path

from agileml.config.job import JobConfig
from agileml.errors import RunError
from agileml.runs.folder import BEST
from agileml.runs.progress import Screen
from agileml.runs.report.market import endings
from agileml.runs.supervision import Restart
from agileml.session.session import run


def run_job(
    config: JobConfig,
    *,
    name: str,
    sequential: bool,
    replay: Path | None = None,
    resume: str | None = None,
    overwrite: bool = False,
    restart: Restart | None = None,
    change_optimizer: bool = False,
) -> int:
    """Train and print where the report is, for `proteus run`. Returns the exit code."""
    try:
        result = run(
            config,
            name=name,
            sequential=sequential,
            replay=replay,
            resume=resume,
            overwrite=overwrite,
            restart=restart,
            change_optimizer=change_optimizer,
        )
    except RunError as error:
        if error.trace:
            print(error.trace.rstrip(), file=Screen())
        print(f"proteus: {error}", file=Screen())
        return error.exit_code
    metrics = ", ".join(f"{key} {value:.4g}" for key, value in result.metrics.items())
    done = f"done: {result.summary['clocks']} clocks"
    if result.summary["stopped"]:
        done = f"stopped: {result.summary['clocks']} of {config.clocks} clocks"
    print(f"{done}, {result.summary['clocks_redone']} redone{metrics and '; '}{metrics}")
    if (best := result.summary.get("best")) is not None:
        where = result.folder / BEST
        print(f"best: {best['metric']} {best['value']:.4g} at clock {best['clock']}, {where}")
    print(f"params_sha256 {result.summary['params_sha256']}")
    for line in endings(result.summary, config.clocks):
        print(line)
    if result.summary["stopped"] and config.checkpoint is not None:
        newest = result.summary["checkpoints"]["newest_clock"]
        if newest is None:
            print(f"this run wrote no checkpoint to {config.checkpoint.path}")
        else:
            print(f"go on with --resume {config.checkpoint.path}, which has clock {newest}")
    print(f"report {result.folder / 'report.html'}")
    return result.code
