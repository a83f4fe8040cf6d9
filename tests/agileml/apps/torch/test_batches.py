"""Batches of every form, in micro batches, in mixed precision, and from loader processes."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset

from agileml.application import InputError, Settings, Unit
from agileml.apps.torch.batches.loader import Loader, Request
from agileml.apps.torch.batches.trees import mapped, tensors
from agileml.apps.torch.flat import PARAMETERS
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.seeding import seeded_for_data
from agileml.core.compute.unit_error import UnitError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential

X = torch.from_numpy(np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32))
Y = (X[:, 0] > 0).long()


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Words:
    tokens: Tensor
    name: str


def test_a_tree_keeps_its_form() -> None:
    tree = {"a": [X, (Pair(Y, "text"), Words(X, "w"))], "n": 3, "none": None}
    doubled = mapped(tree, lambda tensor: tensor * 2)
    assert torch.equal(doubled["a"][0], 2 * X)
    pair, words = doubled["a"][1]
    assert isinstance(pair, Pair) and torch.equal(pair.left, 2 * Y) and pair.right == "text"
    assert isinstance(words, Words) and torch.equal(words.tokens, 2 * X) and words.name == "w"
    assert doubled["n"] == 3 and doubled["none"] is None
    assert [id(tensor) for tensor in tensors(tree)] == [id(X), id(Y), id(X)]


def test_a_packed_sequence_goes_to_a_device_as_torch_wants_it() -> None:
    packed = pack_sequence([X[0], X[1, :3], X[2, :2]])
    moved = mapped({"text": packed}, lambda tensor: tensor.to("meta"))["text"]
    assert moved.data.is_meta and moved.data.shape == (11,)
    assert torch.equal(moved.batch_sizes, packed.batch_sizes)


class Items(Dataset[Any]):
    """The items as `make` forms them; counts how they are asked for."""

    def __init__(self, make: Callable[[int], Any], together: bool = False) -> None:
        self.make = make
        self.asked: list[int] = []
        if together:
            self.__getitems__ = self.several  # type: ignore[assignment]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.asked.append(1)
        return self.make(index)

    def several(self, indices: list[int]) -> list[Any]:
        self.asked.append(len(indices))
        return [self.make(index) for index in indices]


def test_a_collate_function_that_would_not_be_called_is_refused() -> None:
    for own in ({"dataset": (X, Y)}, {}):
        app = TorchModule(Settings({} if own else {"kind": "digits"}), build=linear, collate=list, **own)
        with pytest.raises(InputError, match="found arrays with a collate function, expected a Dataset"):
            _ = app.data


class OfDicts(nn.Module):
    """As the models of Hugging Face: keywords in, an output with its loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.layer(x)
        return SimpleNamespace(loss=functional.cross_entropy(logits, labels), logits=logits)


def step(module: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(module(batch.tokens), batch.labels)


@dataclasses.dataclass
class Batch:
    tokens: Tensor
    labels: Tensor


def collate(items: list[Any]) -> Batch:
    return Batch(torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items]))


def linear() -> nn.Module:
    return nn.Linear(6, 2)


def train(build: Callable[[], nn.Module], dataset: Any, clocks: int = 4, **own: Any) -> np.ndarray:
    model = {"batch_size": 20, **own.pop("model", {})}
    app = TorchModule(Settings(model=model, slices=2), build=build, dataset=dataset, **own)
    app.check()
    tables = run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=clocks)
    app.ended()
    assert np.isfinite(app.evaluate(tables).get("test_loss", 0.0))
    return tables[PARAMETERS]


def pairs(index: int) -> Any:
    return X[index], int(Y[index])


def dicts(index: int) -> Any:
    return {"x": X[index], "labels": Y[index]}


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "pairs": lambda: {"build": linear, "dataset": (Items(pairs), Items(pairs))},
    "together": lambda: {"build": linear, "dataset": (Items(pairs, together=True), Items(pairs))},
    "dicts": lambda: {"build": OfDicts, "dataset": (Items(dicts), Items(dicts))},
    "a step": lambda: {
        "build": linear,
        "dataset": (Items(pairs), Items(pairs)),
        "collate": collate,
        "step": step,
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_train_to_the_same_bits(form: str) -> None:
    given = FORMS[form]()
    assert np.array_equal(train(**given), train(linear, (X, Y)))
    if form == "together":
        assert set(given["dataset"][0].asked) == {8, 10}, (
            "the batch that was tried, then one call for each unit"
        )


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"dataset": Items(lambda i: "text")}, "found a batch of type list without tensors"),
    "not alike": ({"dataset": Items(lambda i: (object(), 1))}, "found an item that cannot be put together"),
    "a tensor alone": ({"dataset": Items(lambda i: X[i])}, "found a batch of type Tensor, expected"),
    "no loss": (
        {"build": lambda: nn.Module(), "dataset": Items(dicts)},
        "no parameter that needs a gradient",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_batches_that_are_none(name: str) -> None:
    given, sentence = WRONG[name]
    with pytest.raises(InputError) as found:
        train(**{"build": linear, **given})
    assert sentence in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize("most", [1, 3, 7, 50])
def test_micro_batches_sum_to_the_whole(most: int) -> None:
    def deep() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 2)).double()

    data = (X.double(), Y)
    whole, pieces = train(deep, data), train(deep, data, model={"micro_batch": most})
    np.testing.assert_allclose(pieces, whole, rtol=1e-12, atol=1e-14)


def test_micro_batches_stream_each_range_once() -> None:
    app = TorchModule(
        Settings(model={"batch_size": 20, "micro_batch": 3}, slices=1), build=linear, dataset=(X, Y)
    )
    tables = {table.name: app.initial(table) for table in app.tables()}
    said: list[tuple[int, int]] = []
    values: list[np.ndarray] = []

    def ready(_: str, array: np.ndarray, start: int, stop: int) -> None:
        said.append((start, stop))
        values.append(array[start:stop].copy())

    updates = app.process_streaming([Unit(0, 0)], [app.load(0)], tables, ready)
    assert sorted(said) == [(span.start, span.end) for span in app.flat.spans]
    for (start, stop), then in zip(said, values, strict=True):
        assert np.array_equal(updates.tables[PARAMETERS][0, start:stop], then), "final when it was said"


def test_autocast_is_that_of_torch() -> None:
    ours = train(linear, (X, Y), clocks=1, model={"autocast": "bfloat16", "batch_size": 40})
    app = TorchModule(Settings(model={"batch_size": 40}, slices=2), build=linear, dataset=(X, Y))
    module = app.flat.module
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.cross_entropy(module(X), Y)
    loss.backward()
    start = app.initial(app.tables()[0])
    moved = torch.from_numpy((start - ours).reshape(-1) / 0.1)
    for span, (_, parameter) in zip(app.flat.spans, app.flat.parameters, strict=True):
        torch.testing.assert_close(span.of(moved), parameter.grad, rtol=2e-2, atol=2e-3)
    exact = train(linear, (X, Y), clocks=1, model={"batch_size": 40})
    assert not np.array_equal(ours, exact), "it did compute in bfloat16"


class Noisy(Dataset[Any]):
    """Items with random numbers of their own, which also say in which process they were made."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == int(os.environ.get("PROTEUS_TEST_BAD_ITEM", -1)):
            raise OSError(f"item {index} is damaged")
        return X[index] + 0.1 * torch.randn(6) + float(np.random.rand()), int(Y[index])


def test_loader_processes_change_no_bit_and_fetch_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    app = TorchModule(
        Settings(model={"batch_size": 20, "loader_processes": 1}, slices=2), build=linear, dataset=Noisy()
    )
    tables = {table.name: app.initial(table) for table in app.tables()}
    shares = [app.load(index) for index in range(2)]
    app.warm_up()
    submitted: list[Any] = []
    pool = app.loader._pool
    assert pool is not None
    submit = pool.submit
    monkeypatch.setattr(pool, "submit", lambda *asked: (submitted.append(asked[1]), submit(*asked))[1])

    def clock(number: int, units: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        submitted.clear()
        for unit in units:
            app.process(Unit(number, unit), shares[unit], tables)
        return [(request.clock, request.units) for request in submitted]

    assert clock(0, (0, 1)) == [(0, (0,)), (1, (0,)), (0, (1,)), (1, (1,))]
    assert clock(1, (0, 1)) == [(2, (0,)), (2, (1,))], "what was fetched ahead is used"
    assert clock(2, (1,)) == [(3, (1,))]
    assert clock(1, (0,)) == [(1, (0,))], "after a rollback it is made again; clock 2 is there still"
    assert {key[0] for key in app.loader._ahead} <= {1, 2}
    there = run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=6)[PARAMETERS]
    app.ended()
    assert np.array_equal(train(linear, Noisy(), clocks=6), there)


@pytest.mark.slow
def test_an_exception_in_a_loader_process_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTEUS_TEST_BAD_ITEM", "17")
    app = TorchModule(
        Settings(model={"batch_size": 40, "loader_processes": 1}), build=linear, dataset=Noisy()
    )
    with pytest.raises(UnitError, match="clock 0, units 0: OSError: item 17 is damaged") as found:
        run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=2)
    assert "in __getitem__" in found.value.trace
    app.ended()


class Deadly(Noisy):
    """Ends the process that asks for an item, if it is not the one that trains."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != self.pid:
            os._exit(3)
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_loader_process_that_dies_is_a_sentence() -> None:
    app = TorchModule(
        Settings(model={"batch_size": 40, "loader_processes": 1}), build=linear, dataset=Deadly()
    )
    with pytest.raises(InputError, match=r"model\.loader_processes: a loader process died"):
        run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.1), clocks=2)
    app.ended()


@pytest.mark.slow  # a process that imports torch
def test_a_loader_process_that_died_before_it_was_asked_is_a_sentence() -> None:
    def made(numbers: np.ndarray[Any, Any]) -> Any:
        return os._exit(3) if numbers[0] == 1 else numbers

    loader = Loader(lambda: made, 1, seeded_for_data)
    requests = [Request(clock, (0,), (np.array([clock]),), 0) for clock in range(4)]
    assert loader.batches(requests[0])[0].tolist() == [0]
    loader.fetch_ahead(requests[1])
    wait(loader._ahead.values())
    for ask in (loader.fetch_ahead, loader.batches):
        with pytest.raises(InputError, match=r"model\.loader_processes: a loader process died"):
            ask(requests[2])
    loader.stop()


OF_THE_SCRIPT = """
import contextlib, dataclasses, os
import numpy as np
from agileml.application import InputError
from agileml.apps.torch.batches.loader import Loader, Request

@dataclasses.dataclass
class Batch:
    numbers: np.ndarray

class Lost:
    'Travels by the name of the script.'
    def __reduce__(self):
        return getattr, (__import__("__main__"), "Batch")

lost = Lost()

def finds_a_name():
    return lambda numbers: (lost, numbers)

def opens_a_file():
    open("/no/such/file")

def makes_objects():
    return lambda numbers: Batch(numbers)

for make in (finds_a_name, opens_a_file, makes_objects):
    loader = Loader(make, 1, lambda seed: contextlib.nullcontext())
    try:
        loader.batches(Request(0, (0,), (np.arange(10),), 0))
    except InputError as error:
        print(error, flush=True)
    loader.stop()
"""


@pytest.mark.slow  # four processes that import torch
def test_a_loader_process_that_lacks_a_name_of_the_script_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OF_THE_SCRIPT], capture_output=True, text=True, check=True, timeout=240
    )
    advice = (
        "a loader process does not run the script: where it lacks a class or function of the script, expected that in "
        "a module of its own, which the script imports"
    )
    cannot = "model.loader_processes: a loader process cannot load the data set"
    by_name, file, batch = done.stdout.splitlines()
    assert by_name == f"{cannot} (AttributeError: module '__main__' has no attribute 'Batch'); {advice}"
    assert file == (
        f"{cannot} (FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'); "
        "expected one that loads there as here"
    )
    assert batch.startswith("model.loader_processes: what a loader process made cannot be sent (")
    assert "__main__.Batch" in batch and batch.endswith(advice)
    assert "Exception in initializer" not in done.stderr, done.stderr


KILLED = """
import contextlib, time
import numpy as np, torch
from agileml.apps.torch.batches.loader import Loader, Request
data = torch.arange(100.0)
loader = Loader(lambda: lambda numbers: data[torch.as_tensor(numbers)], 1, lambda seed: contextlib.nullcontext())
loader.batches(Request(0, (0,), (np.arange(10),), 0))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow  # two processes that import torch
def test_a_loader_process_whose_machine_was_killed_leaves_no_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    ) as machine:  # fmt: skip
        assert machine.stdout is not None and machine.stdout.readline() == "ready\n"
        assert list(tmp_path.iterdir())
        machine.kill()
    until_s = time.monotonic() + 60
    while list(tmp_path.iterdir()):
        assert time.monotonic() < until_s
        time.sleep(0.1)
