"""The folder of one run: config.yaml, events.jsonl, model.safetensors, optimizer.pt, summary.json, report.html.

A file is there whole or not at all: it is written under a temporary name, flushed to disk and renamed.
Only events.jsonl grows while the run goes on, by whole lines.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from agileml.application import without_secrets
from agileml.events.run import RunStarted
from agileml.events.schema import SchemaError
from agileml.runs.event_log import EVENTS, EventLog, is_written, names_of, read_backwards, read_first
from agileml.runs.model_file import params_sha256, save_model
from agileml.runs.owner import forget_ended_supervisor, has_ended, owner_of, running_in
from agileml.runs.supervision import SUPERVISION, read_supervision
from bidbrain.files.durable_names import flush_folder

CONFIG, MODEL, OPTIMIZER = "config.yaml", "model.safetensors", "optimizer.pt"
BEST = "best.safetensors"
SUMMARY, REPORT = "summary.json", "report.html"
TRACE = "trace.json"
EARLIER = ".earlier-run"  # a folder in that of the run: the files of the run before, until this one has begun
FILES = (CONFIG, EVENTS, MODEL, BEST, OPTIMIZER, SUMMARY, REPORT)
# The files of loggers, and the names that services have given a run.
SERIES = ("clocks.csv", "evaluations.csv", "metrics.jsonl", "tensorboard", "wandb_run", "mlflow_run")
_TEMPORARY = re.compile(r"\.(.+)\.\d+\.tmp")  # see `replacing`
MARKET = "market"  # a folder in that of the run: journal, ledger and prices of its market


class FolderError(ValueError):
    """The user named a folder that cannot take a run: one sentence."""


class StorageError(RuntimeError):
    """A result could not be written (a full disk, most often): one sentence; earlier files are whole."""


def check_out(out: str | Path | None, *, overwrite: bool = False, series: Sequence[str] = ()) -> None:
    """Raise FolderError if a run could not be written to `out` (None: a new folder in runs/); makes nothing.

    overwrite: a run there that is over may be replaced. One that ended without a result may be replaced anyway.
    series: the files that its loggers will begin.
    """
    path = Path("runs") if out is None else Path(out)
    try:
        if out is not None:
            _check_free(path, overwrite=overwrite)
            # Those of an earlier run go with its log; others are the user's, or lead elsewhere.
            if not (path / EVENTS).exists() and (
                held := [each for each in series if os.path.lexists(path / each)]
            ):
                raise FolderError(
                    f"out: {path} holds {held[0]} without the log of a run, and log would write it: expected a new or "
                    "an empty folder"
                )
        there = path
        while not there.exists() and there != there.parent:
            if there.is_symlink():  # to a disk that is not mounted, most often
                raise FolderError(f"out: {there} is a link to {os.readlink(there)}, which is not there")
            there = there.parent
        if not there.is_dir():
            raise FolderError(f"out: {path} cannot be made, {there} is a file; expected a folder")
        # Permission bits do not tell of read-only disks, nor bind root.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise FolderError(
            f"out: {path} is not writable ({error.strerror}), expected a folder that is"
        ) from None


def _check_free(path: Path, *, overwrite: bool) -> None:
    """Raise FolderError where something is that a run must not replace. Raises OSError."""
    if path.exists() and not path.is_dir():
        raise FolderError(f"out: {path} is a file, expected a folder or a new name")
    if held := [name for name in (*FILES, MARKET) if (path / name).exists()]:
        is_run = _is_run(path)
        if overwrite and not is_run:
            raise FolderError(
                f"out: {path} holds {held[0]} without the log of a run, expected a new or an empty folder: --overwrite "
                "replaces runs, and no files of other origin"
            )
        if not overwrite and not is_without_result(path):
            raise FolderError(
                f"out: {path} holds another run (found {held[0]}), expected a new or an empty folder"
                + (", or --overwrite to replace it" if is_run else "")
            )
        if (process := running_in(path)) is not None:
            raise FolderError(
                f"out: {path} belongs to a run that goes on (process {process.pid} of {process.host}); stop it first"
            )
        if is_written(path / EVENTS, if_unknown=False):
            raise FolderError(f"out: {path} belongs to a run that has just begun; stop it first")


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """Let no other process begin a run in a folder meanwhile: a batch system may start a command several times at once.
    Raises OSError. Where there can be no locks, nobody can tell."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _is_run(path: Path) -> bool:
    """True for the folder of a run, which begins with its supervisor's record or its log: without one of them a
    config.yaml there is the user's own."""
    marks = (SUPERVISION, EARLIER, *names_of(path / EVENTS))
    return any((path / name).exists() for name in marks)


def is_without_result(path: Path) -> bool:
    """True for the folder of a run of this host that failed, or was killed, before it wrote anything to keep.

    A supervised run that is not over can go on, so its log is something to keep.
    """
    if any((path / name).exists() for name in (MODEL, BEST, OPTIMIZER, SUMMARY, REPORT, MARKET)):
        return False
    try:
        supervision, process = read_supervision(path), owner_of(path)
    except (OSError, ValueError, LookupError):
        return False
    is_over = supervision is None or supervision.is_over
    return is_over and has_ended(process, path)


class RunFolder:
    """The folder of one run, made by `create`, with its log of events open."""

    def __init__(self, path: Path, events: EventLog) -> None:
        self.path, self.events = path, events

    @classmethod
    def create(
        cls, out: str | Path | None, name: str, *, runs: Path = Path("runs"), overwrite: bool = False
    ) -> RunFolder:
        """Make `out`, or runs/<name>-<YYYYmmdd-HHMMSS> (-2, -3 ... if that is taken).

        Raises FolderError: not writable, a file, or the folder of another run.
        """
        path = runs if out is None else Path(out)
        if out is not None:
            check_out(out, overwrite=overwrite)
        try:
            if out is None:
                path = new_folder(runs, name)
            else:
                path.mkdir(parents=True, exist_ok=True)
            with _alone_in(path):
                if out is not None:
                    _check_free(path, overwrite=overwrite)  # a run may have begun there since
                    cls.clear(path)
                    forget_ended_supervisor(path)
                made = cls(path, EventLog(path / EVENTS))
            forget_earlier(path)
            return made
        except FileExistsError:  # another run was faster
            raise FolderError(f"out: {path} holds another run, expected a new or an empty folder") from None
        except OSError as error:
            raise FolderError(f"out: {error.filename} cannot be written: {error.strerror}") from None

    @staticmethod
    def clear(path: Path) -> None:
        """Remove the files of an earlier run, and no others; the log last: by it they are known as those of a run."""
        log = names_of(path / EVENTS)
        others = [name for name in files_in(path) if name not in log]
        for file in (path / name for name in [*others, *half_written(path), *log]):
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """The folder of a run whose process has died, to go on with it. Raises FolderError."""
        try:
            started = read_first(path / EVENTS, 8)
            newest = next(read_backwards(path / EVENTS))
            began_unix_s = next(each.event.unix_s for each in started if isinstance(each.event, RunStarted))
            now_s = max(time.time() - began_unix_s, newest.t_s)
            for name in half_written(path):  # by the process that has died
                (path / name).unlink(missing_ok=True)
            return cls(path, EventLog(path / EVENTS, continue_at_s=now_s))
        except (OSError, SchemaError, StopIteration) as error:
            raise FolderError(f"out: {path} holds no run to go on with ({error})") from None

    def write_config(self, text: str) -> None:
        """The resolved config, for this user alone where an address in it has a secret. Raises StorageError."""
        mode = 0o600 if without_secrets(text) != text else 0o666
        self.write_text(self.path / CONFIG, text, mode)

    def write_model(
        self, tables: Mapping[str, np.ndarray], model: Mapping[str, Any] | None = None, name: str = MODEL
    ) -> str:
        """The parameters as safetensors; returns their `params_sha256`. Raises StorageError, InputError.

        model: how the file holds them, as NumPy arrays or torch tensors; None: as the tables.
        """
        digest = params_sha256(tables)
        model = tables if model is None else model
        with replacing(self.path / name) as temporary:
            save_model(temporary, model, digest)
            # safetensors lets nobody else read it. Where a share gives all files to one user, others may not say so.
            with suppress(OSError):
                temporary.chmod(self.events.path.stat().st_mode)
        return digest

    def write_optimizer(self, state: Any) -> None:
        """optimizer.pt, for torch.load(weights_only=True). Raises StorageError."""
        import torch

        with replacing(self.path / OPTIMIZER) as temporary, temporary.open("wb") as file:
            try:
                torch.save(state, file)
            except RuntimeError as error:  # torch's own, which hides the one of the disk
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json. Raises StorageError."""
        self.write_text(self.path / SUMMARY, json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")

    def write_report(self, html: str) -> None:
        """report.html. Raises StorageError."""
        self.write_text(self.path / REPORT, html)

    @staticmethod
    def write_text(path: Path, text: str, mode: int = 0o666) -> None:
        """Replace one file, whole or not at all. mode: before the umask. Raises StorageError."""
        with replacing(path, mode) as temporary:
            temporary.write_text(text, encoding="utf-8")


def files_in(path: Path) -> list[str]:
    """The names that a run gives to its files in its folder, those of the log as they are there.

    Series only beside a log: files of such names in another folder are the user's own.
    """
    series = SERIES if (path / EVENTS).exists() else ()
    return [*dict.fromkeys([*names_of(path / EVENTS), *FILES, TRACE, MARKET, *series])]


def half_written(path: Path) -> list[str]:
    """The names of files that processes were writing when they were killed: each may be as large as the model."""
    found = ((file.name, _TEMPORARY.fullmatch(file.name)) for file in path.glob(".*.tmp"))
    return sorted(name for name, ours in found if ours is not None and ours[1] in (*FILES, TRACE))


def put_aside(path: Path, names: Sequence[str]) -> None:
    """Move the files of an earlier run to `EARLIER`, as far as they are there. Raises OSError.

    A supervised run checks its input in another process, after its supervisor has taken the folder: input that is wrong
    must not cost the run that was there.
    """
    for name in (name for name in names if os.path.lexists(path / name)):
        (path / EARLIER).mkdir(exist_ok=True)
        _move(path / name, path / EARLIER / name)


def put_back(path: Path) -> None:
    """Move the files of the earlier run back, if the new one has not begun. Raises OSError."""
    if has_earlier(path):
        for file in sorted((path / EARLIER).iterdir()):
            _move(file, path / file.name)
        (path / EARLIER).rmdir()


def has_earlier(path: Path) -> bool:
    """True while the files of an earlier run are aside: the new one has not begun."""
    return (path / EARLIER).is_dir()


def forget_earlier(path: Path) -> None:
    """Remove the files of the earlier run: the new one has begun. Raises OSError."""
    if has_earlier(path):
        # Under another name first: of a removal that fails half way nothing may be put back.
        doomed = path / f"{EARLIER}-{secrets.token_hex(4)}"
        os.rename(path / EARLIER, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _move(what: Path, to: Path) -> None:
    if to.is_dir() and not to.is_symlink():  # of a move that was broken off
        shutil.rmtree(to)
    os.replace(what, to)


def new_folder(runs: Path, name: str) -> Path:
    """Make runs/<name>-<YYYYmmdd-HHMMSS> (-2, -3 ... if that is taken). Raises OSError."""
    name = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    runs.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        path = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            attempt += 1


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path; what is written there becomes `path` at once, or is removed. mode: before the umask.
    Raises StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # In a folder from elsewhere it may be a link, and another file would be written.
        temporary.unlink(missing_ok=True)
        temporary.touch(mode, exist_ok=False)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StorageError(
            f"{path} could not be written: {why} ({_free(path.parent)}); what was written before is whole"
        ) from error
    finally:
        with suppress(OSError):  # it was renamed or never made, or its folder cannot be entered or written to
            temporary.unlink()


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:.1f} MiB free"
    except OSError as error:
        return f"free space unknown: {error.strerror}"


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numpy's scalars and arrays as Python's, non-finite numbers as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def for_others(value: Any) -> Any:
    """`value` as `plain` has it, without the secrets of addresses in its texts: a config with a presigned address goes
    to a tracker, and a report to colleagues."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {key: for_others(item) for key, item in value.items()}
    return [for_others(item) for item in value] if isinstance(value, list | tuple) else value
