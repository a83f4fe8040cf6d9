"""report.html of a run: one file with nothing from outside, from config.yaml, events.jsonl and summary.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from agileml.config.text import ConfigError, parse_yaml
from agileml.runs.folder import CONFIG, EVENTS, REPORT, SUMMARY, RunFolder, read_events
from agileml.runs.progress import duration
from agileml.runs.report.market import decisions
from agileml.runs.report.market import tiles as market_tiles
from agileml.runs.summary import Event, of_kind, summarize

__all__ = ["ReportError", "build_report", "rebuild", "summarize"]


class ReportError(ValueError):
    """A folder that no report can be made from: one sentence."""


def build_report(config_text: str, events: Sequence[Event], summary: Mapping[str, Any]) -> str:
    """The HTML of a run. `summary` may be empty: a run that did not end is reported as far as it came."""
    from agileml.runs.report.plots import pictures

    config, _ = parse_yaml(config_text, CONFIG)
    started = next(iter(of_kind(events, "run_started")), {})
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(files("agileml.runs.report").joinpath("page.html").read_text("utf-8")).render(
        name=started.get("config_name", "run"),
        tiles=_tiles(summary),
        errors=[_sentence(event) for event in of_kind(events, "error")],
        unfinished=not summary,
        pictures=pictures(events) if events else [],
        decisions=decisions(events),
        rows=_flat(summary),
        plan=_plan(config.get("plan") or [], events),
        timeline=[(f"{e['t_s']:.3f}", e["kind"], _sentence(e)) for e in events if e["kind"] in TIMELINE],
        config=config_text,
    )


def rebuild(folder: Path) -> Path:
    """Write report.html of a run's folder anew; returns its path. Raises ReportError, StorageError."""
    for name in (CONFIG, EVENTS):
        if not (folder / name).is_file():
            raise ReportError(f"{folder} holds no {name}, expected the folder of a run")
    try:
        events = read_events(folder / EVENTS)
        summary = json.loads((folder / SUMMARY).read_text("utf-8")) if (folder / SUMMARY).is_file() else {}
        html = build_report((folder / CONFIG).read_text("utf-8"), events, summary)
    except (json.JSONDecodeError, ConfigError, UnicodeDecodeError, KeyError) as error:
        raise ReportError(f"{folder} holds a damaged log, summary or config: {error!r}") from None
    except OSError as error:
        raise ReportError(f"{error.filename} cannot be read: {error.strerror}") from None
    RunFolder.write_text(folder / REPORT, html)
    return folder / REPORT


TIMELINE = (
    "run_started",
    "join",
    "view",
    "notice",
    "short_notice",
    "released",
    "lost",
    "stage_auto",
    "plan",
    "fault",
    "checkpoint_failed",
    "warning",
    "waiting",
    "gave_up",
    "error",
    "failure",
    "stopping",
    "stopped",
    "failed",
    "finished",
)


def _sentence(event: Event) -> str:
    machines = ", ".join(map(str, event.get("machines", ())))
    match event["kind"]:
        case "run_started":
            return f"{event['config_name']} starts"
        case "join":
            return f"{machines} joined"
        case "view":
            redone = f"; {event['redone']} clocks again" if event.get("redone") else ""
            back = f", rolled back to clock {event['base']}{redone}" if event.get("rolled_back") else ""
            fleet = f"{event['reliable']} reliable + {event['transient']} transient"
            return f"epoch {event['epoch']}, stage {event['stage']}, {fleet}{back} ({event['reason']})"
        case "notice":
            return f"{machines} will go in {event['warning_s']:.1f} s"
        case "released":
            return f"{machines} may go, nothing is on it any more"
        case "lost":
            return f"{machines} lost: {event['reason']}"
        case "plan":
            return f"{event['event']} ({event['status']})"
        case "fault":
            lasts = f", {event['seconds']:g} s" if event.get("seconds") else ""
            return f"{event['fault']}{lasts}: {machines or 'the controller'}"
        case "checkpoint_failed":
            return f"checkpoint of clock {event['clock']} could not be written: {event['reason']}"
        case "warning" | "stage_auto" | "short_notice":
            return str(event["reason"])
        case "waiting":
            return (
                f"waits up to {event['limit_s']:g} s for {machines}, which may come back: {event['reason']}"
            )
        case "gave_up":
            return f"waited {event['waited_s']:.1f} s, goes on without: {event['reason']}"
        case "failure":
            count = f"{event['count']} of {event['of']}"
            return f"the process of {event['machine']} ended by itself ({event['cause']}), {count}"
        case "stopping":
            return f"told to stop at clock {event['clock']}: ends with the next cut"
        case "stopped":
            return f"ended with the cut of clock {event['clock']}"
        case "failed":
            return f"{event['reason']}; the model is that of clock {event['clock']}"
        case "finished":
            return f"done after {event['seconds']:.2f} s"
        case _:
            rest = {key: value for key, value in event.items() if key not in ("t_s", "kind") and value}
            return ", ".join(f"{key} {value}" for key, value in rest.items())


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The few figures that one looks at first."""
    if not summary:
        return []
    gap_s = summary["longest_gap_s"]
    tiles = [
        ("clocks", f"{summary['clocks']:,}"),
        ("done again", f"{summary['clocks_redone']:,}"),
        ("time", duration(summary["seconds"])),
        ("longest gap", "-" if gap_s is None else f"{gap_s:.3g} s"),
        ("stages", " → ".join(map(str, summary["stages"])) or "-"),
    ]
    tiles += market_tiles(summary)
    return tiles + [(name, _text(value)) for name, value in list(summary["metrics"].items())[:3]]


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{above}{name}.")
        else:
            rows.append((f"{above}{name}", _text(value)))
    return rows


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


def _plan(planned: Sequence[Mapping[str, Any]], events: Sequence[Event]) -> list[dict[str, str]]:
    """Each planned event in the order they happen, with when it fired and was finished."""
    rows = []
    said = of_kind(events, "plan")
    in_order = sorted(planned, key=lambda event: (event.get("at_clock") is None, _when(event)))
    for index, event in enumerate(in_order):
        when = {e["status"]: f"{e['t_s']:.3f} s" for e in said if e["index"] == index}
        told = {key: value for key, value in event.items() if key not in ("at_clock", "at_s")}
        what = ", ".join(f"{key} {value}" for key, value in told.items() if value is not None)
        rows.append(
            {
                "clock": str(_when(event)) if event.get("at_clock") is not None else f"{_when(event):g} s",
                "what": what,
                "fired": when.get("fired", "-"),
                "finished": when.get("finished", "-"),
            }
        )
    return rows
