"""Loops that cannot be trained with: each ends in one sentence."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import agileml
from agileml.application import InputError
from agileml.apps.loop.optimizers import section_of
from agileml.config.text import ConfigError
from tests.agileml.apps.loop.scripts import BODY, HEAD, OPTIMIZER, PREPARE, loop, script, values

COSINE = "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 32)\n"
LOOPS = {
    "no step": (BODY.replace("optimizer.step()", ""), "had no optimizer.step"),
    "two steps": (BODY + "optimizer.step()", "found no batch that waits for it"),
    "no backward": (BODY.replace("loss.backward()", ""), "found no gradient"),
    "many losses": (
        BODY.replace("batch[1])", 'batch[1], reduction="none")'),
        r"returned shape \(\d,\), expected one number",
    ),
    "gradients of its own": (
        BODY.replace("loss.backward()", "loss.backward(torch.ones(()))"),
        "with gradients",
    ),
    "clipped": (
        BODY.replace("optimizer.step", "nn.utils.clip_grad_norm_(model.parameters(), 1e-3)\noptimizer.step"),
        "gradients that were changed",
    ),
    "dropped": (
        BODY.replace("optimizer.step", "model.zero_grad()\noptimizer.step"),
        "gradients that were changed",
    ),
    "clipped where torch does not count": (
        BODY.replace(
            "optimizer.step", "for p in model.parameters(): p.grad.data.clamp_(-1e-3, 1e-3)\noptimizer.step"
        ),
        "gradients that were changed",
    ),
    "clipped copies": (
        BODY.replace(
            "optimizer.step", "for p in model.parameters(): p.grad.data = p.grad.clamp(-1, 1)\noptimizer.step"
        ),
        "gradients that were changed",
    ),
    "closure": (BODY.replace("step()", "step(lambda: loss)"), "found a closure"),
    "rate by hand": (
        BODY + "optimizer.param_groups[0]['lr'] /= 2",
        "found the learning rate 0.025, expected 0.05",
    ),
    "weight decay by hand": (
        BODY + "optimizer.param_groups[0]['weight_decay'] = 0.1",
        "found weight_decay=0.1 in parameter group 0, expected 0 as at",
    ),
    "another group": (
        BODY + "optimizer.add_param_group({'params': [nn.Parameter(torch.ones(1))]})",
        "found 2 parameter groups, expected the 1 of",
    ),
    "a hook of the step": (
        BODY.replace("optimizer.step", "optimizer.register_step_post_hook(print)\noptimizer.step"),
        "found a hook of its step",
    ),
    "a second optimizer": (
        "other = globals().setdefault('other', torch.optim.SGD([nn.Parameter(torch.ones(1))]))\n"
        + BODY
        + "other.step()",
        r"found a second optimizer \(SGD\) that takes steps batch after batch",
    ),
    "an average of weights": (
        "average = globals().setdefault('average', torch.optim.swa_utils.AveragedModel(model))\n"
        + BODY
        + "average.update_parameters(model)",
        "found an AveragedModel in the loop",
    ),
    "parameters by hand": (
        BODY + "for p in model.parameters(): p.data.clamp_(-0.01, 0.01)",
        r"changed parameter '0\.weight'",
    ),
    "other parameters": (
        BODY + "for p in model.parameters(): p.data = p.data.clamp(-0.01, 0.01)",
        r"changed parameter '0\.weight'",
    ),
    "left": (BODY + "break", "left its loop before the run was over"),
    "left for the result": (BODY + "print(trainer.result.metrics)", "left its loop before the run was over"),
    "raises": (BODY + "1 / 0", "ZeroDivisionError"),
    "exits": (BODY + "raise SystemExit(3)", r"called exit\(3\)"),
    "diverges": (
        BODY.replace("loss.backward()", "loss = loss * float('inf')\nloss.backward()"),
        "expected a finite number",
    ),
}


MEASURE = """
def measure(model, batch): return {"error": RETURNED}
trainer.evaluate_on(TEST, measure, every=EVERY)
"""
EVALUATIONS = {
    "no mapping": (
        {"{": "list({", "RETURNED}": "0})"},
        "returned list, expected a mapping of metrics by name",
    ),
    "no number": ({"RETURNED": "'much'"}, "metric error returned str, expected a number"),
    "raises": ({"RETURNED": "1 / 0"}, "ZeroDivisionError"),
    "no items": ({"TEST": "(x[:0], y[:0])"}, r"evaluate_on\(\): dataset: the given data set has no items"),
    "both sets": (
        {"TEST": "((x, y), (x[:9], y[:9]))"},
        r"evaluate_on\(\): found a training set and a test set, expected the items to evaluate on alone",
    ),
    "no function": ({"TEST, measure": "TEST, 3"}, "found a int, expected a function"),
    "every": ({"EVERY": "'clock'"}, "found every='clock', expected"),
    "stops": (
        {"RETURNED": "0", "EVERY": "2)\nx = iter(loader)\nnext(x)\n(trainer.evaluate_on(TEST, measure)"},
        "inside the",
    ),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_that_is_wrong_is_found_before_machines_start(name: str, tmp_path: Path) -> None:
    changes, sentence = EVALUATIONS[name]
    text = MEASURE
    usual = {"TEST": "(x, y)", "EVERY": '"pass"', "RETURNED": "0.5"}
    for old, new in [*changes.items(), *usual.items()]:  # only the first change of a word counts
        text = text.replace(old, new)
    path = script(tmp_path, prepare=PREPARE + text)
    with pytest.raises((InputError, agileml.RunError), match=sentence):
        agileml.run(values(path), sequential=True, out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_evaluation_comes_after_prepare(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluate_on\(\): found no prepare\(\) before it"):
        agileml.Trainer(clocks=3).evaluate_on((np.ones(3), np.ones(3)), lambda model, batch: {})


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_is_wrong_is_found_before_machines_start(name: str, tmp_path: Path) -> None:
    body, sentence = LOOPS[name]
    path = script(tmp_path, rest=loop(body))
    with pytest.raises((InputError, agileml.RunError), match=sentence):
        agileml.run(values(path), out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


FUSED = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)\n"
SCALED = BODY.replace("loss.back", "scaler.scale(loss).back").replace(
    "optimizer.step()", "scaler.step(optimizer)"
)
PLATEAU = "schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
BY_BATCH = PREPARE.replace("=64", "=64, schedule=schedule")
STEPPED = """
other = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model(torch.ones(4, 12)).sum().backward()
other.step()
other.zero_grad()
"""
SCALER = 'scaler = torch.amp.GradScaler("cpu")\n' + PREPARE.replace("=64", "=64, scaler=scaler")
PREPARATIONS = {
    "no loop": (PREPARE, "", "ended without a loop"),
    "no batch size": (PREPARE.replace(", batch_size=64", ""), None, "found no batch_size"),
    "batch too large": (
        PREPARE.replace("=64", "=6400"),
        None,
        "expected a whole number from 1 to the 640 items",
    ),
    "twice": (PREPARE + PREPARE, None, "second call"),
    "no data set": (PREPARE.replace("(x, y)", "7"), None, "found int, expected"),
    "uneven": (PREPARE.replace("(x, y)", "(x, y[1:])"), None, "the same number of items"),
    "a loader": (
        PREPARE.replace("(x, y)", "torch.utils.data.DataLoader(list(zip(x, y)), 64)"),
        None,
        "found a DataLoader, expected the data set that it loads",
    ),
    "a stream": (
        "class Stream(torch.utils.data.IterableDataset):\n    def __len__(self): return 640\n"
        "    def __iter__(self): return iter(zip(x, y))\n" + PREPARE.replace("(x, y)", "Stream()"),
        None,
        "found Stream, an IterableDataset, expected a torch Dataset",
    ),
    "schedule too short": (
        "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20, cycle_momentum=False)\n"
        + PREPARE.replace("=64", "=64, schedule=schedule"),
        loop(BODY + "schedule.step()\n"),
        "OneCycleLR fails after 20 steps",
    ),
    "frozen, but not still": (
        "model.append(nn.Linear(2, 2).requires_grad_(False))\n" + PREPARE,
        loop(BODY + "with torch.no_grad(): model[5].weight.mul_(0.99)\n"),
        r"changed parameter '5\.weight'",
    ),
    "scaler not prepared": (
        FUSED + 'scaler = torch.amp.GradScaler("cpu")\n' + PREPARE,
        loop(SCALED + "scaler.update()\n"),
        r"found losses that a GradScaler has scaled, expected prepare\(\.\.\., scaler=scaler\)",
    ),
    "schedule not prepared": (COSINE + PREPARE, loop(BODY + "schedule.step()\n"), "must be given to prepare"),
    "a schedule of a metric": (
        PLATEAU + PREPARE,
        loop(BODY) + "schedule.step(float(loss))\n",
        "found a ReduceLROnPlateau over the optimizer, expected a schedule that depends on the number of steps alone",
    ),
    "a second schedule": (
        COSINE + "rates = torch.optim.lr_scheduler.ConstantLR(optimizer)\n" + BY_BATCH,
        loop(BODY + "schedule.step()\n"),
        "found a ConstantLR over the optimizer: a schedule must be given to prepare",
    ),
    "schedule stepped twice": (
        COSINE + BY_BATCH,
        loop(BODY + "schedule.step()\nschedule.step()\n"),
        "found a second call for one batch",
    ),
    "schedule of passes stepped for batches": (
        COSINE + BY_BATCH.replace("schedule=schedule", 'schedule=schedule, schedule_every="pass"'),
        loop(BODY + "schedule.step()\n"),
        r"found a second call in one pass, expected one for each, or schedule_every=\"batch\"",
    ),
    "schedule stepped first": (
        COSINE + BY_BATCH,
        "schedule.step()\n" + loop(BODY + "schedule.step()\n"),
        "found it before the first optimizer.step",
    ),
    "schedule stepped to an epoch": (
        COSINE + BY_BATCH,
        loop(BODY + "schedule.step(0.5)\n"),
        r"schedule\.step\(\): found an epoch, 0\.5, expected none",
    ),
    "rate by hand before the loop": (
        PREPARE + "for group in optimizer.param_groups: group['lr'] = 0.5\n",
        None,
        "loader: found the learning rate 0.5, expected 0.05",
    ),
    "optimizer loaded before the loop": (
        PREPARE + STEPPED + "optimizer.load_state_dict(other.state_dict())\n",
        None,
        "loader: found an optimizer that has taken steps, expected a new one",
    ),
    "schedule loaded before the loop": (
        COSINE + BY_BATCH + "schedule.load_state_dict({'last_epoch': 7})\n",
        loop(BODY + "schedule.step()\n"),
        "loader: found a schedule that has taken 7 steps",
    ),
    "scaler loaded before the loop": (
        SCALER + "scaler.load_state_dict({**scaler.state_dict(), '_growth_tracker': 3})\n",
        loop(SCALED + "scaler.update()\n"),
        "loader: found a scaler that has taken steps",
    ),
    "schedule not stepped": (
        COSINE + PREPARE.replace("=64", "=64, schedule=schedule"),
        None,
        "no call after",
    ),
}


@pytest.mark.parametrize("name", PREPARATIONS)
def test_what_cannot_be_prepared_is_said(name: str, tmp_path: Path) -> None:
    prepare, rest, sentence = PREPARATIONS[name]
    path = script(tmp_path, prepare=prepare, rest=rest)
    with pytest.raises((InputError, agileml.RunError), match=sentence):
        agileml.run(values(path), sequential=True, out=str(tmp_path / "out"))


def test_settings_that_contradict_the_script_are_refused(tmp_path: Path) -> None:
    path = script(tmp_path)
    for model, key in (({"loss": "mse"}, "model.loss"), ({"batch_size": 32}, "model.batch_size")):
        with pytest.raises(ConfigError, match=key):
            agileml.run(values(path, model={"script": path, **model}), sequential=True)
    for key, section in (("data", {"kind": "digits"}), ("pipeline", {"mode": "flush"})):
        with pytest.raises(
            ConfigError, match=rf"{key}: found with a loop of the script's own, expected none"
        ):
            agileml.run(values(path, **{key: section}), sequential=True, out=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"the application brings momentum, learning_rate 0.05"):
        agileml.run(values(path, optimizer={"kind": "adam"}), sequential=True)
    with pytest.raises(InputError, match=r"model.script: .*none.py cannot be read"):
        agileml.run(values(str(tmp_path / "none.py")), sequential=True)


def test_a_data_set_that_shrinks_is_found(tmp_path: Path) -> None:
    data = """
class Shrinking(torch.utils.data.Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, number):
        if number > 600:
            raise IndexError(number)
        return x[number], y[number]
"""
    prepare = data + PREPARE.replace("(x, y)", "Shrinking()")
    path = script(tmp_path, prepare=prepare)
    with pytest.raises(InputError, match=r"no item 6.. of the 640 that its length promises"):
        agileml.run(values(path), sequential=True, out=str(tmp_path / "out"))


def test_names_of_parameters_are_no_patterns() -> None:
    net = nn.ModuleDict({"age[1]": nn.Linear(3, 4), "age1": nn.Linear(4, 2)})
    own, other = net["age[1]"], net["age1"]
    groups = [{"params": other.parameters()}, {"params": own.parameters(), "lr": 0.5}]
    found = section_of(torch.optim.SGD(groups, lr=0.1), net)
    (group,) = found["groups"]
    matching = [
        name for name, _ in net.named_parameters() if any(fnmatchcase(name, p) for p in group["parameters"])
    ]
    assert matching == ["age[1].weight", "age[1].bias"]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def test_optimizers_are_read() -> None:
    net = model()
    adamw = torch.optim.AdamW(
        [
            {"params": [net[0].weight, net[1].weight]},
            {"params": [net[0].bias, net[1].bias], "weight_decay": 0.0, "lr": 0.5},
        ],
        lr=0.1,
        betas=(0.8, 0.9),
        weight_decay=0.2,
    )
    shared: dict[str, Any] = {"kind": "adamw", "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-8}
    group = {"parameters": ["0.bias", "1.bias"], "learning_rate": 0.5, "weight_decay": 0.0}
    assert section_of(adamw, net) == {**shared, "learning_rate": 0.1, "weight_decay": 0.2, "groups": [group]}
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    assert section_of(sgd, net) == {"kind": "sgd", "learning_rate": 0.1, "weight_decay": 0.0}
    adagrad = torch.optim.Adagrad(net.parameters(), lr=0.2, eps=1e-3)
    expected = {"kind": "adagrad", "learning_rate": 0.2, "weight_decay": 0.0, "epsilon": 1e-3}
    assert section_of(adagrad, net) == expected
    net[0](torch.ones(3)).sum().backward()
    adagrad.step()
    with pytest.raises(InputError, match="has taken steps"):
        section_of(adagrad, net)


def test_a_group_of_parameters_without_elements_is_none() -> None:
    net = model()
    net.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    groups = [{"params": [*net[0].parameters(), *net[1].parameters()]}, {"params": [net.empty], "lr": 0.5}]
    assert "groups" not in section_of(torch.optim.SGD(groups, lr=0.1), net)
    assert "groups" not in section_of(torch.optim.SGD(groups, lr=0.1), net, is_resident=True)


OPTIMIZERS = {
    "torch.optim.RMSprop(p)": "found an optimizer of type RMSprop, expected",
    "torch.optim.Adam(p, amsgrad=True)": "amsgrad=True",
    "torch.optim.Adagrad(p, lr_decay=0.1)": "lr_decay=0.1, expected lr_decay=0",
    "torch.optim.SGD(p, lr=0.1, dampening=0.5)": "dampening=0.5",
    "torch.optim.SGD(p, lr=0.0)": "lr=0, expected more than 0",
    "torch.optim.SGD(p[:-1], lr=0.1)": "'1.bias' needs a gradient and is in no group",
    "torch.optim.SGD(model().parameters(), lr=0.1)": "that is none of the model's",
    "torch.optim.SGD([{'params': p[:2], 'momentum': 0.5}, {'params': p[2:]}], lr=0.1)": "groups that differ in",
    "torch.optim.SGD([{'params': p[:2]}, {'params': p[2:], 'momentum': 0.5}], lr=0.1)": "momentum 0.5 and group 0 0",
    "torch.optim.Adam([{'params': p[:2]}, {'params': p[2:], 'decoupled_weight_decay': True}])": (
        "has kind adamw and group 0 adam"
    ),
    "'adam'": "of type str",
}


@pytest.mark.parametrize("text", OPTIMIZERS)
def test_optimizers_that_the_engine_cannot_step_are_refused(text: str) -> None:
    net = model()
    with pytest.raises(InputError, match=OPTIMIZERS[text]):
        section_of(eval(text, {"torch": torch, "model": model, "p": list(net.parameters())}), net)


def test_an_optimizer_that_has_taken_steps_is_refused() -> None:
    net = model()
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    adam.step()
    with pytest.raises(InputError, match="taken steps"):
        section_of(adam, net)


def test_a_function_with_a_model_from_outside_is_refused(tmp_path: Path) -> None:
    """As of another cell of a notebook: its trial would leave nothing of it."""
    trainer = agileml.Trainer(values("", model={}), sequential=True, out=str(tmp_path / "out"))
    outside: dict[str, Any] = {}
    exec(HEAD, outside)

    def train() -> None:
        exec(OPTIMIZER + PREPARE + loop(), outside)

    with pytest.raises(
        InputError, match=r"found parameter '0\.weight' that was there before train\(\) began"
    ):
        trainer.run(train)
    assert outside["model"][0].weight.any()
