"""A module's parameters as one flat array, whatever their shapes."""

import torch
from torch import Tensor, nn

from agileml.apps.torch.flat import FlatModule


class Scaled(nn.Module):
    """Has a parameter without axes, as a temperature that is learnt, beside a layer and a table that is read by row."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, sparse=True)
        self.layer = nn.Linear(6, 2)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.words(ids)) / self.temperature


def test_parameters_of_every_shape_let_their_memory_go_and_get_another() -> None:
    module = Scaled()
    shapes = [parameter.shape for parameter in module.parameters()]
    flat = FlatModule(module, "module")
    array = flat.gathered()
    flat.empty()
    assert [parameter.shape for parameter in module.parameters()] == shapes
    assert all(parameter.untyped_storage().nbytes() == 4 for parameter in module.parameters())
    flat.point(torch.from_numpy(array.reshape(-1).copy()))
    assert module.temperature == 2
