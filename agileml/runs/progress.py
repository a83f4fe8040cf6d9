"""The progress of a run on the screen: a live block on a terminal, plain lines every few seconds elsewhere."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, Self, TypeVar, cast

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 40
RATE_WINDOW_S = 10.0  # over which clocks/s and the time left are measured
SEQUENTIAL = "sequential"  # the note of a run in one process
STEADY_S = 1.0  # after a rollback, until clocks count again, and then until they tell a rate


@dataclass(frozen=True)
class Snapshot:
    """The progress of a run: `clock` of `clocks` are complete. `stage` 0: not started; `loss` None: not known yet.

    `spent_usd`: what its machines have cost so far; None without a market.
    """

    clock: int
    clocks: int
    loss: float | None
    stage: int
    reliable: int
    transient: int
    note: str = ""
    spent_usd: float | None = None


class Rate:
    """Clocks per second over the last `RATE_WINDOW_S` seconds in which clocks went by; a rollback starts it anew.

    The time before the first clock, in which machines start, does not count. Nor does the first second after a
    rollback: the clocks that go by before the first reports of the new view come all at once.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._steady_s = -math.inf  # when it begins to count again

    def add(self, now_s: float, clock: int) -> None:
        """Record that `clock` clocks are complete at `now_s`."""
        if self._seen and clock < self._seen[-1][1]:
            self._seen.clear()
            self._steady_s = now_s + STEADY_S
        if len(self._seen) == 1 and (clock == self._seen[0][1] or now_s < self._steady_s):
            self._seen.clear()  # nothing has moved yet, or all at once
        self._seen.append((now_s, clock))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - RATE_WINDOW_S:
            self._seen.popleft()

    @property
    def clocks_per_s(self) -> float | None:
        """None while nothing has moved, and for two seconds after a rollback."""
        if not self._seen or self._seen[-1][0] < self._steady_s + STEADY_S:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None


class Losses:
    """The loss over a run in a few characters: the mean of each of at most `MOST_BARS` equal stretches of clocks."""

    def __init__(self) -> None:
        self._sums: list[list[float]] = []  # by stretch: sum, count
        self._clocks = 1  # of a stretch

    def add(self, clock: int, loss: float | None) -> None:
        """Record the loss of a clock, if it is known and finite. After a rollback the line goes on from there."""
        if loss is None or not math.isfinite(loss):
            return
        while clock // self._clocks >= MOST_BARS:
            self._clocks *= 2
            pairs = itertools.zip_longest(self._sums[::2], self._sums[1::2], fillvalue=[0.0, 0.0])
            self._sums = [[one[0] + two[0], one[1] + two[1]] for one, two in pairs]
        place = clock // self._clocks
        del self._sums[place + 1 :]
        self._sums += [[0.0, 0.0] for _ in range(place + 1 - len(self._sums))]
        self._sums[place][0] += loss
        self._sums[place][1] += 1.0

    def bars(self) -> str:
        """A bar for each stretch, from the least to the greatest loss; empty for fewer than two."""
        means = [total / count if count else None for total, count in self._sums]
        known = [mean for mean in means if mean is not None]
        if len(known) < 2:
            return ""
        low, high = min(known), max(known)
        steps = (len(BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(" " if mean is None else BARS[round((mean - low) * steps)] for mean in means)


def duration(seconds: float) -> str:
    """`seconds` for people: 8 s, 3:05, 2:03:05."""
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}" if minutes else f"{whole} s"


def line(snapshot: Snapshot, clocks_per_s: float | None) -> str:
    """The snapshot as one plain line."""
    parts = [f"clock {snapshot.clock}/{snapshot.clocks}"]
    if snapshot.loss is not None:
        parts.append(f"loss {snapshot.loss:.4g}")
    if snapshot.stage:
        parts.append(f"stage {snapshot.stage}")
    if snapshot.reliable or snapshot.transient:
        parts.append(f"machines {snapshot.reliable} reliable + {snapshot.transient} transient")
    if clocks_per_s:
        parts += [f"{clocks_per_s:.3g} clocks/s", f"{duration(left_s(snapshot, clocks_per_s))} left"]
    if snapshot.spent_usd is not None:
        parts.append(f"spent ${snapshot.spent_usd:.4f}")
    return ", ".join(parts) + (f" ({snapshot.note})" if snapshot.note else "")


def left_s(snapshot: Snapshot, clocks_per_s: float) -> float:
    """Seconds until the end at this speed."""
    return (snapshot.clocks - snapshot.clock) / clocks_per_s


_LINE = re.compile(
    r"clock (?P<clock>\d+)/(?P<clocks>\d+)(?:, loss (?P<loss>[-+.\deinfa]+))?(?:, stage (?P<stage>\d))?"
    r"(?:, machines (?P<reliable>\d+) reliable \+ (?P<transient>\d+) transient)?"
    r"(?:, (?P<rate>[-+.\de]+) clocks/s, [:\d]+(?: s)? left)?(?:, spent \$(?P<spent>[.\d]+))?(?: \((?P<note>.*)\))?"
)


def parse_line(text: str) -> tuple[Snapshot, float | None] | None:
    """The snapshot and the rate that `line` printed, to the digits that it shows; None for other text."""
    found = _LINE.fullmatch(text.strip())
    if found is None:
        return None
    loss, rate, spent = (float(found[name]) if found[name] else None for name in ("loss", "rate", "spent"))
    clock, clocks, stage, reliable, transient = (
        int(found[name] or 0) for name in ("clock", "clocks", "stage", "reliable", "transient")
    )
    return Snapshot(clock, clocks, loss, stage, reliable, transient, found["note"] or "", spent), rate


class Screen:
    """Standard error, where a full disk, a terminal or a pipe's reader that has gone costs what is shown, and never the
    run: Ctrl-C ends the `tee` of a pipe before the run has said a word.
    """

    def write(self, text: str) -> int:
        return self._tried(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        self._tried(self._stream.flush, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def _stream(self) -> Any:
        """Rich puts a stream of its own in this place, which would write to this one."""
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    @staticmethod
    def _tried(do: Callable[[], T], otherwise: T) -> T:
        try:
            return do()
        except OSError:
            return otherwise


def _console() -> Console:
    # FORCE_COLOR makes every file a terminal to rich: a block that is drawn anew eight times a second would fill a log.
    is_file = not sys.stderr.isatty()
    return Console(file=cast("IO[str]", Screen()), stderr=True, force_interactive=False if is_file else None)


class Progress:
    """A context manager; `show` may be called at any rate."""

    def __init__(
        self,
        clocks: int,
        *,
        console: Console | None = None,
        every_s: float = 5.0,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`every_s`: seconds between plain lines; a change of stage, machines or note is shown at once."""
        self._console = console or _console()
        self._clocks, self._every_s, self._clock_s = clocks, every_s, clock_s
        self._rate = Rate()
        self._losses = Losses()
        self._live: Live | None = None
        self._said: Snapshot | None = None
        self._said_s = -math.inf

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._live = Live(console=self._console, refresh_per_second=8, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """Print a line that stays."""
        self._console.print(f"proteus: {sentence}", highlight=False, markup=False, soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show the progress of the run."""
        now_s = self._clock_s()
        if snapshot.stage or snapshot.clock:  # else it has not begun
            self._rate.add(now_s, snapshot.clock)
        if self._live is not None:
            self._losses.add(snapshot.clock, snapshot.loss)
            self._live.update(panel(snapshot, self._rate.clocks_per_s, self._losses.bars()))
        elif self._is_news(snapshot) or now_s - self._said_s >= self._every_s:
            self._said, self._said_s = snapshot, now_s
            text = line(snapshot, self._rate.clocks_per_s)
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _is_news(self, snapshot: Snapshot) -> bool:
        said = self._said
        return said is None or (
            said.stage,
            said.reliable,
            said.transient,
            said.note,
            said.clock == said.clocks,
        ) != (
            snapshot.stage,
            snapshot.reliable,
            snapshot.transient,
            snapshot.note,
            snapshot.clock == snapshot.clocks,
        )


def panel(snapshot: Snapshot, clocks_per_s: float | None, losses: str = "") -> Table:
    """The snapshot as a bar with the figures below it. losses: the line that `Losses.bars` draws."""
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=snapshot.clocks, completed=snapshot.clock, width=40)
    table.add_row(bar, Text(f"clock {snapshot.clock}/{snapshot.clocks}", style="bold"))
    loss = "-" if snapshot.loss is None else f"{snapshot.loss:.5g}"
    stage = f"stage {snapshot.stage}" if snapshot.stage else "starting"
    machines = Text.assemble(
        (f"{'■' * snapshot.reliable}", "blue"), (f"{'■' * snapshot.transient}", "orange3"),
        f" {snapshot.reliable} reliable, {snapshot.transient} transient",
    )  # fmt: skip
    speed = "" if not clocks_per_s else f"{clocks_per_s:.3g} clocks/s"
    left = "" if not clocks_per_s else f"{duration(left_s(snapshot, clocks_per_s))} left"
    spent = "" if snapshot.spent_usd is None else f"spent ${snapshot.spent_usd:.4f}"
    table.add_row(machines, Text(f"{stage}  loss {loss}  {speed}  {left}  {spent}".rstrip()))
    if losses:
        table.add_row(Text(losses, style="green"), Text("loss so far", style="dim"))
    if snapshot.note:
        table.add_row(Text(snapshot.note, style="dim"), "")
    return table
