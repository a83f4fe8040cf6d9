"""One of two processes of DistributedDataParallel, on the minibatches of test_training: writes its loss."""

import json
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from agileml.application import Settings, Unit
from agileml.apps.torch.models import cnn
from agileml.apps.torch.module import TorchModule


class Double(nn.Module):
    """The network in float64. In float32 rounding breaks ties of max pooling, and two runs part after 100 steps."""

    def __init__(self, *, batch_norm: bool = False) -> None:
        super().__init__()
        self.inner = cnn(size=8, batch_norm=batch_norm).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.double())


def main(rank: int, port: str, out: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    app = TorchModule(
        Settings({"kind": "digits", "shape": [1, 8, 8]}, {"batch_size": 64}, 3, 2), build=Double
    )
    torch.manual_seed(3)
    module = DistributedDataParallel(Double())
    sgd = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    share = app.load(rank)
    for clock in range(200):
        x, y = app.data.train.take(app.minibatches.numbers(Unit(clock, rank), share))
        loss = nn.functional.cross_entropy(module(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    assert app.data.test is not None
    x, y = app.data.test.take(np.arange(len(app.data.test)))
    with torch.no_grad():
        found = float(nn.functional.cross_entropy(module.module.eval()(x), y))
    with open(out, "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
