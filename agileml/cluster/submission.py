"""A run as a job of a cluster: its upload, its command, and the place of its results.

The current folder of `proteus submit` is the run's working folder, as with `proteus run`: its files travel to the
cluster. Ray removes them there when the job ends, so a run writes to `RESULTS` on the head instead.
"""

from __future__ import annotations

import importlib
import os
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agileml.cluster.errors import ClusterError
from agileml.cluster.travel import PACKAGES
from agileml.config.job import JobConfig
from agileml.config.market import CloudMarketConfig

RESULTS = "proteus-runs"  # in the home folder of the user who started the cluster's head
RUNS = "/runs"  # where a run's results go by default
EXCLUDED = ["__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"]


@dataclass(frozen=True)
class Submission:
    """A job to submit. `flags`: options of `proteus run`. `python`: the interpreter on the head."""

    id: str
    folder: Path
    config: Path
    flags: tuple[str, ...]
    python: str = "python"

    @property
    def entrypoint(self) -> str:
        """The shell command that the cluster runs, with `exec`, so that signals reach the run and not a shell."""
        words = [self.python, "-m", "agileml.cli", "submitted", self.id, str(self.config), *self.flags]
        return f"exec {shlex.join(words)}"

    def runtime_env(self, stop_wait_s: int) -> dict[str, Any]:
        """Ray's runtime environment of the job: the user's folder and our code, as they are here."""
        return {
            "working_dir": str(self.folder),
            "py_modules": [_folder_of(package) for package in PACKAGES],
            "excludes": [*EXCLUDED, *_excluded_runs()],
            "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(stop_wait_s)},
        }


def submission(
    config: Path, flags: Sequence[str], *, python: str = "python", here: Path | None = None
) -> Submission:
    """Prepare to submit `config` from the folder `here` (None: the current one), or else from the config's own folder.

    Raises ClusterError for the home folder and the root, which a user will not mean to upload, and for a config that
    stays here.
    """
    here = (here or Path.cwd()).resolve()
    # The last part may be a link to a file elsewhere: it lies where the user sees it, and Ray uploads what it leads to.
    file = Path(os.path.abspath(here / config))
    if not file.is_relative_to(here):
        file = file.parent.resolve() / file.name
    folder = here if file.is_relative_to(here) else file.parent
    # Where this user has no home folder, `~` stays, and is none that is uploaded.
    if folder in (Path(os.path.expanduser("~")).resolve(), Path(folder.anchor)):
        raise ClusterError(
            f"found {folder} as the working folder, which would be uploaded whole; "
            "expected a project's folder: change to it, or move the config into one"
        )
    if (why := _left_out(file, folder)) is not None:
        raise ClusterError(
            f"found {config}, which is not uploaded with {folder}: {why}; expected a config elsewhere in it"
        )
    return Submission(new_id(file.stem), folder, file.relative_to(folder), tuple(flags), python)


def _left_out(file: Path, folder: Path) -> str | None:
    """Why Ray leaves a file below `folder` out of the upload; None: it does not."""
    from ray._private.thirdparty.pathspec import PathSpec

    way = [file, *file.parents]
    way = way[: way.index(folder) + 1]  # the file, its folders, and `folder`
    if len(way) > 2 and way[-2].name == RUNS.strip("/"):
        return "results of earlier runs stay here"
    names = [".gitignore", ".rayignore"]
    if os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE") == "1":
        names.remove(".gitignore")
    for depth, place in enumerate(way[1:], 1):
        inside = [str(each.relative_to(place)) for each in way[:depth]]
        for rules in (place / name for name in names):
            if rules.is_file():
                left_out = PathSpec.from_lines("gitwildmatch", rules.read_text().splitlines())
                if any(map(left_out.match_file, inside)):
                    return f"{rules} names it"
    return None


def new_id(name: str) -> str:
    """An id that shows people what the job is and when it began: mlr-20260101-120000-1f3a."""
    plain = re.sub(r"[^\w-]+", "-", name, flags=re.ASCII).strip("-") or "run"
    return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _folder_of(package: str) -> str:
    file = importlib.import_module(package).__file__
    assert file is not None, package
    return str(Path(file).parent)


def _excluded_runs() -> list[str]:
    """Patterns that exclude the results of earlier runs.

    Ray excludes by the same patterns from the working folder and from each package. So what a package of ours has in a
    folder of that name is taken out again.
    """
    ours = (Path(_folder_of(package) + RUNS) for package in PACKAGES)
    kept = {file.name for folder in ours if folder.is_dir() for file in folder.iterdir()}
    return [f"{RUNS}/*", *(f"!{RUNS}/{name}" for name in sorted(kept - set(EXCLUDED)))]


def settled(config: JobConfig, job: str, home: Path) -> JobConfig:
    """The config of a submitted run as the head runs it: relative paths for results lie below `home`.

    Without `out` in the config the run writes to a folder named after the job.
    """
    changes: dict[str, Any] = {"out": below_results(config.out or job, home)}
    if config.market is None or isinstance(config.market, CloudMarketConfig):
        changes["address"] = "auto"
    if (checkpoint := config.checkpoint) is not None:
        changes["checkpoint"] = checkpoint.changed(path=below_results(checkpoint.path, home))
    return config.changed(**changes)


def below_results(place: str, home: Path) -> str:
    """Where results or checkpoints go: relative paths begin at `RESULTS`."""
    return place if place.startswith(("s3://", "~")) else str(home / RESULTS / place)
