"""A script in the process that starts a run: what it may do before, in the place of, and after its loop."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

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


SPLIT = """
whole = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
train, held_out = torch.utils.data.random_split(whole, [500, 140])
"""
NOISY = """
class Noisy(torch.utils.data.Dataset):
    noise = np.random.default_rng()
    def __len__(self):
        return 640
    def __getitem__(self, number):
        return x[number] + np.float32(self.noise.normal()), y[number]
train = Noisy()
"""


@pytest.mark.parametrize(
    ("data", "is_refused"), [(SPLIT, True), ("torch.manual_seed(3)\n" + SPLIT, False), (NOISY, False)]
)
def test_items_are_those_of_the_machines(
    data: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what a script holds out would be what its machines have trained on."""
    text = HEAD + OPTIMIZER + data + HERE.replace("(x, y)", "train") + loop()
    torch.manual_seed(5)
    if not is_refused:
        started(text, tmp_path, monkeypatch)
        return
    with pytest.raises(InputError, match=r"other items here than on machines, .* expected the same ones"):
        started(text, tmp_path, monkeypatch)
