"""Jobs whose items are in Parquet files, tar files and Hugging Face's data sets: each item once a pass."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

import agileml
from agileml.application import InputError, Settings
from agileml.apps.torch.flat import PARAMETERS
from agileml.apps.torch.module import TorchModule
from agileml.cli.chaos import run_chaos
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig

ITEMS, BATCH, PASSES = 96, 16, 5
PLAN = [
    {"at_clock": 3, "join": 1},
    {"at_clock": 8, "kill": 1},
    {"at_clock": 13, "notice": 1, "warning_s": 30},
    {"at_clock": 18, "join": 2},
    {"at_clock": 22, "kill_many": "all"},
]


class Counting(nn.Module):
    """A parameter for each item; a step of SGD at the rate of the batch's size takes 1 from those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(ITEMS))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.left[numbers]


def step(module: nn.Module, batch: Any) -> Tensor:
    return module(batch["number"]).mean()


def parquet(folder: Path) -> dict[str, Any]:
    for file, first in enumerate(range(0, ITEMS, 32)):
        table = pa.table({"number": np.arange(first, first + 32), "other": ["x"] * 32})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=7)
    return {"kind": "parquet", "path": str(folder), "columns": ["number"], "shuffle_items": 10}


def tar(folder: Path) -> dict[str, Any]:
    for file, numbers in enumerate(np.array_split(np.arange(ITEMS), 5)):
        with tarfile.open(folder / f"{file}.tar", "w") as opened:
            for number in numbers:
                info = tarfile.TarInfo(f"{number}.number.json")
                info.size = len(text := str(number).encode())
                opened.addfile(info, io.BytesIO(text))
    decode = "tests.agileml.apps.torch.test_items_in_files:numbered"
    return {"kind": "tar", "path": f"{folder}/*.tar", "shuffle_items": 10, "decode": decode}


def numbered(row: dict[str, Any]) -> dict[str, int]:
    return {"number": row["number.json"]}


def huggingface(folder: Path) -> dict[str, Any]:
    import datasets  # takes a second

    datasets.Dataset.from_dict({"number": list(range(ITEMS))}).save_to_disk(str(folder / "saved"))
    return {"kind": "huggingface", "path": str(folder / "saved")}


Made = Callable[[Path], dict[str, Any]]
KINDS = [
    parquet,
    pytest.param(tar, marks=pytest.mark.slow),
    pytest.param(huggingface, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("made", KINDS)
def test_every_item_counts_once_a_pass_through_joins_notices_and_kills(made: Made, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = {
        "application": "torch",
        "data": made(tmp_path / "data"),
        "model": {"batch_size": BATCH},
        "optimizer": {"kind": "sgd", "learning_rate": float(BATCH)},
        "clocks": PASSES * ITEMS // BATCH,
        "slices": 8,
        "machines": {"reliable": 1, "transient": 2, "max": 8},
        "cuts": {"every_s": 0.05, "max_clocks": 4},
        "plan": PLAN,
    }
    app = TorchModule(build=Counting, step=step)
    ran = FaultRig(config, tmp_path, application=app).finish()
    assert ran.tables is not None, ran.halted
    assert ran.tables[PARAMETERS][0, :ITEMS].tolist() == [-PASSES] * ITEMS
    assert ran.sha256 == reference(config, app)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("made", [parquet, tar, huggingface])
def test_every_item_counts_once_a_pass_through_twelve_random_faults(made: Made, tmp_path: Path) -> None:
    """On real nodes; the items are counted in the model that is left."""
    (tmp_path / "data").mkdir()
    here = "tests.agileml.apps.torch.test_items_in_files"
    config = {
        "application": "torch",
        "data": made(tmp_path / "data"),
        "model": {"module": f"{here}:Counting", "step": f"{here}:step", "batch_size": BATCH},
        "optimizer": {"kind": "sgd", "learning_rate": float(BATCH)},
        "clocks": PASSES * ITEMS // BATCH,
        "slices": 8,
        "machines": {"reliable": 1, "transient": 3, "max": 6},
    }
    assert run_chaos(from_values(config), 1, 12, tmp_path / "chaos").is_good
    models = list((tmp_path / "chaos").rglob("model.safetensors"))  # the run's, and that of one process
    assert len(models) == 2
    for model in models:  # chaos trains for as many clocks as its faults take: whole passes and a part of one
        counts = -load_file(model)["left"]
        assert counts.min() >= PASSES and counts.max() - counts.min() <= 1 and counts.sum() % BATCH == 0


def test_machines_get_the_list_of_files_with_the_application(tmp_path: Path) -> None:
    """A file that comes later is in no machine's list."""
    settings = Settings(parquet(tmp_path), {"batch_size": BATCH}, 0, 8)
    app = TorchModule(settings, build=Counting, step=step)
    sent = app.as_sent()
    assert sent is not None
    pq.write_table(pa.table({"number": [0, 1]}), tmp_path / "0a.parquet")
    assert len(sent.data.train) == ITEMS and sent.data.name == str(tmp_path)
    assert len(TorchModule(settings, build=Counting, step=step).data.train) == ITEMS + 2
    assert TorchModule(Settings({"kind": "digits"}), build=Counting).as_sent() is None


def linear() -> nn.Module:
    return nn.Linear(3, 2)


@pytest.mark.slow
def test_splits_of_a_dataset_dict_train_and_evaluate(tmp_path: Path) -> None:
    """Without a format of its own a data set of Hugging Face's gives tensors."""
    import datasets

    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    rows = {"x": x.tolist(), "label": (x[:, 0] > 0).astype(int).tolist()}
    whole = datasets.Dataset.from_dict(rows)
    splits = datasets.DatasetDict(
        {"train": whole.select(range(40)), "validation": whole.select(range(40, 60))}
    )
    splits.save_to_disk(str(tmp_path / "saved"))
    job = {
        "application": "torch",
        "model": {"batch_size": 8},
        "optimizer": {"kind": "adam", "learning_rate": 0.05},
        "clocks": 60,
        "data": {"kind": "huggingface", "path": str(tmp_path / "saved"), "inputs": ["x"], "target": "label"},
    }
    result = agileml.run(
        job, application=TorchModule(build=linear), sequential=True, out=str(tmp_path / "out")
    )
    assert result.metrics["test_accuracy"] > 0.8
    split = result.summary["split"]
    assert (split["train_items"], split["test_items"]) == (40, 20)
    app = TorchModule(Settings(model={"batch_size": 8}), build=linear, dataset=splits)
    batch = app.data.train.take(np.array([3, 1]))
    assert torch.equal(batch["x"], torch.from_numpy(x[[3, 1]])) and app.data.test is not None


@pytest.mark.slow
def test_items_of_a_transform_and_of_numpy_are_put_together_as_a_loader_does() -> None:
    import datasets

    def doubled(rows: dict[str, Any]) -> dict[str, Any]:
        return {"pixels": [2 * torch.tensor(x) for x in rows["x"]], "label": rows["label"]}

    plain = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "label": [0, 1, 0]})
    for found in (plain.with_transform(doubled), plain.with_format("numpy"), plain.with_format("torch")):
        app = TorchModule(Settings(model={"batch_size": 2}), build=linear, dataset=found)
        batch = app.data.train.take(np.array([1, 2]))
        expected = next(iter(DataLoader(found.select([1, 2]), batch_size=2)))
        assert list(batch) == list(expected)
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"kind": "parquet"}, "data.path: missing, expected a value"),
        ({"kind": "parquet", "path": "none.parquet"}, "data.path: none.parquet does not exist in "),
        ({"kind": "parquet", "path": "x", "shufle_items": 3}, "data.shufle_items: unknown key, did you mean"),
        ({"kind": "parquet", "path": "x", "memory_mib": 0}, "data.memory_mib: found 0, expected more than 0"),
        ({"kind": "tar", "path": 3}, "data.path"),
        ({"kind": "parket", "path": "x"}, "data.kind: found parket, did you mean parquet"),
        pytest.param(
            {"kind": "huggingface", "path": "none/such"},
            "data.path: none/such cannot be loaded as a data set (",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_mistakes_are_one_sentence(data: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((InputError, ConfigError)) as caught:
        _ = TorchModule(Settings(data), build=linear).data
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_inputs_that_are_no_columns_are_named(tmp_path: Path) -> None:
    found = huggingface(tmp_path)
    for more, said in (
        ({"inputs": ["nummer"], "target": "number"}, "data.inputs: found nummer, expected some of number"),
        ({"inputs": ["number"]}, "data.inputs: found one of inputs and target, expected both or none"),
        ({"split": "test"}, None),
        ({"test_split": "test"}, "data.test_split: found test, expected none: "),
    ):
        app = TorchModule(Settings({**found, **more}), build=linear)
        if said is None:
            assert app.data.test is None
            continue
        with pytest.raises(InputError) as caught:
            _ = app.data
        assert str(caught.value).startswith(said)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("agileml.config.packages.find_spec", lambda name: None)
    for kind, name in (("parquet", "pyarrow"), ("huggingface", "datasets")):
        with pytest.raises(
            InputError, match=rf"^data\.kind: .* the package {name}, .*: pip install '{name}>="
        ):
            _ = TorchModule(Settings({"kind": kind, "path": str(tmp_path)}), build=linear).data
