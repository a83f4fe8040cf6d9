"""What Prometheus gets of a run, and what the Grafana board asks it for."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

from agileml.events.run import (
    BytesSent,
    ClockDone,
    MachineLost,
    MachinesJoined,
    RunStarted,
)
from agileml.events.sums import Standing
from agileml.events.terms import Loss, Tier
from agileml.runs.live.metrics import openmetrics
from agileml.runs.live.server import PageServer
from agileml.runs.owner import this_process
from agileml.runs.report.view import PageView
from tests.agileml.runs.live.browser import answer
from tests.agileml.runs.report.test_view import view_of

GRAFANA = Path(__file__).resolve().parents[4] / "configs" / "grafana.json"


def metrics_of(text: str) -> dict[str, float]:
    """Samples of OpenMetrics text, each of a family that was declared before it."""
    declared: set[str] = set()
    samples: dict[str, float] = {}
    lines = text.splitlines()
    assert lines[-1] == "# EOF" and text.endswith("\n")
    for told in lines[:-1]:
        if told.startswith("# TYPE "):
            name, kind = told.split()[2:]
            assert name not in declared and kind in ("gauge", "counter")
            declared.add(name)
        elif not told.startswith("#"):
            labels, _, value = told.rpartition("} ")
            assert labels.partition("{")[0].removesuffix("_total") in declared, told
            samples[labels + "}"] = float(value)
    return samples


def test_prometheus_gets_the_same_figures_and_the_board_asks_for_no_others(tmp_path: Path) -> None:
    view = view_of(
        (0.0, RunStarted('a "name"', {}, 0.0, this_process())),
        (1.0, MachinesJoined({"m0": Tier.RELIABLE, "m1": Tier.TRANSIENT})),
        (1.5, ClockDone(1, 0.75, 64, None)),
        (2.0, ClockDone(2, 0.5, 64, 0.5)),
        (2.1, MachineLost("m1", Loss.EVICTED, "")),
        (2.2, BytesSent({"push": 10, "pull": 20})),
        (2.3, Standing(2, 100, 0.5, 2, 1, 0, "", 1.25)),
    )
    with PageServer(view.as_json) as served:
        assert answer(served.url.partition("?")[0] + "metrics")[0] == 403
        with urllib.request.urlopen(served.url.replace("/?", "/metrics?"), timeout=600) as reply:
            assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
            samples = metrics_of(reply.read().decode())
    run = 'run="a \\"name\\""'
    assert samples[f"proteus_loss{{{run}}}"] == 0.5
    assert samples[f"proteus_spent_usd{{{run}}}"] == 1.25
    assert samples[f'proteus_machines{{{run},tier="reliable"}}'] == 1
    assert samples[f'proteus_machines_gone{{{run},reason="evicted"}}'] == 1
    assert samples[f'proteus_sent_bytes_total{{{run},kind="pull"}}'] == 20
    names = {sample.partition("{")[0] for sample in samples}
    asked = {
        name
        for panel in json.loads(GRAFANA.read_text())["panels"]
        for target in panel["targets"]
        for name in re.findall(r"proteus_\w+", target["expr"])
    }
    assert asked <= names
    assert metrics_of(openmetrics(PageView("empty").as_json()))


def test_prometheus_gets_the_figures_of_a_run_whose_name_is_no_utf_8() -> None:
    with PageServer(PageView("run-\udcff").as_json) as served:
        url = served.url.replace("/?", "/metrics?")
        told = urllib.request.urlopen(url, timeout=600).read().decode()
    assert 'proteus_run{run="run-?",state="running"}' in metrics_of(told)
