"""The end of a profile: machines report spans periodically, and the driver collects the last batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from agileml.core.compute.spans import Spans
from agileml.runs.trace import Trace

POLL_S = 0.01


def complete(
    trace: Trace,
    ends: Mapping[str, Spans | None],
    arriving: Callable[[], Iterable[tuple[str, Spans]]],
    limit_s: float,
) -> str | None:
    """Wait for the spans that are in transit to the head, then take the last ones of every machine.

    ends: by machine, None for one that did not answer. arriving: what the head has received since the last call.
    Returns a sentence that counts the spans missing after `limit_s`; None if the trace is whole. Spans that a later
    batch has overtaken are not waited for: the controller that had them is dead.
    """
    sent = {machine: end.recorded - len(end.rows) for machine, end in ends.items() if end is not None}
    until_s = time.monotonic() + limit_s
    while True:
        for machine, spans in arriving():
            trace.add(machine, spans)
        late = {machine for machine, count in sent.items() if trace.reached(machine) < count}
        if not late or time.monotonic() >= until_s:
            break
        time.sleep(POLL_S)
    missing = {m: count - trace.received(m) for m, count in sent.items() if trace.received(m) < count}
    slow = [f"the last spans of {machine}" for machine, end in ends.items() if end is None]
    slow += [f"{count} spans of {machine}" for machine, count in missing.items() if machine in late]
    lost = [f"{count} spans of {machine}" for machine, count in missing.items() if machine not in late]
    for machine, end in ends.items():
        if end is not None:
            trace.add(machine, end)
    reasons = [f"{', '.join(slow)}, which did not come within {limit_s:g} s"] if slow else []
    reasons += [f"{', '.join(lost)}, which a controller took with it when it died"] if lost else []
    return f"trace.json lacks {', and '.join(reasons)}" if reasons else None
