"""report.html of a run: one file with nothing from outside, from config.yaml, events.jsonl and summary.json alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from agileml.config.hardware import Split
from agileml.config.text import ConfigError, parse_yaml
from agileml.events.market import MarketLeftOpen
from agileml.events.run import (
    CheckpointFailed,
    ExchangeFailed,
    FaultFired,
    GaveUpWaiting,
    HelpRefused,
    MachineLost,
    MachineNoticed,
    MachineQuarantined,
    MachineReleased,
    MachinesJoined,
    MembershipChanged,
    OverlapDecided,
    PlanFinished,
    PlanFired,
    ProcessDied,
    RemedyDecided,
    RunFailed,
    RunFinished,
    RunRestarted,
    RunStarted,
    RunStopped,
    ShortNoticeJudged,
    SplitDecided,
    StageJudged,
    StopAsked,
    SuperstepPlanned,
    UnitsPlanned,
    UserCodeFailed,
    WaitingForSilent,
    Warned,
)
from agileml.events.schema import Log, RunEvent, SchemaError, events_of, of_type
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import CONFIG, REPORT, SUMMARY, RunFolder
from agileml.runs.help import help_rows
from agileml.runs.progress import duration
from agileml.runs.report.market import decisions
from agileml.runs.report.market import tiles as market_tiles
from agileml.runs.summary import summarize

__all__ = ["ReportError", "build_report", "rebuild", "summarize"]


class ReportError(ValueError):
    """No report can be made from a folder; the message is one sentence."""


def build_report(config_text: str, log: Log, summary: Mapping[str, Any]) -> str:
    """The HTML of a run. `summary` may be empty: an unfinished run is reported as far as it got."""
    from agileml.runs.report.plots import pictures

    config, _ = parse_yaml(config_text, CONFIG)
    started = events_of(log, RunStarted)
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return template.from_string(files("agileml.runs.report").joinpath("page.html").read_text("utf-8")).render(
        name=started[0].config_name if started else "run",
        tiles=_tiles(summary),
        errors=[sentence(e.event) for e in log if isinstance(e.event, UserCodeFailed | MarketLeftOpen)],
        unfinished=not summary,
        pictures=pictures(log) if log else [],
        decisions=decisions(log),
        rows=_flat(summary),
        help_rows=help_rows(log),
        plan=_plan(config.get("plan") or [], log),
        timeline=[
            (f"{e.t_s:.3f}", e.event.kind, text) for e in log if (text := sentence(e.event)) is not None
        ],
        config=config_text,
    )


def rebuild(folder: Path) -> Path:
    """Write report.html of a run's folder anew; returns its path. Raises ReportError, StorageError."""
    for name in (CONFIG, EVENTS):
        if not (folder / name).is_file():
            raise ReportError(f"{folder} holds no {name}, expected the folder of a run")
    try:
        log = read_events(folder / EVENTS)
        summary = json.loads((folder / SUMMARY).read_text("utf-8")) if (folder / SUMMARY).is_file() else {}
        html = build_report((folder / CONFIG).read_text("utf-8"), log, summary)
    except SchemaError as error:
        raise ReportError(str(error)) from None
    except (json.JSONDecodeError, ConfigError, UnicodeDecodeError, KeyError) as error:
        raise ReportError(f"{folder} holds a damaged log, summary or config: {error!r}") from None
    except OSError as error:
        raise ReportError(f"{error.filename} cannot be read: {error.strerror}") from None
    RunFolder.write_text(folder / REPORT, html)
    return folder / REPORT


REMEDIES = {
    "static": "the units stay with their machines",
    "lbbsp": "units are shared out by speed",
    "helping": "machines help each other",
}


Tuned = UnitsPlanned | OverlapDecided | SplitDecided | SuperstepPlanned | RemedyDecided | HelpRefused


def _tuning(event: Tuned) -> str:
    """The sentence for a choice that machines made from their own measurements."""
    if isinstance(event, RemedyDecided):
        return f"from clock {event.clock} on {REMEDIES.get(event.remedy, event.remedy)}: {event.reason}"
    if isinstance(event, HelpRefused):
        return f"{event.machine} helps no other machine: {event.reason}"
    if isinstance(event, SplitDecided):
        split = Split(event.workers, event.threads)
        return f"{event.machine} computes with {split} from clock {event.clock} on: {event.reason}"
    if not isinstance(event, OverlapDecided):
        shares = ", ".join(f"{machine} {count}" for machine, count in event.units.items())
        what = (
            f"units of clock {event.clock}"
            if isinstance(event, UnitsPlanned)
            else f"superstep at minibatch {event.position}"
        )
        return f"{what}: {shares} ({event.reason})"
    does = "overlaps" if event.overlaps else "does not overlap"
    return f"{event.machine} {does} from clock {event.clock} on: {event.reason}"


def sentence(event: RunEvent) -> str | None:
    """The timeline's text for an event; None if it is only drawn or counted."""
    match event:
        case RunStarted(config_name):
            return f"{config_name} starts"
        case RunRestarted(cause, base, again, count):
            return f"{cause}; goes on from clock {base}, {again} clocks again (restart {count})"
        case MachinesJoined(machines):
            return f"{', '.join(machines)} joined"
        case MembershipChanged():
            return _change(event)
        case MachineNoticed(machine, warning_s):
            return f"{machine} will go in {warning_s:.1f} s"
        case MachineReleased(machine):
            return f"{machine} may go, nothing is on it any more"
        case MachineLost(machine, loss, detail):
            return f"{machine} lost: {loss}{f' ({detail})' if detail else ''}"
        case PlanFired(_, planned):
            return f"{planned} (fired)"
        case PlanFinished(_, planned):
            return f"{planned} (finished)"
        case FaultFired(fault, machines, seconds):
            lasts = f", {seconds:g} s" if seconds else ""
            return f"{fault}{lasts}: {', '.join(machines) or 'the controller'}"
        case CheckpointFailed(clock, reason):
            return f"checkpoint of clock {clock} could not be written: {reason}"
        case (
            Warned(reason)
            | StageJudged(reason=reason)
            | ShortNoticeJudged(reason=reason)
            | MarketLeftOpen(reason)
        ):
            return reason
        case _ if isinstance(event, Tuned):
            return _tuning(event)
        case MachineQuarantined(machine, _, _, problem, _, count, most):
            return f"work failed on {machine}, which is sent away ({count} of {most}): {problem}"
        case UserCodeFailed(machine, problem):
            return f"machine {machine}: {problem}"
        case ExchangeFailed(machine, epoch, reason):
            return f"the all-reduce of epoch {epoch} failed at {machine}: {reason}"
        case WaitingForSilent(machines, reason, limit_s):
            names = ", ".join(machines)
            return f"waits up to {limit_s:g} s for {names}, which may come back: {reason}"
        case GaveUpWaiting(waited_s, reason):
            return f"waited {waited_s:.1f} s, goes on without: {reason}"
        case ProcessDied(machine, cause, count, most):
            return f"the process of {machine} ended by itself ({cause}), {count} of {most}"
        case StopAsked(clock):
            return f"told to stop at clock {clock}: ends with the next cut"
        case RunStopped(clock):
            return f"ended with the cut of clock {clock}"
        case RunFailed(reason, clock):
            return f"{reason}; the model is that of clock {clock}"
        case RunFinished(seconds):
            return f"done after {seconds:.2f} s"
        case _:
            return None


def _change(event: MembershipChanged) -> str:
    redone = f"; {event.redone} clocks again" if event.redone else ""
    back = f", rolled back to clock {event.base}{redone}" if event.rolled_back else ""
    fleet = f"{event.reliable} reliable + {event.transient} transient"
    return f"epoch {event.epoch}, stage {event.stage}, {fleet}{back} ({event.trigger}: {event.reason})"


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headline figures."""
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
    if restarts := summary.get("restarts"):
        longest_s = restarts["longest_s"]
        took = "" if longest_s is None else f", at most {longest_s:.1f} s"
        tiles.append(("restarts of the head", f"{restarts['count']}{took}"))
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


def _at(t_s: float | None) -> str:
    return "-" if t_s is None else f"{t_s:.3f} s"


def _plan(planned: Sequence[Mapping[str, Any]], log: Log) -> list[dict[str, str]]:
    """Each planned event in the order they happen, with when it fired and was finished."""
    rows = []
    fired = {each.event.index: each.t_s for each in of_type(log, PlanFired)}
    finished = {each.event.index: each.t_s for each in of_type(log, PlanFinished)}
    in_order = sorted(planned, key=lambda event: (event.get("at_clock") is None, _when(event)))
    for index, event in enumerate(in_order):
        told = {key: value for key, value in event.items() if key not in ("at_clock", "at_s")}
        what = ", ".join(f"{key} {value}" for key, value in told.items() if value is not None)
        rows.append(
            {
                "clock": str(_when(event)) if event.get("at_clock") is not None else f"{_when(event):g} s",
                "what": what,
                "fired": _at(fired.get(index)),
                "finished": _at(finished.get(index)),
            }
        )
    return rows
