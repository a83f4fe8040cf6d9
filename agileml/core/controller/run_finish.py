"""Ends a run: with its last cut or, at the deadline of a stop, with the committed cut even during a change."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.controller.control import Control
from agileml.core.controller.cut_keeper import CutKeeper
from agileml.core.protocol.commands import Finished


class RunFinish:
    """Records durably that the run is over, once the backups have all parts of its final cut, and then reports it."""

    def __init__(self, control: Control, cuts: CutKeeper) -> None:
        self._control = control
        self._cuts = cuts
        self._is_reported = False

    def report_again(self) -> None:
        """Report an end that is already durable: the controller that wrote it may have died before it reported it."""
        if not self._is_reported:
            self._report()

    def in_order(self) -> bool:
        """End the run if its last cut is committed and every member works under the durable view. True if so."""
        control = self._control
        may_end = control.plan.is_over or self._cuts.ending.is_stopping
        if not (self._cuts.is_done and may_end and control.is_quiet and control.has_all_reports):
            return False
        self._write()
        return True

    def at_deadline(self) -> bool:
        """Once the deadline of a stop has passed, end the run with the committed cut, even during a change. True if so,
        or if the cut's checkpoint must be written first.

        A change may wait for a machine that does not answer. No step before COMMIT destroys what the backups of the
        durable view hold.
        """
        control = self._control
        is_late = self._cuts.ending.is_late(control.now_s)
        if not is_late or control.is_quiet or not self._is_backed_up():
            return False
        self._cuts.begin_save()
        if self._cuts.is_done:
            self._write()
        return True

    def _is_backed_up(self) -> bool:
        """True when the backup of each part of the committed cut is alive and has the part."""
        control, view = self._control, self._control.view
        if view is None or control.record.committed.clock == 0:
            return False
        promises = control.change.promises if control.change is not None else {}
        for partition, node in enumerate(view.backup):
            # A backup has the parts that it staged for a view once it works under that view.
            if not control.members.is_alive(node) or control.members.epoch(node) != view.epoch:
                return False
            if (promise := promises.get(node)) is not None:
                if all(held != partition for held, _ in promise.backups):
                    return False
            elif self._cuts.is_torn or control.is_restarted:
                return False  # a new controller does not know yet what is lost
        return True

    def _write(self) -> None:
        self._control.persist(replace(self._control.record, finished=True), self._report)

    def _report(self) -> None:
        control, self._is_reported = self._control, True
        control.ask(Finished(control.record.committed.clock, control.durable.backup))
