"""A run that failed leaves its last committed cut as model.safetensors, and a summary that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agileml.application import Array
from agileml.config.job import JobConfig, dump
from agileml.core.parameters.layout import Layout
from agileml.driver.best_model import BestRule
from agileml.errors import RunError
from agileml.events.observed import BestKept
from agileml.events.run import RunFailed, Warned
from agileml.events.schema import events_of
from agileml.runs.event_log import read_events
from agileml.runs.folder import MODEL, RunFolder, StorageError
from agileml.runs.report.page import build_report
from agileml.runs.summary import summarize

if TYPE_CHECKING:
    from agileml.driver.actor_group import ActorGroup


def write_last_good(
    error: RunError,
    machines: ActorGroup,
    layout: Layout,
    folder: RunFolder,
    config: JobConfig,
    versions: Mapping[str, str],
    as_model: Callable[[Mapping[str, Array]], Mapping[str, Any]] = dict,
) -> RunError:
    """Write the last committed cut, if there is one, in the form that `as_model` gives it.

    Returns the error, with a sentence that names the file, or says why there is none.
    """
    try:
        halted = machines.state().halted
        kept = halted.kept if halted is not None else None
        if kept is None:
            return error
        tables = layout.whole(machines.result(kept))
    except Exception as problem:  # the machines may be gone as well; the first failure counts
        folder.events.write(Warned(f"the last cut could not be read: {problem}"))
        return error
    clock, where = kept.clock, folder.path / MODEL
    try:
        digest = _written(folder, tables, as_model)
    except StorageError as problem:
        return RunError(
            f"{error}; the last good cut, of clock {clock}, could not be kept: {problem}", error.trace
        )
    folder.events.write(RunFailed(str(error), clock))
    sentence = f"{error}; the last good cut, of clock {clock}, is {where}"
    events = read_events(folder.events.path)
    summary: dict[str, Any] = summarize(
        events, config, params_sha256=digest, metrics={}, split={}, versions=versions
    )
    summary |= {"failed": str(error), "model_clock": clock}
    if (rule := config.keep_best) is not None:
        best = events_of(events, BestKept)
        summary |= BestRule(rule.metric, rule.mode, best[-1] if best else None).summary()
    try:
        folder.write_summary(summary)
        folder.write_report(build_report(dump(config), events, summary))
    except StorageError as problem:
        sentence = f"{sentence}; {problem}"
    return RunError(sentence, error.trace)


def _written(
    folder: RunFolder,
    tables: Mapping[str, Array],
    as_model: Callable[[Mapping[str, Array]], Mapping[str, Any]],
) -> str:
    """Write the model, or the tables as they are where the application's own code fails: why the run did is to be
    told. Raises StorageError."""
    try:
        return folder.write_model(tables, as_model(tables))
    except StorageError:
        raise
    except Exception as problem:
        folder.events.write(Warned(f"as_model(): {type(problem).__name__}: {problem}; the tables are kept"))
        return folder.write_model(tables)
