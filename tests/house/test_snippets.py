"""Every Python and shell snippet of the front page, the quickstart, the guides, and the pages of keys and events is run
by a test, or is named here with the reason why not."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import agileml
from agileml.application import Settings
from agileml.apps.documents import load_documents
from agileml.cli import main
from agileml.events.run import ClockDone
from agileml.runs.event_log import EventLog
from pipeline.profile.layers import chain, write

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("quickstart", "configuration", "events")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
SNIPPET = re.compile(r"^```(python|bash|sh|console)\n(.*?)^```$", re.M | re.S)

HERE = "tests/house/test_snippets.py"
GUIDE = "tests/agileml/apps/test_guide.py"
SIMULATED = "tests/bidbrain/simulate/test_tables.py"
# By page and number of the snippet on it: the test that runs it.
RUN = {
    "quickstart 2": HERE,
    "quickstart 3": HERE,
    "quickstart 4": "tests/agileml/runs/test_folder.py",
    "configuration 1": HERE,
    "events 1": HERE,
    "applications 1": GUIDE,
    "applications 2": GUIDE,
    "applications 3": GUIDE,
    "applications 4": HERE,
    "pipelines 1": HERE,
    "pipelines 2": HERE,
    "pipelines 3": HERE,
    "simulate-bidding 1": HERE,
    "simulate-bidding 2": SIMULATED,
    "simulate-bidding 3": SIMULATED,
    "stragglers 1": "tests/straggler/test_docs.py",
    "stragglers 2": "tests/straggler/test_docs.py",
    "torch 1": "tests/agileml/apps/torch/test_training.py",
    "torch 2": HERE,
    "torch 3": HERE,
    "torch 4": "tests/agileml/apps/torch/test_training.py",
}
NOT_RUN = {
    "quickstart 1": "make demo installs everything first; tests/agileml/market/test_real_nodes.py runs its config",
    "kubernetes 1": "needs Docker, a registry and a cluster",
    "kubernetes 2": "needs a cluster",
    "market 1": "minutes each; tests/agileml/market/test_real_nodes.py runs their config",
    "market 2": "a fragment: its setting, policy and trainer are the reader's own; tests/bidbrain/live runs the same",
    "pipelines 4": "the seconds of the layers are left out; tests/pipeline/ibatch runs the same",
    "ray-cluster 1": "starts a cluster that stays; tests/cluster does the same on local nodes",
    "ray-cluster 2": "needs Docker",
    "ray-cluster 3": "needs a cluster that stays; tests/cluster does the same on local nodes",
    "ray-cluster 4": "needs a cluster that stays; tests/cluster does the same on local nodes",
    "ray-cluster 5": "needs a cluster that stays; tests/cluster does the same on local nodes",
    "ray-cluster 6": "ends machines, in an account",
    "ray-cluster 7": "needs Redis and a cluster that stays; tests/cluster/test_head_with_redis.py does the same",
}


def snippets() -> dict[str, str]:
    """By page and number, its text."""
    return {
        f"{page.stem} {number}": text
        for page in PAGES
        for number, (_, text) in enumerate(SNIPPET.findall(page.read_text()), 1)
    }


SNIPPETS = snippets()


def test_each_snippet_is_run_or_has_a_reason() -> None:
    assert not RUN.keys() & NOT_RUN.keys()
    assert RUN.keys() | NOT_RUN.keys() == SNIPPETS.keys()
    for name, test in RUN.items():
        text = (ROOT / test).read_text()
        assert f'"{name}"' in text or f"{name.split()[0]}.md" in text, f"{test} does not know {name}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder of its own, with the files that the torch guide takes from the reader."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("net", None)


NET = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
def data():
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(640, 12, generator=drawn), torch.randint(0, 3, (640,), generator=drawn)
"""


def executed(name: str, **names: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"__name__": "page", **names}
    exec(SNIPPETS[name], known)
    return known


def test_a_config_and_a_log_are_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "configs").symlink_to(ROOT / "configs")
    assert executed("configuration 1")["config"].clocks == 200
    assert "clocks: 200" in capsys.readouterr().out
    (folder / "runs" / "demo").mkdir(parents=True)
    with closing(EventLog(Path("runs/demo/events.jsonl"))) as log:
        log.write(ClockDone(1, 0.5, 64, None))
    assert executed("events 1")["losses"] == [0.5]


@pytest.mark.slow
def test_the_words_of_topics(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.txt").write_text(
        "apples pears plums\ncats dogs mice\napples pears cats\nplums dogs mice\n" * 4
    )
    data = {"kind": "text", "path": "text.txt", "most_share": 1.0}
    words = load_documents(Settings(data=data))[0].words
    save_file({"topics": np.eye(len(words), 2, dtype=np.float32)}, "model.safetensors")
    executed("applications 4")["top_words"]("model.safetensors", data, count=1)
    assert capsys.readouterr().out.split() == list(words[:2])


@pytest.mark.slow
def test_modules_and_plans_of_pipelines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, (x,) = executed("pipelines 1")["make"]()
    assert model(x).shape == (128, 10)
    model, loss, minibatch = executed("pipelines 3")["training"]()
    inputs, targets = minibatch(1)
    assert torch.isfinite(loss(model(*inputs), *targets))
    write(chain([8e-3] * 8, [4e6] * 8, [1e6] * 8), folder / "profile.json")
    executed("pipelines 2")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_a_policy_in_eight_lines_is_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine_to_bid.py").write_text(SNIPPETS["simulate-bidding 1"])
    config = str(ROOT / "configs" / "simulate_2016.yaml")
    options = ["--schemes", "mine_to_bid:Cheapest", "--job-hours", "2", "--starts", "2", "--out", "out"]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", config, *options])
    assert not ended.value.code, capsys.readouterr().err
    assert "mine_to_bid:Cheapest" in (folder / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_class_of_a_training(folder: Path) -> None:
    training = executed("torch 3")["Digits"]
    torch.manual_seed(0)
    machines = {"reliable": 1, "transient": 0, "max": 1}
    settings = {"model": {"batch_size": 64}, "machines": machines, "slices": 2, "out": str(folder / "out")}
    assert agileml.Trainer(clocks=3, sequential=True, **settings).run(training).parameters


@pytest.mark.slow
def test_a_script_with_a_loop(folder: Path) -> None:
    job = "application: torch\nslices: 2\nmachines: {reliable: 1, transient: 0, max: 1}\nout: out\n"
    (folder / "job.yaml").write_text(job)
    script = SNIPPETS["torch 2"].replace('Trainer("job.yaml")', 'Trainer("job.yaml", sequential=True)')
    (folder / "train.py").write_text(script.replace("print(trainer.result.metrics)", "print(trainer.result)"))
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "model.pt").exists() and "Result of" in done.stdout


def commands() -> list[str]:
    """The commands of the quickstart, without those of `make`."""
    shown = SNIPPETS["quickstart 2"] + SNIPPETS["quickstart 3"]
    return [line.partition("#")[0].strip() for line in shown.splitlines() if line.startswith("proteus ")]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_quickstart_runs_as_it_stands(command: str, tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    words = [sys.executable, "-m", "agileml.cli", *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
