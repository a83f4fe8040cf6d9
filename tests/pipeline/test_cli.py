"""The commands, from the outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agileml.cli import main
from pipeline.partition.plan import parse_plan
from pipeline.profile.layers import chain, read, write
from pipeline.schedule.actions import parse_schedule
from pipeline.topology.file import read_topology
from tests.agileml.runs.full_disk import files_of_at_most

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MODEL = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)), (torch.randn(4, 8),)
def nothing():
    return 3
def bare():
    return torch.nn.Linear(8, 2), torch.randn(4, 8)
def number():
    return 3, (torch.randn(4, 8),)
def vector():
    return torch.nn.Linear(8, 2), (torch.randn(4, 8),), lambda output: output
def constant():
    return torch.nn.Linear(8, 2), (torch.randn(4, 8),), lambda output: 3.0
"""


NEIGHBOUR = "from widths import OUT\n" + MODEL.replace("16, 2", "16, OUT")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    return int(caught.value.code or 0)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    write(chain([8.0, 8.0, 8.0, 1.0, 1.0], [9.0, 4.0, 1.0, 1.0, 1.0], [0.1, 0.1, 0.1, 40.0, 20.0]), path)
    return path


def test_plan_writes_text_numbers_and_a_picture(profile: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "plan"
    assert run("plan", profile, "--topology", "4x10", "--top", 2, "--machines", "3,5", "--out", out) == 0
    printed = capsys.readouterr().out
    for word in ("3-1", "Slowest", "data parallelism", "GPipe", "model parallelism", "5 machines:"):
        assert word in printed
    plan = parse_plan((out / "plan.txt").read_text())
    assert plan.config == "3-1"
    assert parse_schedule((out / "schedule.txt").read_text()).replicas == (3, 1)
    assert json.loads((out / "plan.json").read_text())["config"] == "3-1"
    assert (out / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.glob("*.part"))


def test_plan_needs_no_other_numbers_of_machines(profile: Path, capsys) -> None:
    assert run("plan", profile, "--topology", "4x10") == 0
    assert "3-1" in capsys.readouterr().out
    assert run("plan", profile, "--topology", "4x10", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["machines"] is None


def test_plan_says_what_minibatches_in_flight_give_and_take(profile: Path, capsys) -> None:
    words = ("plan", profile, "--topology", "4x10", "--straight", "--in-flight", "1,2,4")
    assert run(*words) == 0
    assert "2 in flight: " in capsys.readouterr().out
    assert run(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    one, two, four = found["depths"]
    assert (one["in_flight"], two["in_flight"], four["in_flight"]) == (1, 2, 4)
    assert one["simulated_s"] > two["simulated_s"] >= four["simulated_s"]
    assert sum(one["memory_bytes"]) < sum(two["memory_bytes"]) < sum(four["memory_bytes"])
    assert found["simulated_seconds_per_minibatch"] == found["compared"][0]["simulated_s"]
    assert run("plan", profile, "--topology", "4x10", "--in-flight", "0") == 2
    assert "at least one minibatch must be in flight, found 0" in capsys.readouterr().err


def test_a_count_of_machines_that_no_plan_fits_is_said_beside_the_plans_of_the_others(
    profile: Path, capsys
) -> None:
    words = ("plan", profile, "--topology", "4x10", "--memory", "188", "--machines", "1,2")
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert "1 machines: no plan on 1 devices fits" in printed and "2 machines: straight" in printed
    assert run(*words, "--json") == 0
    best, one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert (best["machines"], one["machines"], two["machines"]) == (None, 1, 2)
    assert "no plan" in one["does_not_fit"] and one["config"] is None and two["does_not_fit"] is None
    assert best["config"] and two["config"]


def test_schedule_prints_checks_and_draws(tmp_path: Path, capsys) -> None:
    picture = tmp_path / "s.svg"
    assert run("schedule", "--replicas", "1-1-1-1", "--minibatches", 8, "--out", picture) == 0
    printed = capsys.readouterr().out
    golden = Path(__file__).resolve().parents[1] / "golden" / "pipeline_figure_5_4_1f1b.txt"
    assert printed.startswith(golden.read_text())
    assert "idle 27.3%" in printed
    assert "<svg" in picture.read_text()
    assert (
        run("schedule", "--replicas", "2-1", "--versions", "vertical-sync", "--out", tmp_path / "s.txt") == 0
    )
    assert "@" in (tmp_path / "s.txt").read_text()
    assert run("schedule", "--replicas", "1-1", "--policy", "gpipe", "--group", 2) == 0
    assert run("schedule", "--replicas", "1-1", "--policy", "model-parallel") == 0


def test_a_schedule_too_short_for_a_long_run_says_so(capsys) -> None:
    """Twelve minibatches of 1-4-1 show no turn between start and drain: 4.75 s each, of which 3.75 stay."""
    assert run("schedule", "--replicas", "1-4-1") == 0
    assert "4.75 s per minibatch with start and drain" in capsys.readouterr().out
    assert run("schedule", "--replicas", "1-4-1", "--minibatches", 60) == 0
    assert "3.75 s per minibatch in the long run" in capsys.readouterr().out


def test_profile_measures_and_writes(tmp_path: Path, capsys) -> None:
    (tmp_path / "small_model.py").write_text(MODEL)
    out = tmp_path / "out.json"
    where = f"{tmp_path / 'small_model.py'}:make"
    assert run("profile", where, "--out", out, "--repeats", 2, "--batch", 4) == 0
    assert "The layers add up to" in capsys.readouterr().out
    profile = read(out)
    assert profile.batch == 4
    assert profile.parameter_bytes == (8 * 16 + 16 + 16 * 2 + 2) * 4


def test_size_answers_from_the_shipped_file(tmp_path: Path, capsys) -> None:
    assert run("size", CONFIGS / "pipeline_sizing_alexnet.yaml", "--out", tmp_path / "a.json") == 0
    assert "4 GPUs give 3.14x" in capsys.readouterr().out
    answers = json.loads((tmp_path / "a.json").read_text())
    assert answers["gpus"]["answer"] == 4
    assert answers["minibatch"]["answer"] in (32, 64, 128, 256, 512)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("pipeline_*.yaml")), ids=lambda path: path.name)
def test_every_shipped_file_loads(path: Path) -> None:
    if "sizing" in path.name:
        from pipeline.cli.size import load

        assert load(path).name
    else:
        assert read_topology(path).topology.devices >= 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "nowhere.json", "--topology", "4x1"), "no such file"),
        (("plan", "P", "--topology", "4"), "COUNTxBYTES_PER_SECOND"),
        (("plan", "P", "--topology", "nowhere.yaml"), "cannot be read"),
        (("plan", "P", "--topology", "4x10", "--memory", "much"), "--memory takes a size"),
        (("plan", "P", "--topology", "4x10", "--memory", "20"), "alone needs"),
        (("plan", "P", "--topology", "4x10", "--max-stages", "9"), "more than the 5 layers"),
        (("plan", "P", "--topology", "4x10", "--batch", "0"), "batch must be 1 or more"),
        (("plan", "P", "--topology", "4x10", "--recompute", "x"), "never, auto or always"),
        (("plan", "P", "--topology", "4x10", "--machines", "a"), "whole numbers"),
        (("plan", "P", "--topology", "4x10", "--out", "/nowhere/else/x"), "does not exist"),
        (("plan", "P", "--topology", "4x10", "--out", "P"), "p.json is a file; expected a folder"),
        (
            ("schedule", "--replicas", "1-1", "--out", "/dev/null/x.png"),
            "/dev/null is a file; expected a folder",
        ),
        (("schedule", "--replicas", "1-x"), "whole numbers"),
        (
            ("schedule", "--replicas", "1-1", "--policy", "x"),
            "1f1b, 1f1b-flush, zero-bubble, gpipe, model-parallel",
        ),
        (("schedule", "--replicas", "1-1", "--versions", "x"), "vertical-sync"),
        (("schedule", "--replicas", "1-1", "--forward", "1"), "2 positive numbers"),
        (("schedule", "--replicas", "1-1", "--forward", "nan,1"), "2 positive numbers"),
        (("schedule", "--replicas", "1-1", "--backward", "inf,1"), "2 positive numbers"),
        (("schedule", "--replicas", "1-1", "--policy", "gpipe", "--in-flight", "3"), "not for gpipe"),
        (("schedule", "--replicas", "1-1", "--policy", "gpipe", "--group", "0"), "at least one minibatch"),
        (("schedule", "--replicas", "1-1", "--policy", "gpipe", "--barrier"), "--barrier is for 1f1b"),
        (("schedule", "--replicas", "1-1", "--group", "3"), "--group is not for 1f1b"),
        (
            ("schedule", "--replicas", "1-1", "--policy", "zero-bubble", "--drains", "3"),
            "--drains is not for",
        ),
        (
            ("schedule", "--replicas", "1-1", "--out", "x.gif2"),
            "expected a picture that ends in .png, .svg or .pdf, or .txt for text",
        ),
        (("profile", "nowhere.module:f"), "cannot be imported"),
        (("profile", "F:nope"), "no function"),
        (("profile", "F:nothing"), "must return"),
        (("profile", "F:bare"), "its inputs in a tuple, found Linear and Tensor"),
        (("profile", "F:number"), "its inputs in a tuple, found int and tuple"),
        (("profile", "F:vector"), "the loss must be one number, found shape (4, 2)"),
        (("profile", "F:constant"), "the loss must be one number, found float"),
        (("profile", ":make"), "no name of a module"),
        (("profile", ".models:make"), "no name of a module"),
        (("profile", "F:make", "--repeats", "1", "--out", "/"), "/ is a folder"),
        (("profile", "F:make", "--device", "cuda:77"), "cannot be used"),
        (("size", "nowhere.yaml"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments, words: str, profile: Path, tmp_path: Path, capsys
) -> None:
    made = tmp_path / "small_model.py"
    made.write_text(MODEL)
    replaced = [
        str(profile) if a == "P" else a.replace("F:", f"{made}:") if a.startswith("F:") else a
        for a in arguments
    ]
    assert run(*replaced) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    error = error.strip()
    assert words in error
    assert "\n" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("plan", "P", "--topology", "4x10", "--out", "O"), "plan.txt"),
        (("schedule", "--replicas", "1-1", "--out", "O.png"), ".png"),
        (("schedule", "--replicas", "1-1", "--out", "O.txt"), ".txt"),
        (("profile", "F:make", "--repeats", "1", "--out", "O.json"), ".json"),
    ],
)
def test_a_full_disk_is_one_line_exit_code_1_and_leaves_nothing(
    arguments, name: str, profile: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "small_model.py").write_text(MODEL)
    out = tmp_path / "results"
    out.mkdir()
    places = {"P": str(profile), "F": str(tmp_path / "small_model.py"), "O": str(out / "found")}
    words = [places.get(a[:1], a[:1]) + a[1:] if a[:1] in places else a for a in arguments]
    with files_of_at_most(10):
        assert run(*words) == 1
    line = capsys.readouterr().err.splitlines()[-1]  # after the empty line of a progress bar
    assert line.startswith(f"proteus: {out}/found")
    assert f"{name} cannot be written: File too large" in line
    assert list(out.iterdir()) == []


def test_a_key_that_comes_twice_is_refused(profile: Path, tmp_path: Path, capsys) -> None:
    machines, questions = tmp_path / "machines.yaml", tmp_path / "sizing.yaml"
    machines.write_text("levels:\n  - {count: 4, bytes_per_s: 1.0e9}\nmemory: 1GB\nmemory: 2GB\n")
    assert run("plan", profile, "--topology", machines) == 2
    assert (
        f"{machines} line 4: memory comes twice, first in line 3; expected it once" in capsys.readouterr().err
    )
    questions.write_text("name: a\nname: b\n")
    assert run("size", questions) == 2
    assert f"{questions} line 2: name comes twice, first in line 1" in capsys.readouterr().err


def test_a_model_file_imports_its_neighbours(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "widths.py").write_text("OUT = 3\n")
    (folder / "nets.py").write_text(NEIGHBOUR)
    out = tmp_path / "p.json"
    assert run("profile", f"{folder}/nets.py:make", "--repeats", 1, "--warm-up", 0, "--out", out) == 0
    assert (16 * 3 + 3) * 4 in [layer.parameter_bytes for layer in read(out).layers]
    (folder / "broken.py").write_text("import no_such_module\n")
    assert run("profile", f"{folder}/broken.py:make") == 2
    assert "broken.py cannot be imported: No module named 'no_such_module'" in capsys.readouterr().err


def test_a_model_file_may_have_the_name_of_another_module(tmp_path: Path, capsys) -> None:
    ours, out = sys.modules["pipeline"], tmp_path / "p.json"
    (tmp_path / "pipeline.py").write_text(MODEL)
    assert run("profile", f"{tmp_path}/pipeline.py:make", "--repeats", 1, "--warm-up", 0, "--out", out) == 0
    assert len(read(out).layers) == 4
    assert sys.modules["pipeline"] is ours
