"""The device of a torch job: CUDA computes what the CPU does, to rounding; none is a sentence if it was asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agileml
from agileml.application import InputError, Settings, Unit
from agileml.apps.loop.training import application_of
from agileml.apps.torch.flat import BUFFERS, PARAMETERS
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.process.spec import RunSpec
from agileml.session.one_process import train_again

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def application(device: str, **arguments: object) -> TorchModule:
    model = {
        "module": "agileml.apps.torch.models:cnn",
        "arguments": {"size": 8, **arguments},
        "batch_size": 64,
        "device": device,
    }
    return TorchModule(Settings({"kind": "digits", "shape": [1, 8, 8]}, model, 3, 2))


@needs_cuda
def test_cuda_computes_what_the_cpu_does() -> None:
    seen: dict[str, list[tuple[int, int]]] = {"cpu": [], "cuda": []}
    updates = {}
    for device, ranges in seen.items():
        app = application(device, batch_norm=True)
        tables = {table.name: app.initial(table) for table in app.tables()}

        def ready(
            _: str, values: np.ndarray, start: int, stop: int, to: list[tuple[int, int]] = ranges
        ) -> None:
            to.append((start, stop))

        for clock in range(3):  # buffers of pinned memory are used again
            ranges.clear()
            updates[device] = app.process_streaming([Unit(clock, 0)], [app.load(0)], tables, ready)
        assert set(app.evaluate(tables)) == {"test_loss", "test_accuracy"}
    assert sorted(seen["cuda"]) == sorted(seen["cpu"])
    for name in (PARAMETERS, BUFFERS):
        np.testing.assert_allclose(
            updates["cuda"].tables[name], updates["cpu"].tables[name], rtol=1e-3, atol=1e-5
        )
    assert updates["cuda"].loss == pytest.approx(updates["cpu"].loss, rel=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_without_a_device_is_a_sentence() -> None:
    app = application("cuda")
    tables = {table.name: app.initial(table) for table in app.tables()}  # the controller needs no device
    with pytest.raises(InputError, match=r"model\.device: found cuda, expected auto or cpu"):
        app.process(Unit(0, 0), app.load(0), tables)


class OfClass(agileml.Training):
    def build(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 1)

    def datasets(self) -> Any:
        x = np.ones((8, 2), np.float32)
        return (x, x[:, :1]), (x, x[:, :1])

    def loss(self, module: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(module(batch[0]), batch[1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("by_class", [False, True])
def test_a_process_without_the_device_of_machines_measures_their_result_and_compares_nothing(
    by_class: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a head without GPUs: all was trained when the run ended with a sentence about its own device."""
    model = {"batch_size": 8, "device": "cuda", "evaluate_every": 1}
    config = from_values(
        {
            "application": "torch",
            "model": model,
            "clocks": 2,
            "slices": 1,
            "machines": {"max": 1, "transient": 0},
        }
    )
    made, own = OfClass(), {"build": OfClass().build, "dataset": OfClass().datasets, "loss": "mse"}
    spec = RunSpec("x", config, application_of(made) if by_class else TorchModule(**own))
    app = spec.build()
    app.check()
    tables = {table.name: app.initial(table) for table in app.tables()}
    assert set(app.evaluate(tables)) == {"test_loss"}
    assert app.metrics()[0] == "test_loss"
    job = spec.job(app)
    (log := tmp_path / "events.jsonl").write_text('{"log": "proteus run", "version": 1}\n')
    assert train_again(app, job, config, None, log, lambda: False) is None
    assert (
        "no CUDA device for the run (machines.gpus reserves one); nothing is compared"
        in capsys.readouterr().err
    )


def test_a_run_whose_machines_have_no_device_computes_on_none_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray hides what machines do not reserve, so theirs are the CPU's bits, on a computer with a device as well."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    seen = set()

    def step(module: torch.nn.Module, batch: Any) -> torch.Tensor:
        seen.add(batch[0].device.type)
        return module(batch[0]).square().mean()

    x = np.ones((8, 2), np.float32)
    app = TorchModule(build=lambda: torch.nn.Linear(2, 1), dataset=((x, x), (x, x)), step=step)
    machines = {"reliable": 1, "transient": 0, "max": 1}
    values = {"application": "torch", "model": {"batch_size": 8}, "clocks": 2, "machines": machines}
    agileml.run(values, application=app, sequential=True, out=tmp_path / "run")
    assert seen == {"cpu"}
