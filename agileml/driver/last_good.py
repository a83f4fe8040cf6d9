"""What a run that failed leaves: the last cut that was good, as model.safetensors, and a summary that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agileml.application import Array
from agileml.config.job import JobConfig, dump
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Finished
from agileml.errors import RunError
from agileml.events.run import RunFailed, Warned
from agileml.runs.event_log import read_events
from agileml.runs.folder import MODEL, RunFolder
from agileml.runs.report.page import build_report
from agileml.runs.summary import summarize

if TYPE_CHECKING:
    from agileml.process.head import HeadState


class Machines(Protocol):
    """Those of a run that failed, as far as they can still be asked."""

    def state(self) -> HeadState:
        """How things stand."""

    def result(self, finished: Finished) -> Sequence[Sequence[Array]]:
        """The blocks of all partitions of a cut."""


def write_last_good(
    error: RunError,
    machines: Machines,
    layout: Layout,
    folder: RunFolder,
    config: JobConfig,
    versions: Mapping[str, str],
) -> RunError:
    """The error, its sentence saying where the last good cut is; without one, the error itself. Raises StorageError."""
    try:
        halted = machines.state().halted
        kept = halted.kept if halted is not None else None
        if kept is None:
            return error
        tables = layout.whole(machines.result(kept))
    except Exception as problem:  # the machines may be gone as well; what failed first is what counts
        folder.events.write(Warned(f"the last cut could not be read: {problem}"))
        return error
    clock = kept.clock
    digest = folder.write_model(tables)
    folder.events.write(RunFailed(str(error), clock))
    events = read_events(folder.events.path)
    summary: dict[str, Any] = summarize(
        events, config, params_sha256=digest, metrics={}, split={}, versions=versions
    )
    summary |= {"failed": str(error), "model_clock": clock}
    folder.write_summary(summary)
    folder.write_report(build_report(dump(config), events, summary))
    where = folder.path / MODEL
    return RunError(f"{error}; the last good cut, of clock {clock}, is {where}", error.trace)
