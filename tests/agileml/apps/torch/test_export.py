"""What a run leaves: a model that plain torch loads without this package, and its optimizer's state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import agileml
from agileml.application import InputError, Settings
from agileml.apps.torch.export import torch_state
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.module import TorchModule

X = np.random.default_rng(1).normal(size=(48, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


class Tower(nn.Module):
    """Tied weights, a frozen layer of another dtype, batch norm, a causal mask, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)  # a bias before batch norm has no gradient but rounding
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(6, 6).to(torch.bfloat16).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 2)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("ones", torch.ones(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(x))) * self.ones + self.frozen(x.bfloat16()).float()
        return self.head(x @ torch.softmax(self.mask, 1)) * self.scale


OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "momentum": (
        {"kind": "momentum", "learning_rate": 0.05, "nesterov": True, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": ({"kind": "adagrad"}, lambda p: torch.optim.Adagrad(p)),
    "adamw": ({"kind": "adamw", "learning_rate": 0.01}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    "sgd": ({"kind": "sgd", "learning_rate": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
}


@pytest.mark.parametrize(
    "kind",
    ["momentum", "adamw", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("adagrad", "sgd"))],
)
def test_plain_torch_goes_on_from_the_files_of_a_run(kind: str, tmp_path: Path) -> None:
    """10 clocks and then 5 of plain torch from the files, against 15 clocks: the same parameters to rounding."""
    section, make = OPTIMIZERS[kind]
    app = TorchModule(build=Tower, dataset=(X, Y))

    def run(clocks: int) -> agileml.Result:
        job = {"application": "torch", "model": {"batch_size": 48}, "optimizer": section, "slices": 1}
        job |= {"machines": {"max": 1, "transient": 0}, "clocks": clocks, "out": str(tmp_path / str(clocks))}
        return agileml.run(job, app, sequential=True)

    ran, longer = run(10), run(15)
    module = Tower()
    module.load_state_dict(load_file(ran.folder / "model.safetensors"), strict=True)
    assert int(module.norm.num_batches_tracked) == 10
    optimizer = make(module.parameters())
    optimizer.load_state_dict(torch.load(ran.folder / "optimizer.pt", weights_only=True))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()
        optimizer.step()
    for (name, ours), theirs in zip(
        longer.module().state_dict().items(), module.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=name)


class Counting(nn.Linear):
    """Has float32 parameters, and buffers whose numbers only float64 holds."""

    def __init__(self, number: int = 2**53) -> None:
        super().__init__(6, 2)
        self.register_buffer("seen", torch.tensor(2.0**24, dtype=torch.float64))
        self.register_buffer("limit", torch.tensor(1e300, dtype=torch.float64))
        self.register_buffer("prime", torch.tensor([3, number]))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(x)


def test_buffers_of_float64_keep_their_numbers(tmp_path: Path) -> None:
    app = TorchModule(build=Counting, dataset=(X, Y))
    job = {"application": "torch", "model": {"batch_size": 48}, "clocks": 3, "slices": 8}
    result = agileml.run(job | {"out": str(tmp_path / "run")}, app, sequential=True)
    found = load_file(result.folder / "model.safetensors")
    assert found["seen"].item() == 2.0**24 + 3 and found["limit"].item() == 1e300
    assert found["prime"].tolist() == [3, 2**53]


@pytest.mark.parametrize("number", [2**53 + 1, 2**61 - 1, 2**63 - 1, -(2**60) - 1])
def test_whole_numbers_that_the_table_does_not_hold_are_refused(number: int) -> None:
    """They came back as others: 2^63 - 1 as -2^63."""
    with pytest.raises(
        InputError, match=f"buffer 'prime' has the number {number}, expected whole numbers up to"
    ):
        FlatModule(Counting(number), "model.module")
    FlatModule(Counting(-(2**63)), "model.module")


class Labelled(nn.Linear):
    """A layer whose state dict holds more than tensors."""

    def __init__(self) -> None:
        super().__init__(6, 2)
        self.labels = ["no", "yes"]

    def get_extra_state(self) -> Any:
        return {"labels": self.labels}

    def set_extra_state(self, state: Any) -> None:
        self.labels = state["labels"]


def test_what_a_state_dict_has_beside_tensors_is_the_modules_own(tmp_path: Path) -> None:
    app = TorchModule(build=Labelled, dataset=(X, Y))
    job = {"application": "torch", "model": {"batch_size": 8}, "clocks": 2, "out": str(tmp_path / "run")}
    result = agileml.run(job, app, sequential=True)
    path = result.folder / "model.safetensors"
    assert load_file(path).keys() == {"weight", "bias"}
    module = Labelled()
    for state in (torch_state(path, module), torch_state(result.parameters, module)):
        assert state["_extra_state"] == {"labels": ["no", "yes"]}
        module.load_state_dict(state, strict=True)
        assert torch.equal(module.weight, result.module().weight)


def test_a_result_shows_itself_in_a_line(tmp_path: Path) -> None:
    app = TorchModule(build=lambda: nn.Linear(6, 2), dataset=((X, Y), (X, Y)))
    job = {"application": "torch", "model": {"batch_size": 8}, "clocks": 2, "out": str(tmp_path / "run")}
    result = agileml.run(job, app, sequential=True)
    assert repr(result).startswith("<Result of 2 clocks, loss 0.") and "test_accuracy" in repr(result)
    assert len(repr(result)) < 200
    with pytest.raises(InputError, match="wrote no checkpoints"):
        result.resume(clocks=4)
    other = {"application": "mlr", "clocks": 1, "out": str(tmp_path / "other")}
    with pytest.raises(InputError, match="has no torch module"):
        agileml.run(other, sequential=True).module()
    assert not (tmp_path / "other" / "optimizer.pt").exists()


@pytest.mark.parametrize(
    ("value", "form"),
    [(torch.ones(2, dtype=torch.complex128), "complex128"), (torch.eye(2).to_sparse(), "sparse")],
    ids=["complex128", "sparse"],
)
def test_a_frozen_tensor_that_no_file_can_hold_is_found_before_machines_start(
    value: torch.Tensor, form: str
) -> None:
    def build() -> nn.Module:
        net = nn.Linear(6, 2)
        net.register_parameter("own", nn.Parameter(value, requires_grad=False))
        return net

    data = np.ones((8, 6), np.float32), np.zeros(8, np.int64)
    app = TorchModule(Settings(model={"batch_size": 4}, slices=1), build=build, dataset=data)
    with pytest.raises(InputError, match=f"'own' is a {form} tensor, which model.safetensors cannot hold"):
        app.check()


def test_a_saved_buffer_is_dense() -> None:
    net = nn.Linear(6, 2)
    net.register_buffer("neighbours", torch.eye(2).to_sparse())
    with pytest.raises(InputError, match="buffer 'neighbours' is a sparse tensor, expected a dense one"):
        FlatModule(net, "net")
