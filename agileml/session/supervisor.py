"""Keeps a run going: starts its process, and starts it again from the newest checkpoint when it has lost its state.

It has when the process itself, Ray's head, the controller for good, or all reliable machines have ended. The run's
process (the driver) is a child of the supervisor and dies with it. The same command then goes on with it.
`session/restarts.py` decides, `runs/supervision.py` is the record, which also says that the run is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from agileml.driver.stop_signal import SIGNALS, leave_terminal
from agileml.runs.folder import RunFolder, StorageError
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision, read_supervision
from agileml.session.places import return_to
from agileml.session.restarts import LONGEST_WAIT_S, Next, judge, known_clock


class Supervisor:
    """Supervises the run in `folder`, whose process `command` starts, from the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        newest_clock: Callable[[], int | None],
        say: Callable[[str], None],
        pause_s: float = LONGEST_WAIT_S,
    ) -> None:
        """newest_clock: that of the newest whole checkpoint, 0 without one, None while they cannot be read. say: prints
        a sentence. pause_s: between two attempts to write on a full disk, or to read a file system that is away."""
        self._command, self._folder, self._newest_clock, self._say = command, folder, newest_clock, say
        self._pause_s = pause_s
        self._base = os.getcwd()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def run(self, most: int) -> int:
        """Supervise until the run is over; returns its exit code. If the folder has a record, continues from it.

        most: restarts in a row without a newer checkpoint.
        """
        before = read_supervision(self._folder)
        earlier = 0
        if before is None:
            self._write(Supervision(this_process(), most))
        else:
            before = replace(before, process=this_process(), most=most)
            # At once: to look for checkpoints may take long, and the same command, given twice, must see who was first.
            with suppress(StorageError):
                self._write(before)
            clock = known_clock(self._newest_clock(), before.restarts)
            self._begin_again(before, "its supervisor had ended", clock)
            earlier = len(before.restarts) + 1
        for number in SIGNALS:
            if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._forward)
        while True:
            code = self._run_child()
            record = self._read()
            if record is None:
                return 128 - code if code < 0 else code or 1
            if record.is_over:
                return 128 - code if code < 0 else code
            newest = self._newest_clock()
            is_stopping = self._stopping.is_set()
            verdict = judge(code, newest, record.restarts, most, is_stopping=is_stopping, earlier=earlier)
            self._say(verdict.reason)
            is_over = verdict.next is not Next.AGAIN or self._stopping.wait(verdict.wait_s)
            if is_over or not self._begin_again(record, verdict.cause, verdict.clock):
                return 128 - code if code < 0 else code

    def _read(self) -> Supervision | None:
        """The record, once its file system can be read, which may be away for a while; None, after a sentence, where
        there is none any more, or the run was told to stop meanwhile."""
        is_reported = False
        while True:
            try:
                record = read_supervision(self._folder)
            except OSError as error:
                if not is_reported:
                    why = f"{self._folder / SUPERVISION} could not be read: {error.strerror}"
                    self._say(f"{why}; it is tried again every {self._pause_s:g} s")
                is_reported = True
                if self._stopping.wait(self._pause_s):
                    return None
                continue
            if record is None:
                self._say(
                    f"{self._folder} holds no {SUPERVISION} any more: somebody has removed it, and the run ends"
                )
            return record

    def _begin_again(self, record: Supervision, cause: str, clock: int) -> bool:
        """Record a restart, once there is room on the disk for it; False: told to stop before."""
        begun = replace(record, restarts=(*record.restarts, Restart(time.time(), cause, clock)))
        is_reported = False
        while True:
            try:
                self._write(begun)
            except StorageError as error:
                if not is_reported:
                    self._say(f"{error}; it is tried again every {self._pause_s:g} s")
                is_reported = True
                if self._stopping.wait(self._pause_s):
                    return False
            else:
                return True

    def _write(self, record: Supervision) -> None:
        RunFolder.write_text(self._folder / SUPERVISION, record.to_text())

    def _run_child(self) -> int:
        return_to(self._base)
        try:
            # A process group of its own: Ctrl-C reaches the supervisor, which passes it on once.
            self._child = subprocess.Popen([*self._command], process_group=0)
        except OSError as error:  # as of a host that is short of memory or processes
            self._say(f"the run's process could not be started: {error}")
            return 1
        if self._stopping.is_set():
            self._child.terminate()
        return self._child.wait()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._stopping.set()
        if number == signal.SIGHUP:
            leave_terminal()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
