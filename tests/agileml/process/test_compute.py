"""The computing thread: what it computed from may be overwritten after its last report, and times count once."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from agileml.application import Application, Settings
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.source import ScriptSource
from agileml.apps.torch.module import TorchModule
from agileml.core.compute.cursor import Cursor
from agileml.core.compute.pace import Pace
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Compute, Computed, NodeEvent
from agileml.core.protocol.messages import Failure
from agileml.process.compute import ComputeThread
from tests.agileml.apps.loop.scripts import BODY, HEAD, loop, script
from tests.model.toy import toy_job

LIMIT_S = 120.0
MODEL = {"module": "agileml.apps.torch.models:cnn", "arguments": {"size": 8}, "batch_size": 64}


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("streams", [False, True], ids=["at once", "streaming"])
def test_inputs_are_free_when_the_last_contribution_is_reported_and_not_before(
    partitions: int, streams: bool
) -> None:
    app: Application
    if streams:
        app = TorchModule(Settings({"kind": "digits", "shape": [1, 8, 8]}, MODEL, 3, 2))
    else:
        app = toy_job("dense", "sgd", 2, 1, partitions, 4)[0]
    layout = Layout(tuple(app.tables()), partitions)
    work = UnitComputer(app, layout, deterministic=False)
    reported: queue.SimpleQueue[tuple[Computed, bool]] = queue.SimpleQueue()

    def report(event: NodeEvent | Failure) -> None:
        assert isinstance(event, Computed), event
        reported.put((event, computing.is_at_work(event.clock)))

    computing = ComputeThread(work, report, lambda: None)
    values = {table.name: app.initial(table) for table in app.tables()}
    parts = tuple(layout.blocks(values, p) for p in range(partitions))
    try:
        for clock in range(2):
            computing.ask(Compute(1, clock, (0b01, 0b10), parts, Cursor(2)))
            left = 2 * partitions
            while left:
                event, is_at_work = reported.get(timeout=LIMIT_S)
                left -= len(event.contributions)
                assert is_at_work == (left > 0)
            assert not computing.is_at_work(clock)
    finally:
        computing.stop()


def test_seconds_of_help_between_two_chunks_are_not_those_of_the_own_bundle() -> None:
    app = toy_job("dense", "sgd", 4, 1, 1, 4)[0]
    layout = Layout(tuple(app.tables()), 1)
    reported: queue.SimpleQueue[NodeEvent | Failure] = queue.SimpleQueue()
    work = UnitComputer(app, layout, deterministic=False)
    asked, began_s = threading.Event(), [0.0]

    def begin() -> None:
        asked.wait(LIMIT_S)
        began_s[0] = time.monotonic()

    computing = ComputeThread(work, reported.put, begin, Pace(unit_s=0.05))
    parts = (layout.blocks({table.name: app.initial(table) for table in app.tables()}, 0),)
    try:
        for bundle, is_help in ((0b0011, False), (0b1100, True)):
            computing.ask(Compute(1, 0, (bundle,), parts, Cursor(2, chunk=1), is_help=is_help))
        asked.set()
        helped, own = [reported.get(timeout=LIMIT_S) for _ in range(2)]
        whole_s = time.monotonic() - began_s[0]
    finally:
        computing.stop()
    assert isinstance(helped, Computed) and isinstance(own, Computed), (helped, own)
    assert (helped.bundle, own.bundle) == (0b1100, 0b0011), "help came before the second unit"
    assert helped.compute_s + own.compute_s <= whole_s, "each second counts for one of them"


X = np.ones((64, 2), np.float32)


def of_class(folder: Path) -> TorchModule:
    """Its loss is the number of threads."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mean() * 0 + torch.get_num_threads()

    settings = Settings({}, {"batch_size": 64}, 1, 1)
    return TorchModule(settings, build=lambda: torch.nn.Linear(2, 2), dataset=(X, X), loss=loss)


def of_loop(folder: Path) -> TorchModule:
    """The same, in a loop of its own, whose thread has computed before."""
    body = BODY.replace("loss.backward", "(loss * 0 + torch.get_num_threads()).backward")
    path = script(folder, head=HEAD + "torch.get_num_threads()\n", rest=loop(body))
    return ScriptModule(Settings({}, {"batch_size": 64}, 1, 1), ScriptSource.read(path))


@pytest.mark.parametrize("made", [of_class, of_loop])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_module_computes_with_the_threads_of_the_machine(
    made: Callable[[Path], TorchModule], is_deterministic: bool, tmp_path: Path
) -> None:
    """`machines.threads` left all cores but one of each process idle. Equal bits go by `model.threads` alone."""
    app = made(tmp_path)
    layout = Layout(tuple(app.tables()), 1)
    work = UnitComputer(app, layout, deterministic=is_deterministic)
    reported: queue.SimpleQueue[NodeEvent | Failure] = queue.SimpleQueue()
    computing = ComputeThread(work, reported.put, lambda: None, threads=3)
    parts = (layout.blocks({table.name: app.initial(table) for table in app.tables()}, 0),)
    try:
        computing.ask(Compute(1, 0, (1,), parts, Cursor(2)))
        found = reported.get(timeout=LIMIT_S)
    finally:
        computing.stop()
        app.ended()
    assert isinstance(found, Computed), found
    threads = sum(part.loss / part.examples for _, part in found.contributions)
    assert threads == (1 if is_deterministic else 3)
