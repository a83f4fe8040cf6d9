"""`proteus run --dry-run`: the first decision and what it costs, and what is asked before money is spent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agileml.cli.market_preview import ask_to_submit, may_run
from agileml.config.job import load
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.history.generate import Character, generate
from bidbrain.instants import Interval, show_instant
from tests.agileml.cli.called import proteus

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "configs" / "demo.yaml"


def test_a_dry_run_says_what_would_be_bought_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert proteus("run", str(DEMO), "--dry-run") == 0
    said = capsys.readouterr().out
    assert "buy 1 x c4.xlarge on demand at 0.2090 $/h (reliable)" in said
    assert "buy 64 vCPUs of c3.8xlarge@us-east-1a, bid 0.3118 $/h" in said
    assert "first hour $0.7726 for 64 vCPUs" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_policy_of_the_user_is_found_from_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from bidbrain.policy.standard import Standard\n\n\nclass Mine(Standard):\n    pass\n"
    )
    # -P: as with an installed `proteus`, Python itself does not search the working folder.
    command = [sys.executable, "-P", "-m", "agileml.cli", "run", str(DEMO), "--dry-run"]
    ran = subprocess.run(
        [*command, "--set", "market.policy=mine:Mine"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("policy mine:Mine: ")


@pytest.mark.parametrize(
    ("flag", "line", "cost"),
    [
        (
            "machines.max=1",
            "not bought: 64 vCPUs of c3.8xlarge",
            "first hour $0.2090, no machine of the market",
        ),
        ("machines.max=1", "(guard max_machines: 1 of 1)", ""),
        ("machines.max=2", "buy 32 vCPUs of c3.8xlarge", "first hour $0.4908 for 32 vCPUs"),
        ("machines.max=2", "(of 64; guard max_machines: 1 of 2)", ""),
        ("market.budget_usd=0.3", "(guard budget: 0.520800 $ with it, the budget is 0.300000 $)", ""),
        ("market.budget_usd=0.8", "buy 32 vCPUs of c3.8xlarge", "first hour $0.4908 for 32 vCPUs"),
        ("market.max_price=0.29", "buy 64 vCPUs of c3.8xlarge@us-east-1a, bid 0.2900 $/h", ""),
    ],
)
def test_a_dry_run_keeps_the_limits(
    flag: str, line: str, cost: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ("--set", flag, "--set", f"checkpoint.path={tmp_path}")
    assert proteus("run", str(DEMO), "--dry-run", *flags) == 0
    said = capsys.readouterr().out
    assert line in said
    assert cost in said


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--set", "market.budget_usd=0.1", "--set", "checkpoint.path=ck"), "expected at least 0.209000 $"),
        (("--set", "market.types=[c3.8xlarg]"), "'c3.8xlarg'"),
        (("--set", "market.policy=standard_young"), "market.policy: found standard_young"),
        (("--dry-run", "--sequential"), "found --dry-run with --sequential, expected one of them"),
    ],
)
def test_a_mistake_is_one_sentence(
    flags: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert proteus("run", str(DEMO), *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("proteus: ")
    assert sentence in line
    assert not list(tmp_path.iterdir())


def test_a_policy_that_returns_nothing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "idle_policy.py").write_text(
        "class Idle:\n"
        "    def __init__(self, setting, start_s): pass\n"
        "    def decide(self, now_s, view): return None\n"
        "class Wrong(Idle):\n"
        "    def decide(self, now_s, view): return view.missing\n"
    )
    assert proteus("run", str(DEMO), "--set", "market.policy=idle_policy:Idle") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "market.policy: idle_policy:Idle: decide() of the policy returned NoneType, expected a Decision"
        in line
    )
    assert proteus("run", str(DEMO), "--set", "market.policy=idle_policy:Wrong") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("proteus: decide() of the policy: AttributeError")
    assert any("idle_policy.py" in each for each in said)  # its traceback
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "__pycache__") == [
        "idle_policy.py"
    ]


def test_a_replay_has_an_hour_to_play_and_says_when_it_is_too_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    window = Interval.parse("2016-01-01/2016-01-03")
    history = generate([("c4.xlarge", "us-east-1a", 209_000)], window, Character.CALM, 3)
    rows = rows_of(history)
    write_rows(tmp_path / "prices.csv.gz", rows)
    market = (
        "kind: replay, history: [prices.csv.gz], train: 2016-01-01/2016-01-02, job_vcpus: 16, job_hours: 2"
    )
    Path("job.yaml").write_text(
        "application: mlr\ndata: {kind: digits}\nclocks: 100\nmachines: {reliable: 1, max: 7}\n"
        f"market: {{{market}, start: 2016-01-02}}\n"
    )
    end_s = rows[-1][0]  # a recording ends with its last price
    for before_s, told in (
        (7200, ""),
        (5400, "warning: the market ends after 1.50 h, before a job of 2 h does"),
    ):
        start = show_instant(end_s - before_s)
        assert proteus("run", "job.yaml", "--dry-run", "--set", f"market.start={start}") == 0
        said = capsys.readouterr().out
        assert told in said
        assert bool(told) == ("warning" in said)
    start = show_instant(end_s - 25)
    assert proteus("run", "job.yaml", "--dry-run", "--set", f"market.start={start}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"found {start}, expected at least an hour of the recording after it: it ends 25 s later" in line


def test_only_ec2_is_asked_about_and_without_an_answer_nothing_is_bought() -> None:
    ec2 = load(DEMO.parent / "aws.yaml")
    assert may_run(load(DEMO), "demo", dry_run=False, yes=False)
    assert may_run(ec2, "aws", dry_run=False, yes=True)
    with pytest.raises(typer.BadParameter, match="nobody to ask here: say --yes"):
        may_run(ec2, "aws", dry_run=False, yes=False)
    ask_to_submit(load(DEMO), yes=False)
    ask_to_submit(ec2, yes=True)
    with pytest.raises(typer.BadParameter, match="nobody to ask here: say --yes"):
        ask_to_submit(ec2, yes=False)


def test_a_replay_says_the_hole_and_the_pool_that_ends_before_it_buys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"2016-01-{day:02d}T00:00:00Z,c4.xlarge,us-east-1a,Linux/UNIX,0.05" for day in (*range(1, 7), 9)]
    rows += [f"2016-01-{day:02d}T00:00:00Z,c4.xlarge,us-east-1b,Linux/UNIX,0.06" for day in range(1, 5)]
    header = "timestamp,instance_type,availability_zone,product,price"
    (tmp_path / "prices.csv").write_text("\n".join([header, *rows]) + "\n")
    config = tmp_path / "job.yaml"
    config.write_text(
        "application: mlr\ndata: {kind: digits}\nclocks: 10\nmachines: {reliable: 1}\n"
        "market: {kind: replay, history: [prices.csv], train: 2016-01-01/2016-01-02, start: 2016-01-05, "
        "job_hours: 40, job_vcpus: 16}\n"
    )
    assert proteus("run", str(config), "--dry-run") == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: the recording has a hole 2016-01-06T00:00:00Z/2016-01-09T00:00:00Z (72 h) within the job's hours: "
        "the prices before it are taken to hold",
        "warning: c4.xlarge@us-east-1b has no row after 2016-01-04T00:00:00Z, 5.0 days before the recording ends: "
        "its last price is taken to hold",
    ]
