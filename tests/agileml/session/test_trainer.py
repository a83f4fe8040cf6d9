"""A script in the process that starts a run: what it may do before, in the place of, and after its loop."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import agileml
from agileml.application import InputError
from tests.agileml.apps.loop.scripts import HEAD, OPTIMIZER, PREPARE, loop, script, values

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = PREPARE.replace(
    "Trainer()", 'Trainer(sequential=True, clocks=10, slices=1, machines={"max": 1, "transient": 0})'
)


def started(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The main module of a script that ran to its end, as `python train.py` runs it in a folder."""
    main = ModuleType("__main__")
    main.__file__ = str(folder / "train.py")
    Path(main.__file__).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", [main.__file__])
    exec(compile(text, main.__file__, "exec"), vars(main))
    return main


def test_a_script_trains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines would run it to its first loop again, and train the first model in the place of the second."""
    once = HEAD + OPTIMIZER + HERE + loop()
    with pytest.raises(InputError, match=r"prepare\(\): found a second training in one script, expected one"):
        started(once + OPTIMIZER + HERE + loop(), tmp_path, monkeypatch)


def test_functions_of_one_script_train_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = """
import agileml
from tests.agileml.session.test_trainer import train_at
rates = []
for rate in (0.1, 0.2):
    trainer = agileml.Trainer(sequential=True, clocks=2, name=str(rate))
    result = trainer.run(lambda: train_at(rate))
    rates.append(result.application.prepared.section["learning_rate"])
"""
    assert started(both, tmp_path, monkeypatch).rates == [0.1, 0.2]


def train_at(rate: float) -> None:
    exec(HEAD + OPTIMIZER.replace("0.05", str(rate)) + PREPARE + loop(), {})


def test_a_script_that_runs_a_function_is_no_script_for_machines(tmp_path: Path) -> None:
    path = script(tmp_path, prepare="agileml.Trainer(clocks=3).run(lambda: None)\n", rest="")
    with pytest.raises(InputError, match=r"run\(\): found it in a script that machines run"):
        agileml.run(values(path), sequential=True, out=str(tmp_path / "out"))


def test_a_loop_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"loader: found a config without clocks, expected .*clocks=500"):
        started(HEAD + OPTIMIZER + HERE.replace("clocks=10, ", "") + loop(), tmp_path, monkeypatch)
