"""The page of a run: live, or with everything in one file, as which report.html ends a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from agileml.application import without_secrets
from agileml.config.text import parse_yaml
from agileml.events.schema import Log, SchemaError
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.folder import CONFIG, REPORT, SUMMARY, RunFolder, for_others
from agileml.runs.report.tables import flat_rows, plan_rows, tiles
from agileml.runs.report.view import PageView
from agileml.runs.summary import goes_on

MOST_TOLD = 5000  # sentences in a file
# From a config or a summary that is none of this version's; a ConfigError is a ValueError.
DAMAGED = (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
SCRIPT, FROZEN = "/*SCRIPT*/", "/*VIEW*/null/*END*/"


class ReportError(ValueError):
    """No report can be made from a folder; the message is one sentence."""


def page(view: Mapping[str, Any] | None = None) -> str:
    """The page: live, or frozen with a view, as one file that needs nothing else."""
    folder = files("agileml.runs.report")
    text = folder.joinpath("page.html").read_text("utf-8")
    scripts = [folder.joinpath(name).read_text("utf-8") for name in ("charts.js", "page.js")]
    text = text.replace(SCRIPT, "\n".join(scripts))
    assert text.count(FROZEN) == 1
    if view is None:
        return text
    # In ASCII: a name that is no UTF-8 could not be written.
    data = json.dumps(view, allow_nan=False).replace("<", "\\u003c")
    return text.replace("connect-src 'self'", "connect-src 'none'").replace(FROZEN, data)


def in_full(view: Mapping[str, Any], config_text: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A view with the plan and the text of the config, and with the summary of a run that has ended (else empty).

    Raises ConfigError, and other errors of `DAMAGED`.
    """
    config = parse_yaml(config_text, CONFIG)[0] if config_text else {}
    times_s = {index: times_s for index, *times_s in view["plan"]}
    return {
        **view,
        "plan": plan_rows(config.get("plan") or [], times_s),
        "config": without_secrets(config_text),
        "tiles": tiles(summary),
        "summary": flat_rows(for_others(summary)),
    }


def build_report(config_text: str, log: Log, summary: Mapping[str, Any]) -> str:
    """report.html: the frozen page. `summary` may be empty: an unfinished run is reported as far as it got."""
    view = PageView("run", MOST_TOLD)
    for each in log:
        view.add(each)
    if not summary and view.state == "running":
        view.end("did not end")
    return page(in_full(view.as_json(), config_text, summary))


def rebuild(folder: Path) -> Path:
    """Write report.html of a run's folder anew; returns its path. Raises ReportError, StorageError."""
    for name in (CONFIG, EVENTS):
        if not os.path.isfile(folder / name):
            raise ReportError(f"{folder} holds no {name}, expected the folder of a run")
    try:
        log = read_events(folder / EVENTS)
        has_summary = (folder / SUMMARY).is_file() and not goes_on(log)
        summary = json.loads((folder / SUMMARY).read_text("utf-8")) if has_summary else {}
        html = build_report((folder / CONFIG).read_text("utf-8"), log, summary)
    except SchemaError as error:
        raise ReportError(str(error)) from None
    except DAMAGED as error:
        raise ReportError(f"{folder} holds a damaged log, summary or config: {error!r}") from None
    except OSError as error:
        raise ReportError(f"{error.filename} cannot be read: {error.strerror}") from None
    RunFolder.write_text(folder / REPORT, html)
    return folder / REPORT
