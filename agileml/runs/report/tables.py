"""The headline figures, the summary and the plan of a run as rows of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agileml.config.text import flat
from agileml.runs.progress import duration
from agileml.runs.report.market import tiles as market_tiles


def tiles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headline figures."""
    if not summary:
        return []
    gap_s = summary["longest_gap_s"]
    found = [
        ("clocks", f"{summary['clocks']:,}"),
        ("done again", f"{summary['clocks_redone']:,}"),
        ("time", duration(summary["seconds"])),
        ("longest gap", "-" if gap_s is None else f"{gap_s:.3g} s"),
        ("stages", " → ".join(map(str, summary["stages"])) or "-"),
    ]
    if restarts := summary.get("restarts"):
        longest_s = restarts["longest_s"]
        took = "" if longest_s is None else f", at most {longest_s:.1f} s"
        found.append(("restarts of the head", f"{restarts['count']}{took}"))
    found += market_tiles(summary)
    return found + [(name, _text(value)) for name, value in list(summary["metrics"].items())[:3]]


def flat_rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every value with its name, those of inner tables as above.name."""
    return [(name, _text(value)) for name, value in flat(values).items()]


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)


def _when(event: Mapping[str, Any]) -> float:
    at: float = event["at_clock"] if event.get("at_clock") is not None else event.get("at_s", 0.0)
    return at


def _at(t_s: float | None) -> str:
    return "-" if t_s is None else f"{t_s:.3f} s"


def plan_rows(
    planned: Sequence[Mapping[str, Any]], times_s: Mapping[int, Sequence[float | None]]
) -> list[tuple[str, str, str, str]]:
    """(clock or second, what, fired, finished) of each planned event in the order they happen. `times_s`: by its place
    in that order, when it fired and was finished."""
    in_order = sorted(planned, key=lambda event: (event.get("at_clock") is None, _when(event)))
    rows = []
    for index, event in enumerate(in_order):
        fields = {key: value for key, value in event.items() if key not in ("at_clock", "at_s")}
        given = {key: value for key, value in fields.items() if value is not None}
        what = ", ".join(key if value is True else f"{key} {value}" for key, value in given.items())
        when = f"{_when(event)}" if event.get("at_clock") is not None else f"{_when(event):g} s"
        fired_s, finished_s = times_s.get(index, (None, None))
        rows.append((when, what, _at(fired_s), _at(finished_s)))
    return rows
