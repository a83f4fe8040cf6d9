"""A view as OpenMetrics text, for Prometheus and dashboards: names end in their units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def openmetrics(view: Mapping[str, Any]) -> str:
    """The newest figures of a view (`agileml/runs/report/view.py:PageView.as_json`); unknown ones are left out."""
    return "\n".join([*_lines(view), "# EOF", ""])


def _lines(view: Mapping[str, Any]) -> Iterator[str]:
    run, now = _quoted(view["name"]), view["now"]
    yield from _gauge(
        "proteus_run", "1 for the state of the run", {f'run="{run}",state="{view["state"]}"': 1}
    )
    gauges = {
        "proteus_clocks": ("Clocks that are complete", now.get("clock")),
        "proteus_clocks_wanted": ("Clocks of the whole run", now.get("clocks")),
        "proteus_loss": ("Mean loss of the newest clock", _last(view["loss"])),
        "proteus_clocks_per_second": ("Clocks per second", view["clocks_per_s"]),
        "proteus_items_per_second": ("Items per second", _last(view["items"])),
        "proteus_waiting_ratio": ("Share of their time that machines wait", _last(view["waiting"])),
        "proteus_stage": ("Stage of the machines", now.get("stage")),
        "proteus_spent_usd": ("Dollars spent", now.get("spent_usd")),
        "proteus_run_age_seconds": ("Seconds since the start, by the newest event", view["t_s"]),
    }
    for name, (says, value) in gauges.items():
        if value is not None:
            yield from _gauge(name, says, {f'run="{run}"': value})
    if now:
        tiers = {f'run="{run}",tier="{tier}"': now[tier] for tier in ("reliable", "transient")}
        yield from _gauge("proteus_machines", "Machines that take part", tiers)
    if ends := Counter(lane[4] for lane in view["lanes"] if lane[3] is not None):
        gone = {f'run="{run}",reason="{_quoted(why)}"': count for why, count in sorted(ends.items())}
        yield from _gauge("proteus_machines_gone", "Machines that have left, of the newest 600", gone)
    if view["bytes"]:
        yield "# TYPE proteus_sent_bytes counter"
        yield "# UNIT proteus_sent_bytes bytes"
        yield "# HELP proteus_sent_bytes Bytes sent between machines, by purpose"
        for kind, count in view["bytes"].items():
            yield f'proteus_sent_bytes_total{{run="{run}",kind="{_quoted(kind)}"}} {count}'


def _gauge(name: str, says: str, by_labels: Mapping[str, float]) -> Iterator[str]:
    yield f"# TYPE {name} gauge"
    yield f"# HELP {name} {says}"
    for labels, value in by_labels.items():
        yield f"{name}{{{labels}}} {value}"


def _last(points: list[tuple[float, ...]]) -> float | None:
    return points[-1][1] if points else None


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
