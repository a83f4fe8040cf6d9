"""The commands as people run them: good runs leave tables, plots and a page; bad input is one sentence, exit code 2."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from agileml.cli import main
from bidbrain.cli.run import LONG_S, doing, say_unfinished
from bidbrain.history.archive import rows_of, write_rows
from bidbrain.policy.base import Decision, MarketView, RequestOnDemand
from bidbrain.setting import Setting
from bidbrain.simulate.experiment import Result, summarise
from bidbrain.simulate.simulator import Outcome

ROOT = Path(__file__).resolve().parents[3]
WINDOWS = ["--train", "2016-03-01/2016-03-20", "--evaluate", "2016-03-20/2016-04-04"]


@pytest.fixture(scope="module")
def history(turbulent, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("history") / "made.csv.gz"
    write_rows(path, rows_of(turbulent))
    return path


def proteus(capsys, *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one command."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    out = capsys.readouterr()
    return int(exit_.value.code or 0), out.out, out.err


def simulate(capsys, history: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return proteus(capsys, "simulate", "--history", history, "--out", out, *WINDOWS, "--starts", 12, *more)


@pytest.fixture(scope="module")
def done(history: Path, tmp_path_factory) -> Path:
    """The folder of one run: two job lengths, a ledger of three jobs per scheme."""
    folder = tmp_path_factory.mktemp("done") / "out"
    arguments = ["--out", folder, *WINDOWS, "--starts", 12, "--job-hours", "2,3", "--ledger", 3]
    with pytest.raises(SystemExit) as exit_:
        main([str(each) for each in ("simulate", "--history", history, *arguments)])
    assert not exit_.value.code
    return folder


def test_a_run_leaves_tables_plots_a_ledger_and_a_page(done: Path) -> None:
    rows = json.loads((done / "table.json").read_text())
    assert {row["scheme"] for row in rows} >= {"on_demand", "standard_checkpoint", "proteus", "renewal"}
    wanted = {"scheme", "job_hours", "cost", "cost_low", "cost_high", "runtime", "free_fraction"}
    assert wanted | {"evictions_per_job", "unfinished", "cost_p95", "runtime_p95"} <= set(rows[0])
    assert json.loads((done / "pairs.json").read_text())
    assert (done / "table.csv").read_text().startswith("scheme,job_hours,cost")
    names = {path.name for path in done.iterdir()}
    assert {"cost_and_runtime.png", "machine_hours.png", "cost_against_runtime.png"} <= names
    assert {"prices.png", "job_proteus.png", "job_renewal.png", "ledger.jsonl"} <= names
    page = (done / "report.html").read_text()
    assert "How to read it" in page
    assert page.count("data:image/png") >= 6


def test_a_ledger_is_billed_again(capsys, history: Path, done: Path, tmp_path: Path) -> None:
    code, text, _ = proteus(capsys, "bill", done / "ledger.jsonl", "--history", history)
    assert code == 0
    assert "Every line agrees" in text
    lines = (done / "ledger.jsonl").read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"charge"' in line)
    line = json.loads(lines[index])
    line["micro_usd"] += 1
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines[:index], json.dumps(line), *lines[index + 1 :]]) + "\n")
    code, text, _ = proteus(capsys, "bill", changed, "--history", history)
    assert code == 1
    assert "the ledger has" in text


def test_a_config_is_its_options_and_a_second_run_has_the_same_bytes(
    capsys, history: Path, done: Path, tmp_path: Path
) -> None:
    config = {"history": [str(history)], "train": WINDOWS[1], "evaluate": WINDOWS[3], "starts": 12}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config | {"job_hours": [2, 3], "out": str(tmp_path / "a")}))
    assert proteus(capsys, "simulate", path)[0] == 0
    for name in ("table.json", "pairs.json", "table.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (done / name).read_bytes()


def test_the_bar_says_when_it_compiles() -> None:
    """For half a minute no job is done, the first time."""
    assert doing(1.0, is_compiled=False) == doing(99.0, is_compiled=True) == "simulating"
    assert doing(LONG_S + 1, is_compiled=False).startswith("compiling the simulator, once")


def test_a_sweep_runs_a_grid_and_plots_it(capsys, history: Path, tmp_path: Path) -> None:
    code, _, _ = simulate(
        capsys, history, tmp_path, "--job-hours", 2, "--schemes", "renewal", "--sweep", "min_delta=0,0.01",
        "--ledger", 2,
    )  # fmt: skip
    assert code == 0
    for value in ("0", "0.01"):
        ledger = tmp_path / f"ledger-min_delta-{value}.jsonl"
        assert proteus(capsys, "bill", ledger, "--history", history)[0] == 0
    grid = json.loads((tmp_path / "sweep_min_delta.json").read_text())
    assert [point["min_delta"] for point in grid] == [0.0, 0.01]
    assert grid[0]["table"][0]["cost"] != grid[1]["table"][0]["cost"]
    assert (tmp_path / "sweep_min_delta.png").exists()


class Stops:
    """A policy that is there for the first point of a sweep alone."""

    def __init__(self, setting: Setting, start_s: int) -> None:
        self._type = setting.reliable.instance_type
        if setting.job.engine.boot_s > 100:
            raise RuntimeError("no more")

    def decide(self, now_s: int, view: MarketView) -> Decision:
        wanted = () if view.holdings else (RequestOnDemand(self._type, 512),)
        return Decision(wanted, "on demand")


def test_a_sweep_that_ends_early_leaves_the_points_that_are_done(
    capsys, history: Path, tmp_path: Path
) -> None:
    code, _, error = simulate(
        capsys, history, tmp_path, "--job-hours", 2, "--schemes", f"{__name__}:Stops", "--processes", 1,
        "--sweep", "boot_s=60,120",
    )  # fmt: skip
    assert code == 2 and "no more" in error
    (point,) = json.loads((tmp_path / "sweep_boot_s.json").read_text())
    assert point["boot_s"] == 60.0 and point["table"][0]["cost"] > 0


def test_a_bound_that_the_cap_leaves_no_time_for_says_so(capsys) -> None:
    """It ends within the time of the on-demand job, which loses none to boots."""
    never = (Outcome(0, 9, False, 0, 0, 0, 0, 0),)
    rows = [summarise(Result(name, 1.0, never, 1.0), 0) for name in ("paid_hours_bound", "proteus")]
    say_unfinished(rows, Console(width=200))
    bound, policy = capsys.readouterr().out.splitlines()
    assert (
        "1 of 1 jobs could not end within the time of the on-demand job: this cap leaves it no time" in bound
    )
    assert "1 of 1 jobs could not end before the history does" in policy


def test_results_have_a_folder_before_they_are_worked_for(capsys, history: Path, tmp_path: Path) -> None:
    """Not after hours of work; and one that nothing was put into goes again."""
    (tmp_path / "file").touch()
    never = ("--job-hours", 2, "--schemes", f"{__name__}:Stops", "--boot-s", 200)
    code, _, error = simulate(capsys, history, tmp_path / "file", *never)
    assert code == 2 and "file is a file, expected a folder or a new name" in error
    assert "no more" in simulate(capsys, history, tmp_path / "new", *never)[2]
    assert not (tmp_path / "new").exists()


def test_simulations_that_begin_in_one_second_have_folders_of_their_own(
    capsys, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two that a loop of the shell puts into the background."""
    monkeypatch.chdir(tmp_path)
    clock = SimpleNamespace(strftime=lambda text: text.replace("%Y%m%d-%H%M%S", "now"))
    monkeypatch.setattr("bidbrain.cli.run.time", clock)
    for seed in (1, 2):
        options = ("--history", history, *WINDOWS, "--job-hours", 2, "--starts", 2, "--schemes", "on_demand")
        assert proteus(capsys, "simulate", *options, "--seed", seed)[0] == 0
    folders = sorted(path.name for path in Path("runs").iterdir())
    assert folders == ["simulate-now", "simulate-now-2"]
    pages = [Path("runs", name, "report.html").read_text() for name in folders]
    assert ["seed: 1" in page for page in pages] == [True, False]


@pytest.mark.slow
def test_a_type_without_an_on_demand_price_is_left_out_and_said(capsys, turbulent, tmp_path: Path) -> None:
    path = tmp_path / "mixed.csv.gz"
    named = {"c4.xlarge": "zz9.xlarge"}
    write_rows(path, [(at_s, named.get(kind, kind), *rest) for at_s, kind, *rest in rows_of(turbulent)])
    more = ["--schemes", "renewal", "--job-hours", 2]
    code, text, _ = simulate(capsys, path, tmp_path / "out", *more)
    assert code == 0
    assert "left out, because no on-demand price is known: zz9.xlarge" in text
    code, _, said = simulate(capsys, path, tmp_path / "named", "--types", "zz9.xlarge", *more)
    assert code == 2
    assert "no on-demand price is known for the machine type 'zz9.xlarge'" in said


@pytest.mark.slow
def test_bids_on_prices_after_the_end_of_bidding_are_warned_of(capsys, turbulent, tmp_path: Path) -> None:
    path = tmp_path / "later.csv.gz"
    later_s = 3 * 365 * 86_400
    write_rows(path, [(at_s + later_s, *rest) for at_s, *rest in rows_of(turbulent)])
    windows = [text.replace("2016", "2019") for text in WINDOWS]
    said = {}
    for rules in ("hourly_2016", "per_second"):
        code, text, _ = proteus(
            capsys, "simulate", "--history", path, "--out", tmp_path / rules, *windows, "--starts", 6,
            "--job-hours", 2, "--schemes", "renewal", "--rules", rules,
        )  # fmt: skip
        assert code == 0
        said[rules] = "EC2 gave up bidding" in text
    assert said == {"hourly_2016": True, "per_second": False}


@pytest.mark.parametrize("name", ["simulate_2016.yaml", "simulate_2015.yaml", "simulate_today.yaml"])
def test_our_configs_load(name: str) -> None:
    from bidbrain.config import load_config

    assert load_config(ROOT / "configs" / name, {}).schemes


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--types", "x9.large"], "unknown type 'x9.large': the history has c4.2xlarge, c4.xlarge"),
        (["--zones", "mars-1a"], "unknown zone 'mars-1a': the history has us-east-1a, us-east-1b"),
        (["--train", "2016-03-01/2016-03-25"], "train and evaluate overlap"),
        (
            ["--train", "2014-01-01/2014-02-01"],
            "train 2014-01-01T00:00:00Z/2014-02-01T00:00:00Z lies outside",
        ),
        (["--evaluate", "2016-03-20/2016-09-01"], "lies outside of the history by more than a day"),
        (["--evaluate", "soon"], "evaluate: 'soon' is not an interval"),
        (["--evaluate", "2016-03-20/2016-03-21"], "no job can start in the evaluation window"),
        (["--schemes", "magic"], "there is no scheme 'magic'"),
        (["--schemes", "no.module:Policy"], "the policy 'no.module:Policy' cannot be loaded"),
        (["--schemes", "bidbrain.policy.standard:None"], "does not exist"),
        (["--rules", "free"], "rules: Input should be 'hourly_2016', 'per_second' or 'per_second_paid'"),
        (["--train", "0001-01-01T00:00+14:00/2016-03-20"], "is outside of the years 1 to 9999 (UTC)"),
        (["--job-hours", "long"], "--job-hours: expected numbers"),
        (["--job-hours", "-1"], "job_hours"),
        (["--starts", "0"], "starts"),
        (["--cap", "0.5"], "cap"),
        (["--on-demand", "c4.xlarge"], "--on-demand 'c4.xlarge': expected TYPE=NUMBER"),
        (["--on-demand", "c4.xlarge=-1"], "c4.xlarge is -1.0, expected a figure above 0"),
        (["--min-delta", "5"], "no bid delta is at or above 5 $"),
        (["--slot-vcpus", "8"], "slot_vcpus 8 is too small"),
        (["--sweep", "moon=1,2"], "sweep: 'moon' cannot be swept"),
        (["--sweep", "cap=a"], "sweep: 'cap=a'"),
        (["--nodes", "32"], "nodes: found 32, expected it left out: nothing comes of it on prices"),
        (["--sweep", "spot_share=0.2,0.3"], "spot_share: found 0.2, expected it left out"),
        (["--sweep", "boot_s=nan"], "sweep: boot_s takes whole numbers, found nan"),
        (["--sweep", "cap=inf"], "cap: Input should be"),
        (["--cap", "inf"], "cap: Input should be"),
        (["--starts", "1000000000000"], "starts: Input should be less than or equal to 1000000"),
        (["--processes", "1000000000"], "processes: Input should be less than or equal to 1024"),
        (["--deadline", "inf"], "deadline: Input should be"),
        (["--min-delta", "inf"], "min_delta: Input should be"),
        (["--on-demand", "c4.xlarge=1,c4.xlarge=2"], "--on-demand: found c4.xlarge twice, expected it once"),
        (
            ["--sweep", "boot_s=60,120,60"],
            "sweep: found boot_s = 60 twice in 'boot_s=60,120,60', expected each",
        ),
        (
            ["--on-demand", "c4.xlarge=1e25"],
            "c4.xlarge is 1e+25, expected a figure above 0, at most 1,000,000",
        ),
        (
            ["--on-demand", "c4.xlarge=1e-7"],
            "on_demand: c4.xlarge costs nothing, by 4 vCPUs of it and in whole 0.000001 $ per hour; expected more",
        ),
        (["--product", "Windows"], "no market is left"),
        (["--availability", "x.json"], "two markets"),
        (["--reliable-type", "z1.tiny"], "no on-demand price is known for the machine type 'z1.tiny'"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys, history: Path, tmp_path: Path, options: list[str], sentence: str
) -> None:
    code, _, error = simulate(capsys, history, tmp_path / "out", "--job-hours", 20, *options)
    assert code == 2
    assert sentence in error
    assert error.startswith("proteus: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stars: 3", "unknown key 'stars'"),
        ("- a", "expected keys with values"),
        ("a: [", "not YAML"),
        ("seed: 1\nstarts: 3\nseed: 2", "c.yaml line 3: seed comes twice, first in line 1"),
        ("vcpus: {c4.xlarge: 4, c4.xlarge: 8}", "c.yaml line 1: c4.xlarge comes twice"),
        (
            "train: !!timestamp 2016-13-45",
            "has a value that is not what it looks like (month must be in 1..12",
        ),
        (f"history: {'x' * 300}", "File name too long"),
        ("starts: many", "starts: Input should be a valid integer"),
        ("starts: yes", "starts: Input should be a valid integer"),
        ("job_hours: [1:30]", "job_hours.0: Input should be a valid number"),
    ],
)
def test_a_bad_config_names_its_key(capsys, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    code, _, error = proteus(capsys, "simulate", path, "--out", tmp_path / "o")
    assert code == 2
    assert sentence in error
    assert str(path) in error or "x" * 300 in error


def test_no_market_or_folder_named(capsys, tmp_path: Path, history: Path) -> None:
    assert "no market is named" in proteus(capsys, "simulate", "--out", tmp_path)[2]
    assert "no such file" in proteus(capsys, "simulate", "--history", "none.csv", "--out", tmp_path)[2]


@pytest.mark.parametrize(
    "name",
    [
        "simulate_2016.yaml",
        *(pytest.param(f"simulate_{year}.yaml", marks=pytest.mark.slow) for year in (2015, 2021)),
    ],
)
def test_a_config_of_ours_runs_as_it_stands(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """From any folder, without a recording; a new folder takes the results."""
    monkeypatch.chdir(tmp_path)
    code, said, error = proteus(
        *(
            capsys,
            "simulate",
            ROOT / "configs" / name,
            "--starts",
            2,
            "--schemes",
            "on_demand,standard_agileml",
        ),
        *("--job-hours", 2, "--ledger", 1),
    )
    assert code == 0, error
    assert "note: the prices are made" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()
    # No file of the user's has these prices.
    code, said, _ = proteus(capsys, "bill", folder / "ledger.jsonl", "--history", folder / "prices.csv")
    assert (code, "Every line agrees." in said) == (0, True)


def test_a_recording_takes_the_place_of_made_prices(capsys, tmp_path: Path, history: Path) -> None:
    config = ROOT / "configs" / "simulate_2016.yaml"
    windows = ("--train", "2016-03-01/2016-03-15", "--evaluate", "2016-03-15/2016-03-28")
    market = ("--history", history, *windows, "--types", "c4.xlarge", "--zones", "us-east-1a")
    schemes = ("--schemes", "on_demand,standard_agileml")
    job = ("--starts", 2, *schemes, "--job-hours", 2, "--out", tmp_path / "out")
    code, said, error = proteus(capsys, "simulate", config, *market, *job, "--ledger", 1)
    assert code == 0, error
    assert "the prices are made" not in said and "earlier simulation" not in said
    code, said, error = proteus(capsys, "simulate", config, *market, *job)
    assert code == 0, error
    assert "the prices are made" not in said
    assert "ledger.jsonl is that of an earlier simulation" in said


def test_interrupting_leaves_one_line_and_no_processes(history: Path, tmp_path: Path) -> None:
    """Ctrl-C in the middle of slow jobs over two processes."""
    command = [
        sys.executable, "-m", "agileml.cli", "simulate", "--history", str(history), "--out", str(tmp_path / "o"),
        *WINDOWS,
        "--job-hours", "40", "--starts", "5000", "--schemes", "bidbrain.policy.proteus:Proteus", "--processes", "2",
    ]  # fmt: skip
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        end = time.monotonic() + 120
        while len(children.read_text().split()) < 2:
            assert time.monotonic() < end
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)
        workers = [int(pid) for pid in children.read_text().split()]
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=600)
        assert running.returncode == 130
        assert error.split("\n")[-2:] == ["proteus: interrupted", ""]
        assert error.count("interrupted") == 1
        assert "Traceback" not in error
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
        assert not (tmp_path / "o").exists()
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
