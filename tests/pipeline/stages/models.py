"""Models that are hard to cut, each with inputs and a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, tuple[Any, ...], Callable[..., Tensor]]


class Attention(nn.Module):
    """A transformer block with a residual around each half."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, with_tail: bool) -> Tensor:
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.dropout(self.down(torch.relu(self.up(x)))) if with_tail else x


class Language(nn.Module):
    """Tied embeddings, two outputs as a dict, a flag and a mask as inputs, an input that a late layer reads."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Attention(8, dropout) for _ in range(2)])
        self.last = nn.Linear(8, 11, bias=False)
        self.last.weight = self.embed.weight
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor, with_tail: bool = True) -> dict[str, Any]:
        first = self.embed(tokens) * self.scale
        x = first
        for block in self.blocks:
            x = block(x, with_tail)
        x = x + 0.1 * first + mask[..., None] * first
        return {"scores": self.last(x * self.scale), "early": first.square().mean()}


class Residual(nn.Module):
    """Convolutions with batch norm, ReLU in place, a shortcut and a chunked tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm_again = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.first(x)))
        y = self.norm_again(self.second(x))
        y += x
        left, right = self.relu(y).chunk(2, dim=1)
        return self.head(torch.cat([right, left], 1).mean((2, 3)))


class Filled(nn.Module):
    """A tensor of zeros that two layers fill, one after the other, before a third reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        filled = torch.zeros(x.shape[0], 6)
        y = self.left(x)
        filled[:, :3] = y
        filled[:, 3:] = self.right(y)
        return self.out(torch.tanh(filled)) * filled.mean()


class Overwriting(nn.Module):
    """Three layers; `way` says what is overwritten between them."""

    def __init__(self, way: Callable[[Overwriting, Tensor], Any]) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("seen", torch.ones(4))
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(self, x)


def overwrites_buffer_by_view(model: Overwriting, x: Tensor) -> Tensor:
    seen = model.seen.view(2, 2)
    h = model.one(x)
    seen.add_(h.detach().mean())
    return model.three(model.two(h))


def reads_what_it_changes(model: Overwriting, x: Tensor) -> Tensor:
    h = model.one(x)
    with torch.no_grad():
        model.seen.lerp_(h.var(0), 0.1)
    return model.three(torch.tanh(model.two(h * model.seen)))


def overwrites_input_by_view(model: Overwriting, x: Tensor) -> Tensor:
    h = model.one(x * 1.0)
    x[:, 0] = 7.0
    return model.three(model.two(h) + x)


def overwrites_without_gradients(model: Overwriting, x: Tensor) -> Tensor:
    h = model.one(x)
    pairs, y = h.view(-1, 2, 2), model.two(x)
    with torch.no_grad():
        h.mul_(2)
    return model.three(pairs.flatten(1) + 1.0) + h + y


def overwrites_what_type_as_shows(model: Overwriting, x: Tensor) -> Tensor:
    h = model.one(x)
    y = model.two(h).type_as(h)
    y += h
    return model.three(torch.tanh(y))


def overwrites_what_linear_layers_make(model: Overwriting, x: Tensor) -> Tensor:
    h = torch.tanh(model.one(x.view(5, 2, 2).repeat(1, 1, 2)))
    y = model.two(h).relu_()
    z = model.three(y)
    z += h
    return z


def overwrites_what_einsum_shows(model: Overwriting, x: Tensor) -> Tensor:
    h = model.one(x)
    turned = torch.einsum("ij->ji", h)
    turned.add_(model.two(x).t())
    return model.three(torch.tanh(h)) + turned.t()


def returns_what_it_changes(model: Overwriting, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = model.one(x * 1.0)
    model.seen[:2].add_(h.detach().mean())
    x[:, 0] = 7.0
    return model.three(torch.tanh(model.two(h))), model.seen, x


class Own(nn.Module):
    """A model that names its own stages; the second returns two values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 6)
        self.end = Both()

    def stages(self) -> list[nn.Module]:
        return [self.a, nn.Tanh(), Fork(self.b), self.end]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(*Fork(self.b)(torch.tanh(self.a(x))))


class Fork(nn.Module):
    """x -> (b(x), x)."""

    def __init__(self, b: nn.Module) -> None:
        super().__init__()
        self.b = b

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.b(x), x


class Both(nn.Module):
    """(x, y) -> x + 2 y through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(x + 2 * y)


def language(dropout: float = 0.0) -> Example:
    def loss(output: dict[str, Tensor]) -> Tensor:
        return output["scores"].square().mean() + output["early"]

    return Language(dropout), (torch.randint(0, 11, (4, 5)), torch.rand(4, 5), True), loss


def residual() -> Example:
    return (
        Residual(),
        (torch.randn(4, 2, 5, 5),),
        lambda output: functional.cross_entropy(output, torch.arange(4) % 3),
    )


def sequence() -> Example:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )
    return model, (torch.randn(6, 4),), lambda output: output.square().mean()


def recurrent() -> Example:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            y, (h, _) = self.lstm(x)
            return self.out(y[:, -1] + h[0])

    return Recurrent(), (torch.randn(4, 6, 3),), lambda output: output.square().mean()


def filled() -> Example:
    return Filled(), (torch.randn(5, 4),), lambda output: output.square().mean()


def overwriting(way: Callable[[Overwriting, Tensor], Tensor]) -> Callable[[], Example]:
    return lambda: (Overwriting(way), (torch.randn(5, 4),), lambda output: output.square().mean())


def returned() -> Example:
    def loss(output: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        y, seen, x = output
        return (y * seen).square().mean() + (y * x).mean()

    return Overwriting(returns_what_it_changes), (torch.randn(5, 4),), loss


def own_stages() -> Example:
    return Own(), (torch.randn(5, 4),), lambda output: output.square().mean()


EXAMPLES: dict[str, Callable[[], Example]] = {
    "language": language,
    "residual": residual,
    "sequence": sequence,
    "recurrent": recurrent,
    "filled": filled,
    "buffer in use": overwriting(reads_what_it_changes),
    "buffer by view": overwriting(overwrites_buffer_by_view),
    "input by view": overwriting(overwrites_input_by_view),
    "without gradients": overwriting(overwrites_without_gradients),
    "type_as": overwriting(overwrites_what_type_as_shows),
    "linear layers of three axes": overwriting(overwrites_what_linear_layers_make),
    "returned": returned,
    "einsum": overwriting(overwrites_what_einsum_shows),
    "own stages": own_stages,
}
