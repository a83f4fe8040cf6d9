"""Embeddings with sparse gradients: what plain torch computes, of the rows that a batch looks up alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import agileml
from agileml.application import InputError, Settings, Unit
from agileml.apps.torch.flat import PARAMETERS
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.config.text import ConfigError
from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.optimizer import Optimizer, optimizer
from agileml.core.sequential import run_sequential, train
from agileml.process.spec import RunSpec
from agileml.runs.model_file import params_sha256
from straggler.coverage import span
from tests.agileml.apps.torch.forward.shop import ITEMS, ROWS, USERS, Shop, data, purchases
from tests.agileml.process.engine_rig import Rig

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, SEED = 32, 3
TABLES = ("users.weight", "items.weight", "words.weight", "unused.weight")


def application(build: Callable[[], nn.Module] = Shop, *, slices: int = 4, **model: Any) -> TorchModule:
    section = {"batch_size": BATCH, "loss": "mse", **model}
    return TorchModule(Settings({}, section, SEED, slices), build=build, dataset=data)


def in_plain_torch(
    app: TorchModule, clocks: int, make: Callable[[nn.Module], list[torch.optim.Optimizer]]
) -> nn.Module:
    torch.manual_seed(SEED)
    module = Shop()
    optimizers = make(module)
    slices = app.settings.slices
    shares = [app.load(index) for index in range(slices)]
    for clock in range(clocks):
        numbers = [app.minibatches.numbers(Unit(clock, s), shares[s]) for s in range(slices)]
        *inputs, wanted = app.data.train.take(np.concatenate(numbers))
        loss = functional.mse_loss(module(*inputs), wanted)
        module.zero_grad()
        loss.backward()
        for each in optimizers:
            each.step()
    return module


def with_sparse_adam(module: nn.Module) -> list[torch.optim.Optimizer]:
    """torch's Adam takes no sparse gradients."""
    by_row = [p for name, p in module.named_parameters() if name in TABLES]
    others = [p for name, p in module.named_parameters() if name not in TABLES]
    return [
        torch.optim.SparseAdam(by_row, lr=0.05, eps=1e-300),
        torch.optim.Adam(others, lr=0.05, eps=1e-300),
    ]


PEERS: dict[str, tuple[dict[str, Any], Callable[[nn.Module], list[torch.optim.Optimizer]]]] = {
    "sgd": ({"learning_rate": 0.3}, lambda m: [torch.optim.SGD(m.parameters(), lr=0.3)]),
    "adagrad": ({}, lambda m: [torch.optim.Adagrad(m.parameters())]),
    "adam": ({"learning_rate": 0.05, "epsilon": 1e-300}, with_sparse_adam),
}


@pytest.mark.parametrize("kind", PEERS)
def test_20_steps_are_those_of_plain_torch_with_sparse_gradients(kind: str) -> None:
    rule, make = PEERS[kind]
    app = application()
    tables = run_sequential(app, optimizer=optimizer(kind, **rule), clocks=20)
    plain = in_plain_torch(app, 20, make)
    found = app.as_model(tables)
    assert found.keys() == plain.state_dict().keys()
    for name, wanted in plain.state_dict().items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-9, atol=1e-11, msg=name)


class InPlace(Shop):
    """Shifts the users' numbers in the batch's own tensor."""

    def forward(self, users: Tensor, items: Tensor, before: Tensor, words: Tensor) -> Tensor:
        return super().forward(users.sub_(USERS).remainder_(USERS).bitwise_xor_(1), items, before, words)


class Apart(Shop):
    def forward(self, users: Tensor, items: Tensor, before: Tensor, words: Tensor) -> Tensor:
        return super().forward(users ^ 1, items, before, words)


def swapped(users: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return users.copy_(USERS - 1 - users), *others


def swapped_apart(users: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return USERS - 1 - users, *others


@pytest.mark.parametrize(
    ("builds", "augments"),
    [((InPlace, Apart), (None, None)), ((Shop, Shop), (swapped, swapped_apart))],
    ids=["forward", "augment"],
)
def test_what_changes_a_batch_in_place_changes_it_once(builds: Any, augments: Any) -> None:
    """A batch is looked through for its rows before it is computed with."""
    found = []
    for build, augment in zip(builds, augments, strict=True):
        model = {"batch_size": BATCH, "loss": "mse"}
        app = TorchModule(Settings({}, model, SEED, 2), build=build, dataset=data, augment=augment)
        app.check()
        found.append(run_sequential(app, optimizer=optimizer("sgd", learning_rate=0.3), clocks=3))
    assert params_sha256(found[0]) == params_sha256(found[1])


@settings(deadline=None, derandomize=True, max_examples=25)
@given(clock=st.integers(0, 40), part=st.integers(0, 1), index=st.integers(0, 3))
def test_a_unit_reads_the_rows_that_its_batch_names_and_updates_those_that_a_loss_reaches(
    clock: int, part: int, index: int
) -> None:
    app = APP
    unit, items = Unit(clock, index, part, 2), app.load(index)
    users, goods, before, words, _ = (
        a.numpy() for a in app.data.train.take(app.minibatches.numbers(unit, items))
    )
    rows = app.reads(unit, items)
    assert {name: found.tolist() for name, found in rows.items()} == {
        "users.weight": np.unique(users).tolist(),
        "items.weight": np.unique((goods, before)).tolist(),
        "words.weight": np.unique(words).tolist(),
        "unused.weight": np.unique(goods).tolist(),
    }
    whole = {table.name: app.initial(table) for table in app.tables()}
    found = app.process(
        unit, items, {name: v[rows[name]] if name in rows else v for name, v in whole.items()}
    )
    assert found.rows["users.weight"].tolist() == np.unique(users).tolist()
    # No padding.
    assert found.rows["items.weight"].tolist() == [row for row in np.unique((goods, before)) if row]
    assert "unused.weight" not in found.tables


APP = application()


def rule(kind: str) -> Optimizer:
    made = optimizer(kind, learning_rate=0.05, weight_decay=0.1)
    return GroupedOptimizer(made, {"items.weight": optimizer(kind, learning_rate=0.0, weight_decay=0.1)})


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_rows_that_are_not_looked_up_stay_as_they_are_and_groups_know_a_table_by_its_name(kind: str) -> None:
    app = application()
    start = {table.name: app.initial(table).copy() for table in app.tables()}
    found = train(app, optimizer=rule(kind), clocks=3)
    numbers = [app.minibatches.numbers(Unit(clock, s), app.load(s)) for clock in range(3) for s in range(4)]
    users = np.unique(app.data.train.take(np.concatenate(numbers))[0].numpy())
    changed = (found.tables["users.weight"] != start["users.weight"]).any(axis=1)
    assert np.flatnonzero(changed).tolist() == users.tolist()
    assert np.flatnonzero(found.slots[0]["users.weight"].any(axis=1)).tolist() == users.tolist()
    assert np.array_equal(found.tables["items.weight"], start["items.weight"])  # a rate of 0
    assert np.array_equal(found.tables["unused.weight"], start["unused.weight"])


def sha(app: TorchModule, **options: Any) -> str:
    return params_sha256(run_sequential(app, optimizer=rule("adamw"), clocks=8, **options))


def test_the_bits_do_not_depend_on_the_deal_nor_on_evaluation() -> None:
    expected = sha(application())
    assert sha(application(), partitions=5, bundles=[span(0, 2), span(2, 4)]) == expected
    assert sha(application(micro_batch=3), partitions=3) == sha(application(micro_batch=3))
    seen: list[tuple[int, tuple[float, ...]]] = []
    watched = application(evaluate_every=3)
    assert sha(watched, on_metrics=lambda clock, sums, _: seen.append((clock, sums))) == expected
    assert [clock for clock, _ in seen] == [3, 6]
    app = application()
    tables = run_sequential(app, optimizer=rule("adamw"), clocks=6)
    loss, weight = seen[1][1][:2]
    assert loss / weight == pytest.approx(app.evaluate(tables)["test_loss"], rel=1e-12)


def job(**more: Any) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": BATCH, "loss": "mse"},
        "optimizer": {"kind": "adam", "learning_rate": 0.01},
        "machines": {"reliable": 1, "transient": 1, "max": 2},
        "slices": 2,
        "clocks": 20,
        **more,
    }


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"deterministic": False, "slices": 4}, marks=pytest.mark.slow)],
    ids=["deterministic", "not"],
)
def test_two_machines_compute_what_one_process_does(more: Mapping[str, Any], tmp_path: Path) -> None:
    values = job(**more)
    app = TorchModule(build=Shop, dataset=data)
    ran = Rig(values, tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    spec = RunSpec("", from_values(values), app)
    alone = run_sequential(
        spec.build(), optimizer=optimizer("adam", learning_rate=0.01), clocks=20, deterministic=not more
    )
    if not more:
        assert ran.sha256 == params_sha256(alone)
    for name, table in alone.items():
        np.testing.assert_allclose(ran.tables[name], table, rtol=1e-9, atol=1e-12)


def test_plain_torch_loads_what_a_run_leaves(tmp_path: Path) -> None:
    values = job(out=str(tmp_path / "out"))
    result = agileml.run(values, TorchModule(build=Shop, dataset=data), sequential=True)
    module = Shop()
    module.load_state_dict(load_file(result.folder / "model.safetensors"))
    trained = result.module()
    assert isinstance(trained.users.weight, nn.Parameter) and trained.users.weight.norm() > 0
    torch.testing.assert_close(module.users.weight, trained.users.weight)
    assert module(*(torch.from_numpy(a) for a in purchases()[:4])).shape == (ROWS,)
    state = torch.load(result.folder / "optimizer.pt", weights_only=True)["state"]
    shapes = {tuple(each["exp_avg"].shape) for each in state.values()}
    assert {(USERS, 6), (ITEMS, 6), (1, 6)} <= shapes


def loop(batch: Callable[[list[Tensor]], Any] = tuple) -> Callable[[], None]:
    """A training loop of the user's own; batch: the form in which the loader yields it."""

    def train() -> None:
        model: Any = Shop()
        trained = torch.optim.Adam(model.parameters(), lr=0.01)
        trainer = agileml.Trainer()
        model, trained, loader = trainer.prepare(
            model,
            trained,
            Purchases(),
            batch_size=BATCH,
            collate=lambda items: batch([torch.stack(column) for column in zip(*items, strict=True)]),
        )
        for users, items, before, words, wanted in loader:
            loss = functional.mse_loss(model(users, items, before, words), wanted)
            loss.backward()
            assert model.users.weight.grad is None and model.top.weight.grad is not None
            trained.step()
            trained.zero_grad()

    return train


class Purchases(torch.utils.data.Dataset[tuple[Tensor, ...]]):
    """One by one."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        return tuple(torch.as_tensor(column[number]) for column in data()[0])


def test_a_loop_of_ones_own_ends_with_the_bits_of_the_class(tmp_path: Path) -> None:
    settings = {**job(out=str(tmp_path / "loop"), clocks=8), "model": {}}
    looped = agileml.Trainer(settings, sequential=True).run(loop())
    app = TorchModule(build=Shop, dataset=data)
    expected = agileml.run(job(out=str(tmp_path / "class"), clocks=8), app, sequential=True)
    assert params_sha256(looped.parameters) == params_sha256(expected.parameters)


def test_a_loop_whose_batches_do_not_fit_the_model_is_told_so(tmp_path: Path) -> None:
    settings = {**job(out=str(tmp_path / "out")), "model": {}}
    with pytest.raises(
        InputError, match=r"model\(\*batch\[:-1\]\) failed .* expected batches \(input, ..., target\)"
    ):
        agileml.Trainer(settings, sequential=True).run(loop(lambda columns: [*columns, columns[0]]))


def only_tables() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(USERS, 4, sparse=True), nn.Flatten(0))


def test_a_module_may_have_no_other_parameters(tmp_path: Path) -> None:
    users = np.random.default_rng(1).integers(0, USERS, (64, 3))
    app = TorchModule(
        build=only_tables, dataset=(users, np.ones(64 * 4, np.float32).reshape(64, 4)), loss=summed
    )
    ran = Rig(job(model={"batch_size": 64}), tmp_path, app).finish()
    alone = agileml.run(job(model={"batch_size": 64}, out=str(tmp_path / "o")), app, sequential=True)
    assert ran.sha256 == params_sha256(alone.parameters)
    assert PARAMETERS not in alone.parameters and list(alone.parameters) == ["0.weight"]


def summed(output: Tensor, target: Tensor) -> Tensor:
    return (output.reshape(target.shape) - target).square().mean()


class Wrong(Shop):
    """A Shop whose forward does something else first."""

    def __init__(self, before: Callable[[Shop, Tensor], object], **more: Any) -> None:
        super().__init__(**more)
        self.before = before

    def forward(self, *inputs: Tensor) -> Tensor:
        self.before(self, inputs[0])
        return super().forward(*inputs)


def compiled() -> nn.Module:
    module = Shop()
    module.compile()
    return module


def with_max_norm() -> nn.Module:
    module = Shop()
    module.users.max_norm = 1.0
    return module


WRONG: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "the whole weight": (
        lambda: Wrong(lambda m, x: m.users.weight.norm()),
        r"norm uses the weight 'users\.weight' .* as a whole, expected look-ups of its rows alone",
    ),
    "a tied layer": (
        lambda: Wrong(lambda m, x: functional.linear(torch.zeros(2, 6).double(), m.users.weight)),
        r"linear uses the weight 'users\.weight'",
    ),
    "ids of parameters": (
        lambda: Wrong(lambda m, x: m.users((m.items(x % 9).abs().sum(1) * 100).long() % USERS)),
        r"'users\.weight' looks up row \d+, which the batch did not look up before .*trainer\.evaluate_on",
    ),
    "no such row": (lambda: Wrong(lambda m, x: m.users(x + 300)), "expected rows from 0 to 299"),
    "max_norm": (with_max_norm, "'users.weight' has a max_norm"),
    "compiled": (compiled, r"found a compiled module with an embedding of sparse=True \(users\.weight\)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_read_by_row_is_a_sentence_before_any_machine_starts(
    what: str, tmp_path: Path
) -> None:
    build, sentence = WRONG[what]
    out = tmp_path / "out"
    with pytest.raises(InputError, match=sentence) as found:
        agileml.run(job(out=str(out)), TorchModule(build=build, dataset=data), sequential=True)
    assert "\n" not in str(found.value)
    assert not out.exists()


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"exchange": "allreduce"},
        r"exchange: found allreduce, expected servers: .* sparse tables \(users\.weight",
    ),
    ({"overlap": True}, r"overlap: found true, expected false: .* sparse tables \(users\.weight"),
    (
        {"exchange": "allreduce", "optimizer": {"kind": "torch", "name": "SGD"}},
        r"optimizer\.kind: found torch with an embedding of sparse=True \(users\.weight\)",
    ),
    (
        {"pipeline": {"mode": "flush"}, "machines": {"reliable": 1, "transient": 2, "max": 4}, "slices": 4},
        r"pipeline: the module has an embedding with sparse=True \(users\.weight\)",
    ),
]


@pytest.mark.parametrize(("more", "sentence"), REFUSED, ids=["allreduce", "overlap", "replicas", "pipeline"])
def test_where_rows_cannot_be_read_they_are_refused(more: dict[str, Any], sentence: str) -> None:
    spec = RunSpec("", from_values(job(**more)), TorchModule(build=Shop, dataset=data))
    app = spec.build()
    with pytest.raises((ConfigError, InputError), match=sentence):
        spec.measured(app).job(app)


def test_overlap_auto_is_off() -> None:
    spec = RunSpec("", from_values(job(overlap="auto")), TorchModule(build=Shop, dataset=data))
    assert not spec.job(spec.build()).may_overlap
