"""The start of a run: names the processes that it waits for, shows the output of a process that does not come up, and
gives up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agileml.application import without_secrets
from agileml.driver.failures import begin_error
from agileml.driver.stop_signal import StopSignal
from agileml.errors import RunError

SAY_S = 10.0  # without another machine, until the run says what it waits for
OUTPUT_S = 30.0  # without another process, until it shows what that process printed
CHECK_S = 2.0  # between two looks at the head
LAST_LINES, LAST_BYTES = 12, 8192
MTIME_LAG_S = 1.0  # a file's time may lie behind time.time(): kernels stamp files with a coarser clock
RAYS_OWN = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray puts into every log
TOLD_TO_STOP = "told to stop before the first clock: there is no result"


class Startup:
    """Watches until the first view. `look` may be called at any rate; it speaks only when there is news."""

    def __init__(
        self,
        limit_s: float,
        stop_signal: StopSignal,
        say: Callable[[str], None],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        logs: Callable[[], Path | None] | None = None,
    ) -> None:
        """limit_s: the longest wait for the next machine. logs: where processes write what they print; None: where
        Ray's do."""
        self._limit_s, self._stop_signal, self._say, self._clock_s = limit_s, stop_signal, say, clock_s
        self._logs = logs or logs_folder
        self._since_s = clock_s()
        self._began_unix_s = time.time()
        self._up = 0
        self._said = ""
        self._has_shown = False

    def look(self, up: int, missing: str) -> None:
        """Take note that `up` processes are up and what is `missing` (empty: nothing).

        Raises RunError after `limit_s` without another process, if something is missing.
        """
        now_s = self._clock_s()
        if up != self._up or not missing:
            self._up, self._since_s = up, now_s
            return
        waited_s = now_s - self._since_s
        if waited_s >= SAY_S and missing != self._said:
            self._said = missing
            self._say(f"the run waits: it {missing}")
        if waited_s >= OUTPUT_S and not self._has_shown:
            self._has_shown = True
            for text in newest_output(self._logs(), self._began_unix_s):
                self._say(text)
        if waited_s >= self._limit_s:
            raise RunError(f"no machine came for machines.wait_s = {self._limit_s:g} s: the run {missing}")

    def result(self, reference: Any, what: str, watch_head: Callable[[], object]) -> Any:
        """The result of a Ray call to a process that is just starting. watch_head: see `fleet.Fleet`; one answer of the
        head that is late ends no run. Raises RunError."""
        import ray

        check_due_s = self._clock_s() + CHECK_S
        while not ray.wait([reference], timeout=0.2, fetch_local=False)[0]:
            if self._clock_s() >= check_due_s:
                watch_head()
                check_due_s = self._clock_s() + CHECK_S
            if self._stop_signal.is_asked:
                raise RunError(TOLD_TO_STOP)
            self.look(self._up, f"wants {what} to start")
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise begin_error(f"{what} cannot start", error) from error


def newest_output(folder: Path | None, since_unix_s: float) -> list[str]:
    """The last lines that Ray's processes on this host have written to standard error since then, with the file's name.

    A process that fails before it has a log of its own writes to that of its raylet.
    """
    if folder is None or not folder.is_dir():
        return []
    files = [file for name in ("worker-*.err", "raylet*.err") for file in folder.glob(name)]
    times = [(file.stat().st_mtime, file) for file in files]
    recent = [(mtime_s, file) for mtime_s, file in times if mtime_s >= since_unix_s - MTIME_LAG_S]
    texts = [(file, lines) for _, file in sorted(recent, reverse=True) if (lines := _last_lines(file))]
    failed = [text for text in texts if any("Error" in line for line in text[1])]
    if not texts:
        return [f"no process has printed an error to {folder}; nodes on other hosts keep their own logs"]
    file, lines = (failed or texts)[0]
    return [f"the last lines of {file}:", *(f"  {line}" for line in lines)]


def _last_lines(file: Path) -> list[str]:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - LAST_BYTES))
        lines = without_secrets(stream.read().decode(errors="replace")).splitlines()
    return [line for line in lines if line.strip() and not line.startswith(RAYS_OWN)][-LAST_LINES:]


def logs_folder() -> Path | None:
    """Where Ray's processes on this host write what they print; None if this process is no driver."""
    import ray

    node = ray._private.worker._global_node
    return None if node is None else Path(node.get_logs_dir_path())
