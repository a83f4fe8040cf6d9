"""The examples: a plain script, the same made elastic by a few lines, and the same bits through faults."""

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import agileml
from agileml.application import Settings
from agileml.apps.loop.module import ScriptModule
from agileml.cli.chaos import run_chaos
from agileml.config.job import from_values
from agileml.config.text import parse_yaml
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig

ROOT = Path(__file__).parents[2]
NAMES = ("resnet", "gpt", "bert")
MOST_LINES = 10
PLAN = [
    {"at_clock": 4, "join": 1},
    {"at_clock": 9, "kill": 1},
    {"at_clock": 15, "notice": 1, "warning_s": 30},
    {"at_clock": 20, "join": 2},
    {"at_clock": 26, "kill_many": "all"},
]


def shown_diff(name: str) -> str:
    """What was changed in the plain script, as the guide shows it."""
    plain, elastic = ((ROOT / "examples" / f"{name}_{kind}.py").read_text() for kind in ("plain", "elastic"))
    lines = difflib.unified_diff(plain.splitlines(), elastic.splitlines(), lineterm="", n=1)
    return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@")) + "\n"


def values(name: str, **more: Any) -> dict[str, Any]:
    machines, _ = parse_yaml((ROOT / "examples" / "machines.yaml").read_text(), "machines.yaml")
    return {**machines, "model": {"script": str(ROOT / "examples" / f"{name}_elastic.py")}, **more}


@pytest.mark.parametrize("name", NAMES)
def test_a_script_becomes_elastic_by_ten_lines_and_the_guide_shows_them(name: str) -> None:
    diff = shown_diff(name)
    changed = [line for line in diff.splitlines() if line[0] in "+-" and line[1:].strip()]
    added, removed = (sum(line[0] == sign for line in changed) for sign in "+-")
    assert max(added, removed) <= MOST_LINES and added + removed <= MOST_LINES, diff
    page = (ROOT / "docs" / "guides" / "torch.md").read_text()
    assert diff in re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S), f"```diff\n{diff}```"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_examples_end_with_the_same_bits_through_joins_notices_and_kills(name: str, tmp_path: Path) -> None:
    config = values(name, plan=PLAN, clocks=32, cuts={"every_s": 0.2, "max_clocks": 4})
    ran = FaultRig(config, tmp_path).finish()
    assert ran.sha256 == reference(config)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", NAMES)
def test_an_example_survives_twelve_faults_on_real_nodes(name: str, tmp_path: Path) -> None:
    """The bits of one process: so each item counted once in every pass, and no loss differs."""
    assert run_chaos(from_values(values(name, clocks=48)), 1, 12, tmp_path / "chaos").is_good


@pytest.mark.slow
def test_the_recommender_learns(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "recommender.py").read_text()
    alone = text.replace('"examples/machines.yaml"', f'"{ROOT}/examples/machines.yaml", sequential=True')
    assert alone != text
    (tmp_path / "recommender.py").write_text(alone)
    words = [sys.executable, "recommender.py", "20000"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (right,) = re.findall(r"^([\d.]+)% of 4096 new offers told right$", done.stdout, re.M)
    assert float(right) > 90


@pytest.mark.slow
def test_a_hugging_face_model_comes_back_from_pretrained(tmp_path: Path) -> None:
    """Its own format: what the run wrote, and the config of the model beside it."""
    # Not above: it takes seconds, and every process that collects tests would pay for it.
    from transformers import BertForSequenceClassification

    result = agileml.run(values("bert", clocks=8), sequential=True, out=str(tmp_path / "out"))
    module = result.module()
    module.config.save_pretrained(result.folder)
    found = BertForSequenceClassification.from_pretrained(result.folder)
    for (name, ours), theirs in zip(module.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    start = ScriptModule(Settings(model={"script": str(ROOT / "examples" / "bert_elastic.py")}, slices=1))
    before = start.prepared.model.state_dict()
    frozen = [name for name, p in start.prepared.model.named_parameters() if not p.requires_grad]
    assert frozen and all(torch.equal(before[name], found.state_dict()[name]) for name in frozen)
    start.ended()
