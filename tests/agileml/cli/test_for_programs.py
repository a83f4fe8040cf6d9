"""`--json`, completion and NO_COLOR: what programs and terminals get. The keys are those of the page on commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from agileml.cli import app
from tests.bidbrain.live.makers import LiveRig, play_in

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "guides" / "commands.md"
WINDOWS = ("--train", "2016-03-01/2016-03-04", "--evaluate", "2016-03-04/2016-03-08")
JOB = """\
application: mlr
data: {kind: blobs, examples: 200, features: 5, classes: 3}
clocks: 20
clocks_per_pass: 4
"""


def documented() -> dict[str, set[str]]:
    """The keys of each command in the table; without those that are somebody else's."""
    rows = re.findall(
        r"^\| `([^`]+)` \| [^|]+ \| (.*) \|$", PAGE.read_text().partition("## For programs")[2], re.M
    )
    return {command: set(re.findall(r"`(\w+)`", keys)) for command, keys in rows}


def objects(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What a command writes to standard output with --json: one object a line, and nothing else."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def commands_with(option: str) -> set[str]:
    def below(command: Any, names: tuple[str, ...]) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from below(inner, (*names, name))
        if any(option in parameter.opts for parameter in command.params):
            yield " ".join(names)

    return set(below(typer.main.get_command(app), ()))


def test_the_page_names_each_command_with_json() -> None:
    rows = {re.match(r"[a-z]+( [a-z]+)?", row)[0] for row in documented()}  # type: ignore[index]
    assert commands_with("--json") == rows | {"checkpoint show", "aws plan", "aws status"}


@pytest.fixture
def history(tmp_path: Path) -> Path:
    made = tmp_path / "made.csv.gz"
    done = CliRunner().invoke(app, ["prices", "generate", str(made), "--window", "2016-03-01/2016-03-08"])
    assert done.exit_code == 0
    return made


def test_doctor() -> None:
    found = objects("doctor", "--address", "127.0.0.1:1", code=1)
    assert all(set(each) == documented()["doctor"] for each in found)
    assert {"Python", "Memory"} <= {each["subject"] for each in found}
    assert "blocks" in {each["severity"] for each in found}


def test_configs_and_clean() -> None:
    found = objects("configs")
    assert all(set(each) == documented()["configs"] for each in found)
    assert Path(found[0]["path"]).is_file()
    assert all(set(each) == documented()["clean"] for each in objects("clean"))


def test_status_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    assert CliRunner().invoke(app, ["run", "job.yaml", "--sequential", "--out", "run"]).exit_code == 0
    (found,) = objects("status", "run")
    assert set(found) == documented()["status [ID or DIR]"] - {"exit_code"}
    assert (found["state"], found["clock"], found["clocks"]) == ("done", 20, 20)


def test_prices(history: Path) -> None:
    found = objects("prices", "show", str(history))
    assert len(found) == 3
    assert all(set(each) == documented()["prices show"] for each in found)
    assert all(0 < each["least_usd_per_h"] <= each["mean_usd_per_h"] for each in found)


@pytest.mark.slow  # a scheme is compiled
def test_simulate_and_bill(history: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = objects(
        "simulate", "--history", str(history), *WINDOWS,
        "--starts", "4", "--schemes", "on_demand,standard_agileml", "--job-hours", "2", "--job-vcpus", "16",
        "--ledger", "1", "--out", str(out),
    )  # fmt: skip
    assert rows == json.loads((out / "table.json").read_text())
    (bill, *_) = objects("bill", str(out / "ledger.jsonl"), "--history", str(history))
    assert set(bill) == documented()["bill"]
    assert bill["ledger_usd"] == bill["history_usd"] > 0


@pytest.mark.slow
def test_a_sweep_names_its_value(history: Path, tmp_path: Path) -> None:
    rows = objects(
        "simulate", "--history", str(history), *WINDOWS,
        "--starts", "2", "--schemes", "standard_agileml", "--job-hours", "2", "--job-vcpus", "16",
        "--sweep", "boot_s=60,120", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert [row["boot_s"] for row in rows] == [60, 120]


def test_market_explain(tmp_path: Path) -> None:
    from bidbrain.live.explain import explain
    from bidbrain.live.journal import read_journal
    from bidbrain.policy.registry import find_scheme
    from tests.bidbrain.makers import made_trace
    from tests.bidbrain.policy.test_today import setting_of

    scheme = find_scheme("expected_cost")
    setting = scheme.setting(setting_of([made_trace(z, 16, 80.0, 1.5, 1.0, seed=7) for z in ("a", "b")]))
    play_in(tmp_path / "market", LiveRig(setting, 2 * 3600), scheme)
    found = objects("market", "explain", str(tmp_path))
    assert all(set(each) == documented()["market explain"] for each in found)
    lines = list(explain(read_journal(tmp_path / "market" / "journal.jsonl")))
    assert [each["text"] for each in found] == [line.text for line in lines]


def test_stragglers_and_size(tmp_path: Path) -> None:
    found = objects(
        "stragglers", "--workers", "4", "--iterations", "5", "--seeds", "1", "--pattern", "slow-worker:200",
        "--schemes", "bsp ssp:1", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert [each["scheme"] for each in found] == ["bsp", "ssp:1"]
    assert all(each["per_iteration_s"] > 0 for each in found)
    answers = objects("size", str(ROOT / "configs" / "pipeline_sizing_alexnet.yaml"))
    assert answers
    assert all(set(each) == documented()["size"] for each in answers)


def test_plan(tmp_path: Path) -> None:
    from pipeline.profile.layers import chain, write

    profile = tmp_path / "p.json"
    write(chain([8.0, 8.0, 8.0, 1.0, 1.0], [9.0, 4.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 40.0, 20.0]), profile)
    out = tmp_path / "out"
    found = objects(
        "plan", str(profile), "--topology", "4x10", "--top", "2", "--machines", "3", "--memory", "180",
        "--out", str(out),
    )  # fmt: skip
    assert all(set(each) == documented()["plan"] for each in found)
    best, second, fewer = found
    # The model fits no single device.
    assert best["machines"] is None and best["data_parallel_seconds"] is None
    assert best["seconds_per_minibatch"] <= second["seconds_per_minibatch"]
    assert fewer["machines"] == 3 and best["compared"] and not second["compared"]
    assert {**json.loads((out / "plan.json").read_text()), "machines": None} == best


def commands_with_tables() -> list[Path]:
    return [
        path
        for package in ("agileml", "bidbrain", "straggler", "pipeline")
        for path in (ROOT / package / "cli").glob("*.py")
    ]


@pytest.mark.parametrize(
    "path", commands_with_tables(), ids=lambda path: f"{path.parent.parent.name}/{path.name}"
)
def test_a_command_that_prints_a_table_has_json(path: Path) -> None:
    text = path.read_text()
    assert "Table(" not in text or "as_json" in text


@pytest.mark.parametrize(
    ("shell", "words", "completed"),
    [
        ("bash", "proteus ma", {"machines", "market"}),
        ("bash", "proteus run --su", {"--supervise"}),
        ("zsh", "proteus mar", {"market"}),
    ],
)
def test_a_shell_completes_commands_and_options(
    shell: str,
    words: str,
    completed: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {
        "_PROTEUS_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "_TYPER_COMPLETE_ARGS": words,
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        app(prog_name="proteus")
    found = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert found == completed if shell == "bash" else found > completed  # zsh shows what they do


@pytest.mark.parametrize(
    "variables",
    [pytest.param({"NO_COLOR": "1"}, marks=pytest.mark.slow), {"NO_COLOR": "1", "FORCE_COLOR": "1"}],
)
def test_no_color_leaves_no_colour(variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agileml.cli", "--help"],
        env={**os.environ, **variables}, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert not re.search(r"\x1b\[[\d;]*3\dm", done.stdout)


def test_the_live_panel_respects_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from agileml.runs.progress import Snapshot, panel

    def drawn(**options: Any) -> str:
        console = Console(file=io.StringIO(), force_terminal=True, width=100, **options)
        console.print(panel(Snapshot(5, 10, 0.5, 1, 1, 2), 1.0))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    colours: Callable[[str], list[str]] = lambda text: re.findall(r"\x1b\[[\d;]*3\d[;m]", text)  # noqa: E731
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colours(drawn(color_system="standard"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(drawn(color_system="standard"))
