"""The end of a profile: machines report spans periodically, and the driver collects the last batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from agileml.core.compute.spans import Spans
from agileml.process.tracing import ProfileEnd
from agileml.runs.trace import Trace

POLL_S = 0.01


def complete(
    trace: Trace,
    ends: Mapping[str, ProfileEnd | None],
    arriving: Callable[[], Iterable[tuple[str, Spans]]],
    limit_s: float,
) -> str | None:
    """Take the last spans of every machine, and wait for those still in transit to the head.

    ends: by machine, None for one that did not answer. arriving: what the head has received since the last call.
    Returns a sentence that counts the spans missing after `limit_s`; None if the trace is whole.
    """
    for machine, end in ends.items():
        if end is not None:
            trace.add(machine, end.rows)
    until_s = time.monotonic() + limit_s
    while True:
        for machine, spans in arriving():
            trace.add(machine, spans.rows)
        missing = {
            machine: end.recorded - trace.received(machine)
            for machine, end in ends.items()
            if end is not None and trace.received(machine) < end.recorded
        }
        if not missing or time.monotonic() >= until_s:
            break
        time.sleep(POLL_S)
    silent = [f"the last spans of {machine}" for machine, end in ends.items() if end is None]
    lost = [f"{count} spans of {machine}" for machine, count in missing.items()]
    if not silent and not lost:
        return None
    return f"trace.json lacks {', '.join([*silent, *lost])}: they did not come within {limit_s:g} s"
