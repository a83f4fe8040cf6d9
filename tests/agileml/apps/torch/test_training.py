"""Training a torch module: what plain torch and DistributedDataParallel compute, the same bits however it is dealt."""

import json
import re
import socket
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import agileml
from agileml.application import Settings, Unit
from agileml.apps.torch.batches.minibatches import Minibatches
from agileml.apps.torch.export import torch_state
from agileml.apps.torch.flat import BUFFERS, COUNTERS, PARAMETERS
from agileml.apps.torch.models import cnn
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.names import ModuleConfig
from agileml.config.job import from_values, load
from agileml.core.parameters.optimizer import optimizer
from agileml.core.sequential import run_sequential
from agileml.events.run import MembershipChanged
from agileml.runs.model_file import params_sha256
from straggler.coverage import span
from tests.agileml.apps.torch.ddp_rank import Double
from tests.agileml.process.engine_rig import Rig
from tests.thorough import examples

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = {"kind": "digits", "shape": [1, 8, 8]}
SMALL = {"module": "agileml.apps.torch.models:cnn", "arguments": {"size": 8}, "batch_size": 64}
MOMENTUM = {"learning_rate": 0.02, "momentum": 0.9}


def application(slices: int = 4, *, seed: int = 3, **arguments: Any) -> TorchModule:
    model = SMALL | {"arguments": {"size": 8, **arguments}}
    return TorchModule(Settings(DATA, model, seed, slices, is_deterministic=True))


def train(app: TorchModule, clocks: int, **options: Any) -> dict[str, np.ndarray]:
    return run_sequential(app, optimizer=optimizer("momentum", **MOMENTUM), clocks=clocks, **options)


def in_plain_torch(app: TorchModule, module: nn.Module, clocks: int) -> nn.Module:
    """The same minibatches and optimizer in a loop as everybody writes it."""
    sgd = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    slices = app.settings.slices
    shares = [app.load(index) for index in range(slices)]
    module.train()
    for clock in range(clocks):
        numbers = [app.minibatches.numbers(Unit(clock, s), shares[s]) for s in range(slices)]
        x, y = app.data.train.take(np.concatenate(numbers))
        loss = nn.functional.cross_entropy(module(x.to(next(module.parameters()).dtype)), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return module


def seeded_cnn(seed: int, **arguments: Any) -> nn.Module:
    torch.manual_seed(seed)
    return cnn(size=8, **arguments)


def score(app: TorchModule, module: nn.Module) -> float:
    assert app.data.test is not None
    x, y = app.data.test.take(np.arange(len(app.data.test)))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(module.eval()(x), y))


def in_float64() -> TorchModule:
    return TorchModule(Settings(DATA, {"batch_size": 64}, 3, 2), build=Double)


@pytest.mark.slow
def test_200_steps_are_those_of_plain_torch() -> None:
    """DistributedDataParallel computes the mean that one process computes on the whole minibatch."""
    app = in_float64()
    tables = train(app, 200)
    torch.manual_seed(3)
    plain = in_plain_torch(app, Double(), 200)
    found = app.evaluate(tables)
    assert found["test_accuracy"] > 0.85
    assert found["test_loss"] == pytest.approx(score(app, plain), rel=1e-9)
    module = Double()
    module.load_state_dict(torch_state(tables, module))
    for (name, ours), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=name)


def test_in_float32_they_agree_to_its_rounding() -> None:
    app = application()
    plain = in_plain_torch(app, seeded_cnn(3), 60)
    assert app.evaluate(train(app, 60))["test_loss"] == pytest.approx(score(app, plain), rel=1e-4)


@pytest.mark.slow
def test_200_steps_are_those_of_ddp(tmp_path: Path) -> None:
    app = in_float64()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    script = Path(__file__).with_name("ddp_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port), str(tmp_path / f"{rank}.json")],
            cwd=Path(__file__).parents[4],
        )
        for rank in range(2)
    ]
    assert [rank.wait(240) for rank in ranks] == [0, 0]
    losses = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert losses[0] == losses[1]
    assert app.evaluate(train(app, 200))["test_loss"] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize(
    "arguments", [{}, {"dropout": 0.3, "batch_norm": True}], ids=["plain", "dropout, batch norm"]
)
def test_the_same_bits_however_it_is_dealt(arguments: dict[str, Any]) -> None:
    one = params_sha256(train(application(**arguments), 6))
    many = train(application(**arguments), 6, partitions=3, bundles=[span(0, 1), span(1, 2), span(2, 4)])
    assert params_sha256(many) == one
    assert params_sha256(train(application(seed=4, **arguments), 6)) != one


def test_the_engine_gives_the_bits_of_the_sequential_run(tmp_path: Path) -> None:
    values = {
        "application": "torch",
        "data": DATA,
        "model": SMALL | {"arguments": {"size": 8, "dropout": 0.2, "batch_norm": True}},
        "optimizer": {"kind": "momentum", **MOMENTUM},
        "clocks": 8,
        "seed": 3,
        "deterministic": True,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
    }
    ran = Rig(values, tmp_path).finish()
    assert ran.halted is None
    assert ran.sha256 == params_sha256(train(application(dropout=0.2, batch_norm=True), 8))


def test_an_instance_of_the_user_trains_too(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(96, 5)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    mine = TorchModule(build=lambda: nn.Linear(5, 2), dataset=((x[:64], y[:64]), (x[64:], y[64:])))
    values = {
        "application": "torch",
        "model": {"batch_size": 32},
        "optimizer": {"kind": "momentum", **MOMENTUM},
        "clocks": 40,
        "seed": 5,
        "deterministic": False,
        "machines": {"reliable": 1, "transient": 1, "max": 2},
    }
    ran = Rig(values, tmp_path, mine).finish()
    assert ran.tables is not None, ran.halted
    job = mine.with_settings(Settings(model={"batch_size": 32}, seed=5, slices=2))
    assert job.evaluate(ran.tables)["test_accuracy"] > 0.8
    assert job.describe()["batch_size"] == 32
    in_order = run_sequential(job, optimizer=optimizer("momentum", **MOMENTUM), clocks=40)
    np.testing.assert_allclose(ran.tables[PARAMETERS], in_order[PARAMETERS], rtol=1e-4, atol=1e-6)


def test_dropout_and_augmentation_draw_from_seed_clock_and_slice() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)

    def gradient(unit: Unit, seed: int) -> bytes:
        app = TorchModule(Settings(DATA, SMALL, seed, 4, is_deterministic=True), augment=noisy)
        parameters = {table.name: app.initial(table) for table in app.tables()}
        torch.manual_seed(99)  # what is around must not matter
        before = torch.random.get_rng_state()
        updates = app.process(unit, app.load(unit.slice), parameters)
        assert torch.equal(torch.random.get_rng_state(), before)
        return updates.tables[PARAMETERS].tobytes()

    assert gradient(Unit(5, 1), 3) == gradient(Unit(5, 1), 3)
    different = [Unit(5, 1), Unit(6, 1), Unit(5, 2), Unit(5, 1, 1, 2)]
    assert len({gradient(unit, 3) for unit in different} | {gradient(Unit(5, 1), 4)}) == 5


def test_buffers_are_the_mean_of_the_units_changes() -> None:
    app = application(slices=2, batch_norm=True)
    tables = train(app, 1)
    start = {table.name: app.initial(table) for table in app.tables()}
    changes = []
    for index in range(2):
        module = seeded_cnn(3, batch_norm=True)
        x, _ = app.data.train.take(app.minibatches.numbers(Unit(0, index), app.load(index)))
        module.train()(x)
        changes.append(module.get_buffer("1.running_mean").numpy())
    piece = next(p for p in app.flat.buffers if p.name == "1.running_mean")
    found = tables[BUFFERS][0, piece.start : piece.stop]
    np.testing.assert_allclose(found, np.mean(changes, axis=0), rtol=1e-5, atol=1e-7)
    assert not start[BUFFERS][0, piece.start : piece.stop].any()
    after = train(app, 7)
    module = cnn(size=8, batch_norm=True)
    module.load_state_dict(torch_state(after, module))
    assert int(module.get_buffer("1.num_batches_tracked")) == 7
    assert after[COUNTERS].dtype == np.float64


def test_streaming_reports_every_element_once_and_final() -> None:
    app = application(dropout=0.2, batch_norm=True)
    parameters = {table.name: app.initial(table) for table in app.tables()}
    units, items = [Unit(2, s) for s in (1, 3)], [app.load(s) for s in (1, 3)]
    seen: list[tuple[int, int]] = []
    copies: list[np.ndarray] = []

    def ready(table: str, values: np.ndarray, start: int, stop: int) -> None:
        assert table == PARAMETERS
        seen.append((start, stop))
        copies.append(values[start:stop].copy())

    updates = app.process_streaming(units, items, parameters, ready)
    whole = updates.tables[PARAMETERS][0]
    for (start, stop), copy in zip(seen, copies, strict=True):
        assert whole[start:stop].tobytes() == copy.tobytes()
    layer = {own.start: int(own.name.split(".")[0]) for own in app.flat.spans}
    layers = [layer[start] for start, _ in seen]
    assert layers == sorted(layers, reverse=True), "the last layer comes first"
    edges = sorted(seen)
    assert edges[0][0] == 0 and edges[-1][1] == whole.size
    assert all(a[1] == b[0] for a, b in pairwise(edges))
    at_once = app.process_many(units, items, {}, parameters)
    assert at_once.tables[PARAMETERS].tobytes() == whole.tobytes()
    assert at_once.tables[BUFFERS].tobytes() == updates.tables[BUFFERS].tobytes()
    assert (at_once.loss, at_once.examples) == (updates.loss, updates.examples)


def test_the_gradients_memory_is_used_again_once_nobody_has_it() -> None:
    app = application()
    parameters = {table.name: app.initial(table) for table in app.tables()}

    def gradient(clock: int) -> np.ndarray:
        return app.process(Unit(clock, 0), app.load(0), parameters).tables[PARAMETERS]

    first = gradient(0)[0, 100:]  # as a contribution that waits to be sent
    bits, place = first.tobytes(), first.ctypes.data
    second = gradient(1)
    assert first.tobytes() == bits
    second_place = second.ctypes.data
    del first, second
    places = {gradient(clock).ctypes.data for clock in range(2, 6)}
    assert places == {second_place} and place - 400 != second_place


def test_initial_values_do_not_change_with_use() -> None:
    app = application(batch_norm=True)
    before = {table.name: app.initial(table).tobytes() for table in app.tables()}
    facts = app.describe()
    app.started()
    for again in range(2):
        assert {table.name: app.initial(table).tobytes() for table in app.tables()} == before, again
        app.started()
    assert app.describe() == facts
    app.evaluate(train(app, 3))
    app.started()
    assert {table.name: app.initial(table).tobytes() for table in app.tables()} == before


def test_a_machine_that_has_started_holds_no_parameters_of_its_own() -> None:
    app = application()
    app.started()
    assert sum(parameter.untyped_storage().nbytes() for _, parameter in app.flat.parameters) < 100
    trained = train(app, 2)
    assert params_sha256(trained) == params_sha256(train(application(), 2))


def test_parameters_are_used_where_they_lie() -> None:
    app = TorchModule(Settings(DATA, SMALL | {"device": "cpu"}, 3, 4))
    parameters = {table.name: app.initial(table) for table in app.tables()}
    parameters[PARAMETERS].flags.writeable = False
    app.process(Unit(0, 0), app.load(0), parameters)
    first = parameters[PARAMETERS].ctypes.data
    for own, (_, parameter) in zip(app.flat.spans, app.flat.parameters, strict=True):
        assert parameter.data_ptr() == first + 4 * own.start
        assert own.start % 16 == 0


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(st.integers(1, 120), st.integers(0, 3), st.integers(0, 2), st.data())
def test_every_item_comes_once_a_pass(
    count: int, log_slices: int, log_parts: int, data: st.DataObject
) -> None:
    slices, parts = 1 << log_slices, 1 << log_parts
    count = max(count, slices)
    batch = data.draw(st.integers(1, count))
    cut = Minibatches(Settings(seed=1, slices=slices), count, batch)
    shares = [cut.share(index) for index in range(slices)]
    assert sorted(np.concatenate([share.numbers for share in shares])) == list(range(count))
    clocks = 7
    for index, share in enumerate(shares):
        taken = [
            cut.numbers(Unit(clock, index, part, parts), share)
            for clock in range(clocks)
            for part in range(parts)
        ]
        sequence = np.concatenate(taken)
        here = len(share.numbers)
        assert abs(here - len(sequence) / clocks * count / batch) < 1  # none where the slice has no place
        if not here:
            continue
        for start in range(0, len(sequence) - here + 1, here):
            assert sorted(sequence[start : start + here]) == sorted(share.numbers)
        rest = sequence[len(sequence) // here * here :]
        assert len(set(rest.tolist())) == len(rest)
    sizes = [
        len(cut.numbers(Unit(0, index, part, parts), share))
        for index, share in enumerate(shares)
        for part in range(parts)
    ]
    assert sum(sizes) == batch and max(sizes) - min(sizes) <= 1


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5), st.integers(1, 3))
def test_every_item_comes_as_often_as_any_other(
    batch: int, clocks: int, log_slices: int, passes: int
) -> None:
    """Also in minibatches that the slices do not divide, and in those of fewer items than there are slices."""
    slices, count = 1 << log_slices, batch * clocks
    cut = Minibatches(Settings(seed=2, slices=slices), count, batch)
    shares = [cut.share(index) for index in range(slices)]
    units = [Unit(clock, index) for clock in range(clocks * passes) for index in range(slices)]
    taken = np.concatenate([cut.numbers(unit, shares[unit.slice]) for unit in units])
    assert np.bincount(taken, minlength=count).tolist() == [passes] * count


def test_more_units_than_items_of_a_clock() -> None:
    app = TorchModule(Settings(DATA, SMALL | {"batch_size": 3}, 0, 8))
    tables = train(app, 4)
    assert np.isfinite(tables[PARAMETERS]).all()


def test_the_config_that_teaches(tmp_path: Path) -> None:
    path = Path(__file__).parents[4] / "configs" / "cnn.yaml"
    result = agileml.run(load(path, ["clocks=30", "plan=[]"]), sequential=True, out=str(tmp_path / "run"))
    assert result.metrics["test_accuracy"] > 0.5
    module = cnn(dropout=0.25)
    module.load_state_dict(torch_state(result.folder / "model.safetensors", module))


def test_the_page_shows_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "guides" / "torch.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S):
        if "from net import" not in block:  # files of the reader's own: see tests/agileml/apps/loop
            exec(block, names)
    assert names["result"].metrics["test_accuracy"] > 0.8
    shown = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)[0])
    from_values(shown)
    rows = page[page.index("| `module` |") : page.index("| `{kind: digits")]  # the next table's
    table = set(re.findall(r"^\| `(\w+)` \|", rows, re.M))
    assert table == set(ModuleConfig.model_fields)


@pytest.mark.parametrize("arguments", [{}, {"batch_norm": True}], ids=["streamed", "buffers"])
def test_steps_by_all_reduce_are_those_of_plain_torch(arguments: dict[str, Any], tmp_path: Path) -> None:
    """DistributedDataParallel computes the mean that one process computes on the whole minibatch, and so must this."""
    values = {
        "application": "torch",
        "data": DATA,
        "model": {"batch_size": 64},
        "optimizer": {"kind": "momentum", **MOMENTUM},
        "clocks": 20,
        "seed": 3,
        "exchange": "allreduce",
        "slices": 2,
        "partitions": 3,
        "machines": {"reliable": 1, "transient": 1, "max": 2},
        "plan": [] if arguments else [{"at_clock": 10, "notice": 1, "warning_s": 30}],
    }
    app = TorchModule(Settings(DATA, {"batch_size": 64}, 3, 2), build=partial(Double, **arguments))
    ran = Rig(values, tmp_path, app).finish()
    assert ran.tables is not None, ran.halted
    wanted = train(app, 20, deterministic=False, bundles=[span(0, 1), span(1, 2)])
    for name, table in wanted.items():
        np.testing.assert_allclose(ran.tables[name], table, rtol=1e-9, atol=1e-11)
    if not arguments:
        torch.manual_seed(3)
        plain = in_plain_torch(app, Double(), 20)
        assert app.evaluate(ran.tables)["test_loss"] == pytest.approx(score(app, plain), rel=1e-9)
        assert not any(view.redone for view in ran.of(MembershipChanged))
