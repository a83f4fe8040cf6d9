"""A loop of the user's own: what it computes, and the same bits whichever machines go through it."""

import copy
import gc
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import agileml
from agileml.application import InputError, Settings, Unit
from agileml.apps.loop.instances import instances_of
from agileml.apps.loop.module import ScriptModule
from agileml.apps.torch.export import torch_state
from agileml.events.observed import Evaluated
from agileml.events.run import MembershipChanged
from agileml.session import Result
from tests.agileml.apps.loop.scripts import BODY, HEAD, OPTIMIZER, PREPARE, loop, script, values
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import FaultRig, job

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN = [
    {"at_clock": 5, "join": 2},
    {"at_clock": 11, "kill": 1},
    {"at_clock": 17, "notice": "all", "warning_s": 30},
    {"at_clock": 22, "join": 2},
    {"at_clock": 26, "kill_many": "all"},
]
ONE = {"reliable": 1, "transient": 0, "max": 1}
COSINE = "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 32)\n"
WITH_SCHEDULE = PREPARE.replace("batch_size=64", "batch_size=64, schedule=schedule")
CLIPPED = WITH_SCHEDULE.replace("schedule=schedule", "schedule=schedule, clip_norm=0.5")
SCHEDULED_BODY = BODY + "schedule.step()\n"


def trained(path: str, tmp_path: Path, **more: Any) -> Result:
    return agileml.run(values(path, **more), sequential=True, out=str(tmp_path / "out"))


def in_plain_torch(
    path: str, clocks: int, smoothing: float = 0.0, optimizer: Mapping[str, Any] | None = None
) -> nn.Module:
    """The same minibatches in a loop as everybody writes it: the objects that the script prepares, before they
    train. optimizer: the section of kind `torch`, if the config has one."""
    app = ScriptModule(Settings(model={"script": path}, slices=1, optimizer=optimizer or {}))
    found = app.prepared
    model = copy.deepcopy(found.model).train()
    places = {id(p): q for p, q in zip(found.model.parameters(), model.parameters(), strict=True)}
    groups = [
        {**group, "params": [places[id(p)] for p in group["params"]]}
        for group in found.optimizer.param_groups
    ]
    steps = type(found.optimizer)(groups)
    share = app.load(0)
    for clock in range(clocks):
        x, y = found.data.train.take(app.minibatches.numbers(Unit(clock, 0), share))
        for group in steps.param_groups:
            group["lr"] = group["initial_lr"] * found.factor(clock)
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=smoothing)
        steps.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        steps.step()
    app.ended()
    return model


SMOOTH = BODY.replace("batch[1])", "batch[1], label_smoothing=0.1)")
WARM_UP = """
groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
          {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=0.01)
rates = torch.optim.lr_scheduler
warm = rates.LinearLR(optimizer, 0.1, total_iters=5)
schedule = rates.SequentialLR(optimizer, [warm, rates.CosineAnnealingLR(optimizer, 55)], [5])
"""
IN_FLOAT64 = (
    HEAD.replace("float32", "float64")
    .replace("nn.Dropout(0.1), ", "")
    .replace("(24, 2))", "(24, 2)).double()")
)


@pytest.mark.parametrize("micro_batch", [None, 16])
def test_the_steps_are_those_of_plain_torch(tmp_path: Path, micro_batch: int | None) -> None:
    """Label smoothing, two groups, clipping, a warm-up and a cosine; batch norm, or accumulation."""
    # A bias before batch norm has no gradient but rounding, of which Adam makes steps of full size.
    head = IN_FLOAT64.replace("nn.Linear(12, 24)", "nn.Linear(12, 24, bias=False)")
    head = head if micro_batch is None else head.replace("nn.BatchNorm1d(24), ", "")
    path = script(
        tmp_path, head=head, optimizer=WARM_UP, prepare=CLIPPED, rest=loop(SMOOTH + "schedule.step()\n")
    )
    model = {"script": path, "micro_batch": micro_batch}
    result = trained(path, tmp_path, model=model, clocks=60, slices=1, machines=ONE)
    plain = in_plain_torch(path, 60, smoothing=0.1)
    found = result.module()
    for (name, ours), theirs in zip(found.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=name)


PENALTY = "model[0].weight.square().sum()"
LOSS = "nn.functional.cross_entropy(model(batch[0]), batch[1])"
ONE_BACKWARD = f"({PENALTY} + {LOSS}).backward()\noptimizer.step()\noptimizer.zero_grad()\n"
ALONE = ONE_BACKWARD.replace(f"{PENALTY} + ", "")
CHECKPOINTED = "torch.utils.checkpoint.checkpoint(model, batch[0].requires_grad_(), use_reentrant={})"
APART = f"penalty, loss = {PENALTY}, {LOSS}\npenalty.backward()\nloss.backward()"
AS_ONE = f"({PENALTY} + {LOSS}).backward()"


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (ONE_BACKWARD.replace(AS_ONE, APART), ONE_BACKWARD),
        (ONE_BACKWARD.replace(AS_ONE, f"{PENALTY}.backward()\n{LOSS}.backward()"), ONE_BACKWARD),
        (ONE_BACKWARD.replace(AS_ONE, f"{LOSS}.backward()\n{PENALTY}.backward()"), ONE_BACKWARD),
        (
            ONE_BACKWARD.replace(AS_ONE, APART.replace("model(batch[0])", CHECKPOINTED.format(False))),
            ONE_BACKWARD,
        ),
        (ALONE.replace("model(batch[0])", CHECKPOINTED.format(True)), ALONE),
    ],
    ids=["penalty between", "penalty first", "penalty last", "checkpointed", "reentrant"],
)
def test_backwards_of_one_batch_add_up(tmp_path: Path, body: str, same: str) -> None:
    """The weight has a gradient already when the backward comes that goes through its layer, or none yet."""
    head = HEAD.replace("nn.BatchNorm1d(24), ", "").replace("nn.Dropout(0.1), ", "")
    found = []
    for number, each in enumerate((body, same)):
        path = script(tmp_path, head=head, rest=loop(each))
        result = trained(path, tmp_path / str(number), clocks=4, slices=1, machines=ONE)
        found.append(result.parameters["parameters"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


SALIENCY = """
model.eval()
pixels = batch[0][:5].clone().requires_grad_()
model(pixels)[:, 0].sum().backward()
assert pixels.grad.abs().sum() > 0 and model[0].weight.grad.abs().sum() > 0
model.zero_grad()
model.train()
"""


def test_a_backward_between_two_batches_is_the_scripts_own(tmp_path: Path) -> None:
    """As of an evaluation: it counts in no batch."""
    # So that gradients stream.
    head = HEAD.replace("nn.BatchNorm1d(24), ", "").replace("nn.Dropout(0.1), ", "")
    found = []
    for number, between in enumerate(("", SALIENCY)):
        path = script(tmp_path, head=head, rest=loop(BODY + between))
        result = trained(path, tmp_path / str(number), clocks=4, slices=1, machines=ONE)
        found.append(result.parameters["parameters"])
    np.testing.assert_array_equal(found[0], found[1])


def test_a_body_may_change_its_batch_in_place(tmp_path: Path) -> None:
    """The batch that is tried three times is the same each time: with the second shift its classes are none."""
    path = script(
        tmp_path, rest=loop("batch[1].sub_(5)\n" + BODY), prepare=PREPARE.replace("(x, y)", "(x, y + 5)")
    )
    found = trained(path, tmp_path / "in place", clocks=2).summary["params_sha256"]
    plain = script(tmp_path)
    assert found == trained(plain, tmp_path / "plain", clocks=2).summary["params_sha256"]


WRITTEN = """
assert (len(loader), len(loader.dataset), loader.batch_size) == (10, 640, 64)
assert torch.equal(loader.dataset[7][0], torch.from_numpy(x[7]))
"""


@pytest.mark.parametrize(
    "data", ["(x, y)", "torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))"]
)
def test_a_loader_tells_of_its_data_as_those_of_torch_do(tmp_path: Path, data: str) -> None:
    prepare = PREPARE.replace("(x, y)", data) + WRITTEN
    trained(script(tmp_path, prepare=prepare, rest=loop(WRITTEN + BODY)), tmp_path, clocks=2)


DRAWN = "torch.rand(3), np.random.rand(), next(iter(torch.utils.data.DataLoader(x[:4])))\n"


def test_random_numbers_between_batches_are_not_those_of_a_batch(tmp_path: Path) -> None:
    """An evaluation's loader, a sample of the model: drawn by the machines that come by, before whichever batch."""
    app = ScriptModule(Settings(model={"script": script(tmp_path, rest=loop(BODY + DRAWN))}, slices=2))
    tables = {table.name: app.initial(table) for table in app.tables()}
    units = [(Unit(0, number), app.load(number)) for number in (0, 1)]
    found = [app.process(unit, share, tables).tables["parameters"] for unit, share in (*units, *units)]
    for before, after in zip(found[:2], found[2:], strict=True):
        np.testing.assert_array_equal(before, after)
    app.ended()


def in_memory() -> list[torch.Tensor]:
    gc.collect()
    return [each for each in instances_of(torch.Tensor) if each.layout is torch.strided]


def test_the_loop_that_was_tried_leaves_no_model_in_memory(tmp_path: Path) -> None:
    """The process that starts a run stays for all of it, beside the machines or on a small computer."""
    size, before = 1234 * 24, in_memory()
    known = {id(each) for each in before}
    text = HEAD.replace("nn.Linear(12, 24)", "nn.Linear(12, 1234), nn.Linear(1234, 24)")
    app = ScriptModule(Settings(model={"script": script(tmp_path, head=text)}, slices=2))
    app.check()
    found = [each for each in in_memory() if id(each) not in known]
    assert [each.shape for each in found if each.untyped_storage().nbytes() >= 4 * size] == []
    table = next(iter(app.tables()))
    assert app.initial(table).any()
    app.ended()


@pytest.mark.parametrize("units_per_slice", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_machines_that_come_go_and_die_do_not_change_a_bit(tmp_path: Path, units_per_slice: int) -> None:
    path = script(tmp_path, optimizer=OPTIMIZER + COSINE, prepare=WITH_SCHEDULE, rest=loop(SCHEDULED_BODY))
    config = job(values(path), plan=PLAN, clocks=32, units_per_slice=units_per_slice)
    ran = FaultRig(config, tmp_path).finish()
    assert ran.sha256 == reference(config)
    assert len(ran.of(MembershipChanged)) > len(PLAN)


def test_the_gradients_stream_out_where_machines_need_not_agree_on_bits(tmp_path: Path) -> None:
    head = HEAD.replace("nn.BatchNorm1d(24), ", "").replace("nn.Dropout(0.1), ", "")
    path = script(tmp_path, head=head)
    config = job(values(path), plan=PLAN, clocks=32, deterministic=False, partitions=3)
    ran = FaultRig(config, tmp_path).finish()
    result = trained(path, tmp_path, clocks=32)
    assert ran.tables is not None
    np.testing.assert_allclose(ran.tables["parameters"], result.parameters["parameters"], atol=2e-4)


def test_every_item_comes_once_a_pass_and_pass_by_pass(tmp_path: Path) -> None:
    """640 items in batches of 64, over machines that join in the middle of a pass: each writes down what it saw."""
    seen = tmp_path / "seen"
    rest = f"""
for number in trainer.passes():
    for batch in loader:
        with open({str(seen)!r}, "a") as file:
            file.write("".join(f"{{number}} {{int(item)}}\\n" for item in batch[0]))
        loss = model(batch[1]).square().mean()
        loss.backward()
        optimizer.step()
"""
    prepare = PREPARE.replace("(x, y), batch_size=64", "(np.arange(640), x, y), batch_size=64")
    path = script(tmp_path, prepare=prepare, rest=rest)
    plan = [{"at_clock": 4, "join": 2}, {"at_clock": 13, "notice": 1, "warning_s": 30}]
    ran = FaultRig(job(values(path), plan=plan, clocks=30), tmp_path).finish()
    assert ran.tables is not None, ran.halted
    by_pass: dict[int, set[int]] = {}
    for line in seen.read_text().splitlines():
        number, item = map(int, line.split())
        by_pass.setdefault(number, set()).add(item)
    assert by_pass == {number: set(range(640)) for number in range(3)}


FROZEN = (
    "model.append(nn.Linear(2, 2).requires_grad_(False))\n"  # random, and made anew wherever the script runs
)


@pytest.mark.slow
def test_a_script_goes_on_with_the_trained_model_after_its_loop(tmp_path: Path) -> None:
    rest = """
print("begin")
for number in trainer.passes(2):
    for batch in loader:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
    print("pass", number)
print("clocks", trainer.result.summary["clocks"], trainer.clock)
torch.save(model.state_dict(), "model.pt")
"""
    prepare = PREPARE.replace(
        "Trainer()", 'Trainer(sequential=True, out="out", slices=1, machines={"max": 1, "transient": 0})'
    )
    path = script(tmp_path, head=HEAD + FROZEN, prepare=prepare, rest=rest)
    ran = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=True)
    # What comes before the loop is shown once; the run is over with the last step, in the middle of the last pass.
    assert ran.stdout.splitlines() == ["begin", "pass 0", "clocks 20 20"], ran
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    exec(FROZEN, {"model": model, "nn": nn})
    there = torch_state(tmp_path / "out" / "model.safetensors", model)
    for name, tensor in there.items():
        assert torch.equal(saved[name], tensor), name


ADVERSARY = """
delta = torch.zeros_like(batch[0]).requires_grad_()
inner = torch.optim.SGD([delta], lr=1.0)
(delta.grad,) = torch.autograd.grad(nn.functional.cross_entropy(model(batch[0] + delta), batch[1]), delta)
inner.step()
batch = batch[0] - delta.detach(), batch[1]
"""


def test_an_optimizer_of_the_batch_is_the_loops_own_affair(tmp_path: Path) -> None:
    result = trained(script(tmp_path, rest=loop(ADVERSARY + BODY)), tmp_path)
    assert result.summary["clocks"] == 30


def test_a_notebook_gives_a_function(tmp_path: Path) -> None:
    def train() -> None:
        namespace: dict[str, Any] = {}
        exec(HEAD + OPTIMIZER + PREPARE + loop(), namespace)

    trainer = agileml.Trainer(values("", model={}), sequential=True, out=str(tmp_path / "out"))
    result = trainer.run(train)
    assert result.summary["clocks"] == 30
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert (
        result.summary["params_sha256"]
        == trained(script(tmp_path), tmp_path / "again").summary["params_sha256"]
    )


def test_a_function_that_uses_a_trainer_from_outside_is_refused(tmp_path: Path) -> None:
    trainer = agileml.Trainer(values("", model={}), sequential=True, out=str(tmp_path / "out"))

    def train() -> None:
        namespace: dict[str, Any] = {"trainer": trainer}
        exec(HEAD + OPTIMIZER + PREPARE.replace("trainer = agileml.Trainer()", "") + loop(), namespace)

    with pytest.raises(
        InputError, match=r"prepare\(\): found a Trainer that was made outside of the function"
    ):
        trainer.run(train)


def test_a_test_set_beside_the_training_set_is_left_for_the_scripts_own_evaluation(tmp_path: Path) -> None:
    pair = script(tmp_path, prepare=PREPARE.replace("(x, y)", "((x, y), (x[:90], y[:90]))"))
    found = trained(pair, tmp_path / "pair").summary["params_sha256"]
    assert found == trained(script(tmp_path), tmp_path / "alone").summary["params_sha256"]


MEASURE = """
def measure(model, batch):
    assert not model.training
    scores = model(batch[0])
    right = (scores.argmax(1) == batch[1]).float()
    return {"test_loss": nn.functional.cross_entropy(scores, batch[1]), "right": (right.sum(), len(right))}

trainer.evaluate_on((x[:101], y[:101]), measure, every=EVERY)
"""


@pytest.mark.slow
def test_machines_share_the_items_that_a_loop_evaluates(tmp_path: Path) -> None:
    """At each pass' end, with the parameters of one version; the training keeps its bits."""
    path = script(tmp_path, prepare=PREPARE + MEASURE.replace("EVERY", '"pass"'))
    config = job(values(path), plan=PLAN, clocks=32)
    ran = FaultRig(config, tmp_path).finish()
    found = {each.clock: each.metrics for each in ran.of(Evaluated)}
    assert sorted(found) == [10, 20, 30]
    alone = trained(path, tmp_path, clocks=32, keep_best={"metric": "right", "mode": "max"})
    seen = {row["clock"]: row for row in alone.history if "right" in row}
    for clock, metrics in found.items():
        assert metrics == pytest.approx(
            {name: seen[clock][name] for name in ("test_loss", "right")}, rel=1e-6
        )
    assert set(alone.metrics) == {"test_loss", "right"} and alone.summary["best"]["metric"] == "right"
    without = script(tmp_path)
    config = job(values(without), plan=PLAN, clocks=32)
    assert ran.sha256 == reference(config)


@pytest.mark.slow
def test_a_loop_is_evaluated_every_few_clocks(tmp_path: Path) -> None:
    path = script(tmp_path, prepare=PREPARE + MEASURE.replace("EVERY", "12"))
    early = {"metric": "test_loss", "patience": 1, "least_change": 9.0}
    result = trained(path, tmp_path, clocks=64, early_stopping=early)
    assert [row["clock"] for row in result.history if "right" in row] == [12, 24]
    assert result.summary["clocks"] == 25
