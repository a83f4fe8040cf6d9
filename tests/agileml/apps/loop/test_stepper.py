"""What becomes of a loop's gradients and parameters, clock after clock."""

import gc
from pathlib import Path
from weakref import ref

import pytest
import torch
from torch import nn

import agileml
from agileml.application import InputError, Settings, Unit
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.source import FunctionSource
from tests.agileml.apps.loop.scripts import BODY, loop, script, values

pytestmark = pytest.mark.usefixtures("one_thread")

BY_HAND = """if trainer.clock == 7:
    with torch.no_grad(): model[4].weight.mul_(0.5)
"""


@pytest.mark.parametrize(
    "body",
    [BODY.replace("optimizer.step", BY_HAND + "optimizer.step"), BODY + BY_HAND],
    ids=["before the step", "behind it"],
)
def test_a_loop_that_changes_parameters_later_on_is_refused(tmp_path: Path, body: str) -> None:
    path = script(tmp_path, rest=loop(body))
    one = {"reliable": 1, "transient": 0, "max": 1}
    with pytest.raises(InputError, match=r"forward or the loop changed parameter '4\.weight'"):
        agileml.run(
            values(path, clocks=10, slices=2, machines=one), sequential=True, out=str(tmp_path / "out")
        )


def test_graphs_of_gradients_end_with_their_batch() -> None:
    """The flat array that gradients lie in stays for the clocks to come, and so would graphs that it is a part of."""
    made = []

    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        items = torch.ones(32, 4), torch.zeros(32, dtype=torch.int64)
        model, optimizer, loader = agileml.Trainer().prepare(model, optimizer, items, batch_size=8)
        for x, y in loader:
            scale = torch.ones((), requires_grad=True)
            made.append(ref(scale))
            (scale * nn.functional.cross_entropy(model(x), y)).backward(create_graph=True)
            optimizer.step()
            optimizer.zero_grad()

    app = ScriptModule(Settings(slices=1), FunctionSource(train))
    tables, share = {table.name: app.initial(table) for table in app.tables()}, app.load(0)
    for clock in range(4):
        app.process(Unit(clock, 0), share, tables)
    gc.collect()
    assert [each() is None for each in made[:3]] == [True] * 3
    app.ended()
