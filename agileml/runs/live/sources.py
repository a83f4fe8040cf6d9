"""The sources of the page's events: the growing log of a run's folder, or the output of a job of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agileml.events.schema import Logged, RunEvent, SchemaError, from_line
from agileml.events.sums import Standing
from agileml.runs.event_log import EVENTS, iterate_events
from agileml.runs.live.view import PageView
from agileml.runs.owner import is_alive, is_here, owner_of
from agileml.runs.progress import parse_line


class GrowingLog:
    """The events of a log, and then those that are added to it, also when a new file takes the place of the old one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._inode, self._half = 0, ""

    def events(self) -> Iterator[Logged[RunEvent]]:
        """The events since the last call. Raises SchemaError."""
        if self._file is None:
            self._open()
            yield from iterate_events(self._path, older=True)
        yield from self._rest()
        if os.stat(self._path).st_ino != self._inode:
            yield from self._rest()
            self._file.close()
            self._open()
            yield from self._rest()

    def _open(self) -> None:
        self._file = self._path.open(encoding="utf-8")
        self._inode, self._half = os.fstat(self._file.fileno()).st_ino, ""

    def _rest(self) -> Iterator[Logged[RunEvent]]:
        while line := self._file.readline():
            self._half += line
            if not line.endswith("\n"):
                return
            whole, self._half = self._half, ""
            if '"log"' not in whole[:8]:
                yield from_line(whole)


def of_folder(folder: Path) -> Callable[[], dict[str, Any]]:
    """A function that returns the newest view of the run in a folder."""
    view, log = PageView(folder.name), GrowingLog(folder / EVENTS)

    def is_lost() -> bool:
        try:
            owner = owner_of(folder)
        except (OSError, ValueError, LookupError):
            return False  # it is just beginning
        return is_here(owner) and not is_alive(owner)

    def look() -> dict[str, Any]:
        try:
            for each in log.events():
                view.add(each)
        except (OSError, SchemaError) as error:
            view.say(f"the log cannot be read: {error}")
        if view.state == "running" and is_lost():
            view.end("ended without a result")
        return view.as_json()

    return look


def of_job(name: str, output: Callable[[], str], state: Callable[[], str]) -> Callable[[], dict[str, Any]]:
    """A function that returns the newest view of a job: its lines of progress, one every 5 s, and what else it said.

    output: everything that the job has printed; state: RUNNING, or one of the words for its end.
    """
    view, seen = PageView(name), 0

    def look() -> dict[str, Any]:
        nonlocal seen
        ended = {"SUCCEEDED": "done", "FAILED": "failed", "STOPPED": "stopped"}.get(state())
        lines = output().splitlines()
        for text in lines[seen:]:
            if (parsed := parse_line(text)) is not None:
                view.standing(Standing(**vars(parsed[0])), parsed[1])
            elif text.startswith("proteus: "):
                view.say(text.removeprefix("proteus: "))
        seen = len(lines)
        if ended is not None and view.state == "running":
            view.end(ended)
        return view.as_json()

    return look
