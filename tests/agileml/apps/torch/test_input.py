"""What a torch job refuses, in one sentence, and the odd modules and data that it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from agileml.application import InputError, Settings, Unit
from agileml.apps import build
from agileml.apps.torch.export import torch_state
from agileml.apps.torch.flat import PARAMETERS, FlatModule
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.objective import OutputLoss
from agileml.apps.torch.step import Batch, Stepper
from agileml.config.text import ConfigError
from agileml.core.compute.unit_error import UnitError
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from agileml.runs.folder import RunFolder

RNG = np.random.default_rng(1)
X = RNG.normal(size=(40, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def job(
    build: Callable[[], Any], *, dataset: Any = (X, Y), slices: int = 2, batch: int | None = 20, **own: Any
) -> TorchModule:
    return TorchModule(
        Settings(model={"batch_size": batch}, slices=slices), build=build, dataset=dataset, **own
    )


def train(app: TorchModule, clocks: int = 3, rate: float = 0.1) -> dict[str, np.ndarray]:
    return run_sequential(app, optimizer=optimizer("sgd", learning_rate=rate), clocks=clocks)


class Net(nn.Module):
    """A linear layer, and one more thing."""

    def __init__(self, more: Callable[["Net"], None] = lambda net: None) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        more(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def frozen() -> nn.Module:
    return Net().requires_grad_(False)


def mixed() -> nn.Module:
    net = Net()
    net.layer.bias = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    return net


def overlapping() -> nn.Module:
    net = Net()
    net.register_parameter("copy", nn.Parameter(net.layer.weight.data[:1]))
    return net


def frozen_view() -> nn.Module:
    net = Net()
    net.copy = nn.Parameter(net.layer.weight.data.t(), requires_grad=False)
    return net


def buffer_view() -> nn.Module:
    net = Net()
    net.register_buffer("copy", net.layer.weight.detach()[1], persistent=False)
    return net


def not_a_number() -> nn.Module:
    net = Net()
    net.register_buffer("mean", torch.tensor([0.0, float("nan")]))
    return net


def broken() -> nn.Module:
    raise KeyError("weights")


MODULES: dict[str, tuple[Callable[[], Any], str]] = {
    "no gradient": (frozen, "no parameter that needs a gradient, expected at least one"),
    "mixed": (mixed, "'layer.weight' has dtype float32 and 'layer.bias' float64, expected one dtype"),
    "half": (lambda: Net().half(), "'layer.weight' has dtype float16, expected float32 or float64"),
    "overlapping": (overlapping, "'copy' and 'layer.weight' lie in the same memory but are two objects"),
    "a frozen view": (frozen_view, "'copy' lies in the memory of parameter 'layer.weight', which is trained"),
    "a buffer's view": (
        buffer_view,
        "'copy' lies in the memory of parameter 'layer.weight', which is trained",
    ),
    "lazy": (lambda: nn.LazyLinear(2), "'weight' has no shape yet"),
    "lazy buffers": (
        lambda: nn.Sequential(Net(), nn.LazyBatchNorm1d(affine=False)),
        "'1.running_mean' has no shape yet",
    ),
    "meta": (lambda: nn.Linear(6, 2, device="meta"), "'weight' has no numbers (its device is meta)"),
    "NaN": (not_a_number, "buffer 'mean' has a NaN, expected numbers in what the state dict holds"),
    "no module": (lambda: 3, "made a int, expected a torch.nn.Module"),
    "broken": (broken, "broken() failed: KeyError: 'weights'"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_cannot_be_trained(name: str) -> None:
    make, sentence = MODULES[name]
    with pytest.raises(InputError) as found:
        job(make).tables()
    assert sentence in str(found.value)
    assert str(found.value).startswith("build: ") and "\n" not in str(found.value)


def test_columns_of_one_matrix_share_no_memory() -> None:
    whole = torch.randn(4, 6)

    def halves() -> nn.Module:
        net = Net()
        net.trained, net.kept = nn.Parameter(whole[:, :3]), nn.Parameter(whole[:, 3:], requires_grad=False)
        return net

    assert len(FlatModule(halves(), "test").spans) == 3


class Changes(Net):
    """Changes something of its own in forward."""

    def __init__(self, what: str, persistent: bool = False) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("count", torch.zeros(1), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.what == "buffer":
                self.count += 1
            elif self.what == "another":
                self.count = self.count + 1
            elif self.what == "equal":
                self.count = self.count.clone()
            else:
                self.layer.weight.mul_(1.0)
        return self.layer(x)


class Variance(Net):
    """Keeps the variance of its items."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("variance", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.variance = x.var(0)
        return self.layer(x)


def test_a_variance_of_one_item_is_named() -> None:
    train(job(Variance, batch=4))
    with pytest.raises(InputError, match="buffer 'variance' is NaN after forward") as found:
        train(job(Variance, batch=2))
    assert "infinite" not in str(found.value)


def test_forward_may_not_change_what_is_not_saved() -> None:
    with pytest.raises(InputError, match="changed the buffer 'count' that is not in the state dict"):
        train(job(lambda: Changes("buffer")))
    with pytest.raises(InputError, match=r"changed parameter 'layer\.weight'"):
        train(job(lambda: Changes("parameter")))
    with pytest.raises(InputError, match="changed the buffer 'count' that is not in the state dict"):
        train(job(lambda: Changes("another")))
    train(job(lambda: Changes("equal")))
    for what in ("buffer", "another"):
        tables = train(job(lambda what=what: Changes(what, persistent=True)), 3)
        assert tables["buffers"][0, 0] == 3


@pytest.mark.parametrize("what", ["buffer", "another"])
def test_a_module_that_was_moved_may_not_change_what_is_not_saved(what: str) -> None:
    """As on a device: `to` puts other tensors in the buffers' places."""
    flat = FlatModule(Changes(what), "here")
    before = flat.module.count
    flat.module.to(torch.float64).to(torch.float32)
    assert flat.module.count is not before
    stepper = Stepper(flat, OutputLoss(nn.functional.cross_entropy))
    stepper.use({table.name: flat.values(table) for table in flat.tables()})
    with pytest.raises(InputError, match="changed the buffer 'count' that is not in the state dict"):
        stepper.gradient([Batch((torch.from_numpy(X), torch.from_numpy(Y)), len(X))], len(X))


def test_unused_and_frozen_parameters_stay_and_tied_ones_are_one() -> None:
    def more(net: Net) -> None:
        net.unused = nn.Linear(3, 3)
        net.frozen = nn.Linear(3, 3).requires_grad_(False)
        net.tied = nn.Linear(6, 2, bias=False)
        net.tied.weight = net.layer.weight
        # A parameter that does not lie in the order of its elements.
        net.layer.weight = net.tied.weight = nn.Parameter(torch.randn(6, 2).t())

    app = job(lambda: Net(more))
    assert not app.flat.module.layer.weight.is_contiguous()
    before = app.flat.module.layer.weight.detach().clone()
    unused = app.flat.module.unused.weight.detach().clone()
    tables = train(app, 2)
    torch.manual_seed(0)
    fresh = Net(more)
    state = torch_state(tables, fresh)
    assert set(state) == set(fresh.state_dict())
    assert torch.equal(state["unused.weight"], unused)
    assert torch.equal(state["frozen.weight"], fresh.frozen.weight)
    assert torch.equal(state["layer.weight"], state["tied.weight"])
    assert not torch.equal(state["layer.weight"], before)
    fresh.load_state_dict(state)
    app.stepper.use(tables)
    module = app.flat.module
    module.cpu()  # where it was computed on a GPU
    found = module.state_dict()
    assert [name for name, tensor in fresh.state_dict().items() if not torch.equal(tensor, found[name])] == []
    x = torch.from_numpy(X)  # the weights lie in memory otherwise, which may change the last bit of a product
    torch.testing.assert_close(fresh.eval()(x), module.eval()(x))


def test_a_result_loads_into_plain_torch(tmp_path: Path) -> None:
    app = job(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), batch=24)
    tables = train(app, 5)
    folder = RunFolder.create(tmp_path / "run", "test")
    folder.write_model(tables, app.as_model(tables))
    folder.events.close()
    path = tmp_path / "run" / "model.safetensors"
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module.load_state_dict(load_file(path), strict=True)
    assert torch_state(path, module).keys() == module.state_dict().keys()
    assert int(module[1].num_batches_tracked) == 5
    for (name, ours), theirs in zip(app.flat.parameters, module.parameters(), strict=True):
        assert ours.shape == theirs.shape, name
        assert not torch.equal(theirs, torch.zeros_like(theirs)), name
    with pytest.raises(InputError, match=r"only the file has '0\.bias', expected the model of this module"):
        torch_state(path, nn.Linear(6, 2))
    with pytest.raises(InputError, match=r"'0.weight' has shape \(4, 6\), expected \(4, 5\)"):
        torch_state(path, nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(InputError, match="'parameters' has 112 elements, expected 32 for this module"):
        torch_state(tables, nn.Linear(6, 2))
    with pytest.raises(InputError, match="there is no table 'buffers'"):
        torch_state({PARAMETERS: tables[PARAMETERS]}, module)
    with pytest.raises(InputError, match="does not exist"):
        torch_state(tmp_path / "no.safetensors", module)
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read"):
        torch_state(path, module)


def test_a_loss_that_is_not_a_number_is_named_by_clock_and_unit() -> None:
    with pytest.raises(
        UnitError, match=r"clock \d+, slice \d, part 0: process\(\) returned a loss of (nan|inf)"
    ) as found:
        train(job(lambda: nn.Linear(6, 2), loss=lambda out, y: (out - 1).square().mean() * 1e30), 9, rate=1e9)
    assert not found.value.trace


LOSSES: dict[str, tuple[Any, str]] = {
    "unknown": ("cross_entropi", "did you mean cross_entropy?"),
    "not one number": (lambda out, y: out, "the loss returned shape (10, 2), expected one number"),
    "no gradient": (
        lambda out, y: out.detach().sum(),
        "does not depend on a parameter that needs a gradient",
    ),
    "no tensor": (lambda out, y: 1.0, "the loss returned float, expected one number"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_are_none(name: str) -> None:
    loss, sentence = LOSSES[name]
    with pytest.raises(InputError) as found:
        train(job(Net, loss=loss))
    assert sentence in str(found.value) and "\n" not in str(found.value)


def test_a_data_set_smaller_than_a_clock() -> None:
    with pytest.raises(ConfigError, match="found 41, expected at most the 40 items"):
        job(Net, batch=41).load(0)
    assert np.isfinite(train(job(Net, batch=40))[PARAMETERS]).all()
    # Without batch_size a pass takes clocks_per_pass clocks, more than there are items or not.
    app = TorchModule(Settings(slices=2, clocks_per_pass=64), build=Net, dataset=(X, Y))
    assert app.minibatches.batch == 1
    assert np.isfinite(train(app)[PARAMETERS]).all()


CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no module": ({}, {}, "missing, expected package.file:function"),
    "unknown key": ({}, {"module": "a:b", "batch": 3}, "unknown key"),
    "no such file": ({}, {"module": "no_such.file:make"}, "there is no module 'no_such'"),
    "no such function": ({}, {"module": "agileml.apps.torch.models:rnn"}, "has no 'rnn'"),
    "no function": ({}, {"module": "agileml.apps.torch.models"}, "expected package.file:function"),
    "arguments": (
        {},
        {"module": "agileml.apps.torch.models:cnn", "arguments": {"sizes": 3}},
        "cnn() failed: TypeError",
    ),
    "shape": (
        {"kind": "digits", "shape": [3, 8]},
        {"module": "agileml.apps.torch.models:cnn"},
        "expected 64 numbers an item",
    ),
    "data set": (
        {"dataset": "agileml.apps.torch.models:data"},
        {"module": "agileml.apps.torch.models:cnn"},
        "has no 'data'",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_are_wrong(name: str) -> None:
    data, model, sentence = CONFIGS[name]

    def start() -> None:
        app = build("torch", Settings(data=data, model=model, slices=2))
        app.tables()
        app.load(0)

    with pytest.raises((InputError, ConfigError)) as found:
        start()
    assert sentence in str(found.value) and "\n" not in str(found.value)


def test_a_config_names_functions_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_net.py").write_text(
        "import torch\n"
        "def make(width): return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Linear(width, 1))\n"
        "def data(count):\n"
        "    x = torch.linspace(0, 1, 2 * count).view(count, 2)\n"
        "    return (x, x.sum(1, keepdim=True)), (x[:4], x[:4].sum(1, keepdim=True))\n"
        "def loss(output, target): return (output - target).abs().mean()\n"
        "def flip(x): return x.flip(1)\n"
    )
    monkeypatch.chdir(tmp_path)
    model = {
        "module": "their_net:make",
        "arguments": {"width": 3},
        "loss": "their_net:loss",
        "augment": "their_net:flip",
    }
    app = build(
        "torch", Settings({"dataset": "their_net:data", "count": 20}, model, slices=2, clocks_per_pass=5)
    )
    updates = app.process(Unit(0, 0), app.load(0), {t.name: app.initial(t) for t in app.tables()})
    assert updates.examples == 2
    assert set(app.evaluate({t.name: app.initial(t) for t in app.tables()})) == {"test_loss"}
    assert app.describe()["train_items"] == 20


def test_data_that_is_not_there_is_never_replaced(tmp_path: Path) -> None:
    model = {"module": "agileml.apps.torch.models:cnn"}

    def data(**values: Any) -> str:
        return str(TorchModule(Settings(values, model)).describe()["data"])

    with pytest.raises(InputError, match=r"data\.path: .*no\.npz does not exist"):
        data(kind="mnist", path=str(tmp_path / "no.npz"))
    with pytest.raises(ConfigError, match="missing, expected a value"):
        data(kind="mnist")
    with pytest.raises(ConfigError, match=r"missing, expected dataset: package\.file:function, or kind"):
        data()
    with pytest.raises(ConfigError, match=r"found minst, .*mnist"):
        data(kind="minst")
    images = RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", x_train=images, y_train=np.arange(20) % 10)
    app = TorchModule(Settings({"kind": "mnist", "path": str(tmp_path / "mnist.npz")}, model))
    assert app.describe()["data"].endswith("mnist.npz")
    x, _ = app.data.train.take(np.arange(2))
    assert x.shape == (2, 1, 28, 28) and float(x.max()) <= 1
    app = TorchModule(Settings({"kind": "large_digits"}, model))
    assert app.describe()["data"] == "digits drawn 28 x 28"
    x, y = app.data.train.take(np.arange(3))
    assert x.shape == (3, 1, 28, 28) and y.shape == (3,)
    assert float(x.min()) >= 0 and float(x.max()) == 1
