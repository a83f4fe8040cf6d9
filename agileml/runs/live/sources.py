"""The sources of the page's events: the growing log of a run's folder, or the output of a job of a cluster."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agileml.config.text import ConfigError
from agileml.events.run import RunStarted
from agileml.events.schema import Logged, RunEvent, from_line
from agileml.events.sums import Standing
from agileml.runs.event_log import EVENTS, iterate_events, newest_segment
from agileml.runs.folder import CONFIG, SUMMARY
from agileml.runs.owner import has_ended, owner_of
from agileml.runs.progress import parse_line
from agileml.runs.report.page import DAMAGED, in_full
from agileml.runs.report.view import MOST_NEWS, PageView


class GrowingLog:
    """The events of a log, and then those that are added to it, also when a new file takes the place of the old one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._inode = self._segment = 0

    def events(self) -> Iterator[Logged[RunEvent]]:
        """The events since the last call. Raises SchemaError."""
        if self._file is None:
            self._open()
            yield from iterate_events(self._path, older=True)
        yield from self._rest()
        if os.stat(self._path).st_ino != self._inode:
            yield from self._rest()
            self._file.close()
            became = self._segment + 1
            self._open()
            # Several files may have come since the last look, as while the command was stopped with Ctrl-Z.
            between = range(became + 1, self._segment + 1)
            yield from iterate_events(self._path, older=True, numbers=between)
            yield from self._rest()

    def _open(self) -> None:
        self._segment = -1
        while self._segment != (newest := newest_segment(self._path)):  # a file may just end
            self._segment, self._file = newest, self._path.open("rb")
        self._inode = os.fstat(self._file.fileno()).st_ino

    def _rest(self) -> Iterator[Logged[RunEvent]]:
        begin = self._file.tell()
        while (line := self._file.readline()).endswith(b"\n"):
            if b'"log"' not in line[:8]:
                yield from_line(line.decode())
            begin = self._file.tell()
        # Half a line is read again: the next process of the run may write another one there.
        self._file.seek(begin)


class RunPage:
    """The page of the run in a folder: its log as far as it goes, its config, and its summary once it has one."""

    def __init__(self, folder: Path, most_news: int = MOST_NEWS) -> None:
        self._folder, self._most_news = folder, most_news
        self._view, self._log = PageView(folder.name, most_news), GrowingLog(folder / EVENTS)
        self._has_begun = False
        self._config, self._summary = "", dict[str, Any]()

    def _add(self, logged: Logged[RunEvent]) -> None:
        """Take the next event. The start of another run that has replaced this one begins a new view."""
        if isinstance(logged.event, RunStarted):
            if self._has_begun:
                version = self._view.version  # who follows the page asks for a later one
                self._view = PageView(self._folder.name, self._most_news)
                self._view.version = version
                self._config, self._summary = "", {}
            self._has_begun = True
        self._view.add(logged)

    def look(self) -> dict[str, Any]:
        """The newest view."""
        try:
            for each in self._log.events():
                self._add(each)
            view = self._view
            if not self._config and (self._folder / CONFIG).is_file():
                self._config = (self._folder / CONFIG).read_text("utf-8")
            if view.state == "running":
                self._summary = {}  # of a process before, whose run goes on
            elif not self._summary and (self._folder / SUMMARY).is_file():
                self._summary = json.loads((self._folder / SUMMARY).read_text("utf-8"))
                view.version += 1
        except (OSError, ValueError) as error:  # a SchemaError, and damaged JSON, are ValueErrors
            view = self._view
            view.say(f"the run cannot be read: {error}")
        if view.state == "running" and self._is_lost():
            view.end("ended without a result")
        try:
            return in_full(view.as_json(), self._config, self._summary)
        except DAMAGED as error:  # written by hand, by another version, or half
            view.say(
                f"{CONFIG} or {SUMMARY} cannot be read: {error if type(error) is ConfigError else repr(error)}"
            )
            return in_full(view.as_json(), "", {})

    def _is_lost(self) -> bool:
        try:
            return has_ended(owner_of(self._folder), self._folder)
        except (OSError, ValueError, LookupError):
            return False  # it is just beginning


def of_job(name: str, output: Callable[[], str], state: Callable[[], str]) -> Callable[[], dict[str, Any]]:
    """A function that returns the newest view of a job: its lines of progress, one every 5 s, and what else it said.

    output: everything that the job has printed; state: RUNNING, or one of the words for its end. Both may raise
    ValueError, as they do while the cluster does not answer: the page says so, and asks again.
    """
    view, seen = PageView(name), 0

    def look() -> dict[str, Any]:
        nonlocal seen
        try:
            ended = {"SUCCEEDED": "done", "FAILED": "failed", "STOPPED": "stopped"}.get(state())
            said = output()
            # Half a line is taken once it is whole; of a job that has ended nothing more comes.
            lines = (said if ended is not None else said[: said.rfind("\n") + 1]).splitlines()
        except ValueError as error:
            view.say(f"the job cannot be read: {error}")
            return view.as_json()
        for text in lines[seen:]:
            if (parsed := parse_line(text)) is not None:
                snapshot, clocks_per_s = parsed
                # Mixed precision may overflow.
                is_known = snapshot.loss is not None and math.isfinite(snapshot.loss)
                standing = Standing(**{**vars(snapshot), "loss": snapshot.loss if is_known else None})
                view.standing(standing, clocks_per_s)
            elif text.startswith("proteus: "):
                view.say(text.removeprefix("proteus: "))
        seen = len(lines)
        if ended is not None and view.state == "running":
            view.end(ended)
        return view.as_json()

    return look
