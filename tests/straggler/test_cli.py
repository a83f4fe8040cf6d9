"""`proteus stragglers`: table, files, figure; bad input as one sentence with exit code 2 and nothing left behind."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agileml.cli import main
from straggler.config import StragglerConfig, read_config
from tests.agileml.runs.full_disk import files_of_at_most

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("stragglers_*.yaml"))
SMALL = ["--workers", "8", "--iterations", "3", "--units", "40", "--seeds", "2"]


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["stragglers", *arguments])
    return int(exit_.value.code or 0)


def test_table_numbers_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result"
    schemes = "bsp ssp:2 asp bsp-rr flexrr lb-bsp:ema elasticbsp:5"
    patterns = ["--pattern", "slow-worker:200", "--pattern", "power-law:7"]
    assert run([*SMALL, *patterns, "--schemes", schemes, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "over ideal" in printed
    assert "elasticbsp:5,rate" in printed
    assert sorted(path.name for path in out.iterdir()) == [
        "config.yaml",
        "figure.png",
        "runs.csv",
        "summary.json",
    ]
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 7 * 2
    summaries = json.loads((out / "summary.json").read_text())
    assert len(summaries) == 2 * 7
    for summary in summaries:
        found = [
            float(row["per_iteration_s"])
            for row in rows
            if (row["pattern"], row["scheme"]) == (summary["pattern"], summary["scheme"])
        ]
        assert summary["per_iteration_s"] == pytest.approx(sum(found) / 2)
        assert (summary["least_s"], summary["most_s"]) == (min(found), max(found))
        assert summary["over_ideal"] >= 1
    again = tmp_path / "again"
    assert run([str(out / "config.yaml"), "--out", str(again)]) == 0
    assert (again / "runs.csv").read_text() == (out / "runs.csv").read_text()


def test_variants_change_the_parameters(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "workers: 8\nmachines: 4\niterations: 4\nunits: 100\nseeds: 1\npatterns: [slow-worker:400]\n"
        "schemes: [flexrr]\nflexrr: {threshold: 0.3}\nvariants: {none: {group_size: 0}, four: {group_size: 4}}\n"
    )
    variants = read_config(config).variants
    assert {label: (v.group_size, v.threshold) for label, v in variants.items()} == {
        "none": (0, 0.3),
        "four": (4, 0.3),
    }
    assert run([str(config), "--out", str(tmp_path / "out")]) == 0
    none, four = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert none["moved_share"] == 0 < four["moved_share"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid(path: Path) -> None:
    assert isinstance(read_config(path), StragglerConfig)


@pytest.mark.parametrize(
    ("workers", "machines", "helpers"), [(1, 1, 0), (2, 1, 1), (4, 4, 3), (3, 2, 1), (4, 2, 2), (64, 8, 4)]
)
def test_few_machines_have_groups_as_large_as_they_allow(workers: int, machines: int, helpers: int) -> None:
    config = StragglerConfig(workers=workers, machines=machines)
    assert config.flexrr.group_size == helpers


def test_a_group_that_somebody_names_must_fit() -> None:
    with pytest.raises(
        ValueError, match="group_size is 4, but 4 workers on 4 machines have only 3 possible helpers each"
    ):
        StragglerConfig.model_validate({"workers": 4, "machines": 4, "flexrr": {"group_size": 4}})


def test_machines_take_their_workers_along(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("workers: 10\nmachines: 4\ndepartures: [{machine: 1, at_s: 2}]\n")
    assert [d.worker for d in read_config(config).experiment().departures] == [1, 5, 9]


@pytest.mark.parametrize(
    ("arguments", "text", "sentence"),
    [
        (["--pattern", "sleepy"], "", "pattern 'sleepy' is unknown; expected one of none, slow-worker"),
        (["--schemes", "bsp fast"], "", "scheme 'fast' is unknown; expected one of bsp"),
        (["--schemes", ""], "", "options: schemes"),
        (["--schemes", "bsp ssp:1 bsp"], "", "schemes: found bsp twice; expected each once"),
        (["--pattern", "none", "--pattern", "none"], "", "patterns: found none twice; expected each once"),
        (
            ["--pattern", "slow-worker:200", "--pattern", "slow-worker:200.0"],
            "",
            "patterns: found slow-worker:200 twice; expected each once",
        ),
        (["--workers", "0"], "", "options: workers is 0"),
        (["--workers", "1000000000"], "", "options: workers is 1000000000"),
        (["--workers", "4", "--machines", "8"], "", "4 workers on 8 machines"),
        (
            ["--workers", "4", "--machines", "2"],
            "flexrr: {group_size: 4}",
            "group_size is 4, but 4 workers on 2 machines",
        ),
        (["--pattern", "trace:nowhere.csv"], "", "trace nowhere.csv cannot be read"),
        ([], "wrokers: 3", "c.yaml: wrokers is no key; expected one of check_s, departures"),
        ([], "flexrr: {initail: 0.1}", "c.yaml: flexrr.initail is no key; expected one of average_weight"),
        ([], "flexrr: {initial: much}", "c.yaml: flexrr.initial is 'much'"),
        ([], "workers: [1", "c.yaml is not YAML"),
        (
            [],
            "seed: 1\nflexrr: {}\nseed: 2",
            "c.yaml line 3: seed comes twice, first in line 1; expected it once",
        ),
        ([], "- 1", "c.yaml holds list"),
        ([], "network: {loss: 1}", "c.yaml: network.loss is 1"),
        ([], "departures: [{at_s: 1}]", "c.yaml: departures.0 name either a worker or a machine"),
        ([], "departures: [{worker: 64, at_s: 1}]", "expected a worker below 64"),
        ([], "departures: [{machine: 8, at_s: 1}]", "departures: machine is 8; expected one below 8"),
        ([], "iteration_s: .nan", "c.yaml: iteration_s is nan"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = []
    if text:
        (tmp_path / "c.yaml").write_text(text)
        config = [str(tmp_path / "c.yaml")]
    assert run([*config, *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found"
    with files_of_at_most(10):
        assert run([*SMALL, "--schemes", "bsp", "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"proteus: {out} cannot be written: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two that a loop of the shell puts into the background; one that fails leaves none."""
    monkeypatch.chdir(tmp_path)
    clock = SimpleNamespace(strftime=lambda text: text.replace("%Y%m%d-%H%M%S", "now"))
    monkeypatch.setattr(sys.modules["straggler.cli.stragglers"], "time", clock)  # a function has its name
    for seed in ("1", "2"):
        assert run([*SMALL, "--schemes", "bsp", "--seed", seed]) == 0
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == ["stragglers-now", "stragglers-now-2"]
    assert [read_config(folder / "config.yaml").seed for folder in folders] == [1, 2]
    with files_of_at_most(10):
        assert run([*SMALL, "--schemes", "bsp"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert sorted((tmp_path / "runs").iterdir()) == folders


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell replaces it in `--out=~/result`: a folder called `~` was made, for a careless `rm -r ~` to come."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run([*SMALL, "--pattern", "slow-worker:200", "--schemes", "bsp", "--out=~/result"]) == 0
    assert (tmp_path / "home" / "result" / "summary.json").is_file() and not (tmp_path / "~").exists()


def test_an_output_folder_that_is_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("kept")
    assert run([*SMALL, "--out", str(tmp_path / "old")]) == 2
    assert "holds something already" in capsys.readouterr().err
    assert (tmp_path / "old" / "file").read_text() == "kept"
    assert run([*SMALL, "--out", str(tmp_path / "old" / "file")]) == 2
    assert "file is a file; expected a folder or a new name" in capsys.readouterr().err


def test_an_empty_folder_stays_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a link, the folder that the command runs in, or mounted, so that it cannot be made anew."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path / "here")
    for out in (".", "../link"):
        before = Path(out).stat().st_ino
        assert run([*SMALL, "--schemes", "bsp", "--out", out]) == 0
        names = {path.name for path in Path(out).iterdir()}
        assert names == {"config.yaml", "summary.json", "runs.csv", "figure.png"}
        assert Path(out).stat().st_ino == before
    (tmp_path / "lost").symlink_to("nowhere")
    assert run([*SMALL, "--schemes", "bsp", "--out", "../lost"]) == 2
    assert "../lost is a link to nothing; expected a folder or a new name" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "link", "lost", "there"]


def test_dollars_in_the_words_of_a_figure_are_no_formula(tmp_path: Path) -> None:
    (tmp_path / "$^$.csv").write_text("seconds\n1\n2\n")
    config = tmp_path / "c.yaml"
    config.write_text(
        "title: 'from $x^$ on'\nworkers: 4\nmachines: 2\niterations: 2\nunits: 5\nseeds: 1\nschemes: [bsp]\n"
        f"patterns: ['trace:{tmp_path}/$^$.csv']\n"
    )
    assert run([str(config), "--out", str(tmp_path / "a")]) == 0
    config.write_text(config.read_text() + "variants: {$^$: {}}\nvariants_of: $_$\n")
    assert run([str(config), "--out", str(tmp_path / "b")]) == 0
