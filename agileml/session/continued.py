"""A run that continues in a new process after an earlier one has ended, as the log of the earlier one describes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agileml.errors import RunError
from agileml.events.observed import BestKept, Evaluated
from agileml.events.run import ClockDone, MembershipChanged, Process, RunRestarted
from agileml.events.schema import SchemaError
from agileml.events.sums import ClocksDone
from agileml.runs.event_log import EVENTS, iterate_events, read_backwards
from agileml.runs.folder import MARKET, FolderError
from agileml.runs.progress import Screen
from agileml.runs.supervision import Restart, read_supervision

if TYPE_CHECKING:
    from agileml.core.protocol.job import Job
    from agileml.process.spec import RunSpec
    from bidbrain.live.journal import Opened


@dataclass(frozen=True)
class Continued:
    """A run to continue. `count`: restarts. `clock`: the newest that was complete. `least_epoch`: the newest epoch."""

    folder: Path
    restart: Restart
    count: int
    clock: int
    least_epoch: int

    @classmethod
    def of(cls, folder: Path, restart: Restart) -> Continued:
        """Read the end of the log in `folder`. Raises FolderError, OSError."""
        try:
            return cls._of(folder, restart)
        except SchemaError as error:
            raise FolderError(f"out: {folder} holds no run to go on with ({error})") from None

    @classmethod
    def _of(cls, folder: Path, restart: Restart) -> Continued:
        clock = epoch = None
        for each in read_backwards(folder / EVENTS):
            match each.event:
                case ClockDone(done) | ClocksDone(clock=done) if clock is None:
                    clock = done
                case MembershipChanged() as change if epoch is None:
                    epoch = change.epoch
                    clock = change.base if clock is None else clock
                case RunRestarted() as earlier if clock is None:
                    clock = earlier.clock
            if epoch is not None:
                break
        supervision = read_supervision(folder)
        assert supervision is not None, "only supervised runs go on"
        return cls(folder, restart, len(supervision.restarts), clock or 0, epoch or 0)

    def beginning_at(self, clock: int) -> Continued:
        """The same from the checkpoint of this clock: who decided on the restart looked at the sizes of files alone,
        and may have taken a damaged one for whole."""
        return replace(self, restart=replace(self.restart, clock=clock))

    def market(self) -> Opened | None:
        """How the job of its market began; None: nothing has been bought yet. Raises RunError."""
        from bidbrain.live.journal import JOURNAL, JournalError, Opened, read_journal

        path = self.folder / MARKET / JOURNAL
        if not path.is_file():
            return None
        try:
            first = next(read_journal(path), None)
        except JournalError as error:
            raise RunError(str(error)) from None
        assert first is None or isinstance(first, Opened), "a service writes this line first"
        return first

    def event(self, process: Process) -> RunRestarted:
        """The event that records the restart in the log."""
        at = self.restart.clock
        return RunRestarted(self.restart.cause, at, max(0, self.clock - at), self.count, process)

    def best(self) -> BestKept | None:
        """The event of the parameters that best.safetensors holds; None if there is no such file."""
        events = (each.event for each in read_backwards(self.folder / EVENTS))
        return next((event for event in events if isinstance(event, BestKept)), None)

    def evaluations(self) -> Iterator[Evaluated]:
        """The evaluations of the log up to the checkpoint."""
        for each in iterate_events(self.folder / EVENTS):
            if isinstance(each.event, Evaluated) and each.event.clock <= self.restart.clock:
                yield each.event


def checked_clock(spec: RunSpec, job: Job) -> int:
    """Check, before a folder is made, that checkpoints can be written and that there is one to resume from.

    Returns its clock, 0 where the run begins at its start: a market buys for the work that is left.
    """
    from agileml.checkpoints.manifest import Identity
    from agileml.process.checkpoint_io import check_place, resumed

    check_place(spec)
    identity = Identity.of(spec.config, job.layout.tables, spec.application, job.layout.borders)
    found = resumed(spec, job, identity, lambda said: print(f"proteus: {said}", file=Screen()))
    return found.name.clock if found is not None else 0
