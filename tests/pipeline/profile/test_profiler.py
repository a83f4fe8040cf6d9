"""The profiler on unpatched models: layers, edges, bytes, and times that add up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.partition.planner import partition
from pipeline.profile.layers import ProfileError
from pipeline.profile.profiler import profile_module
from pipeline.profile.user_model import to_device
from pipeline.topology.levels import Topology


class SmallCnn(nn.Module):
    """In-place activations, one module used twice, a branch that is added back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(24, 24, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(24 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        y = self.relu(self.second(x))
        return self.head(self.pool(x + y).flatten(1))


class Seq2Seq(nn.Module):
    """LSTMs with tuples, an embedding that both sides use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 48)
        self.encoder = nn.LSTM(48, 96, batch_first=True)
        self.decoder = nn.LSTM(48, 96, batch_first=True)
        self.out = nn.Linear(96, 100)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(self.embed(source))
        y, _ = self.decoder(self.embed(target), state)
        return self.out(y)


class TransformerBlock(nn.Module):
    """Residuals, attention whose inner module is never called, functional activation, tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(120, 64)
        self.position = nn.Parameter(torch.zeros(32, 64))
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.out = nn.Linear(64, 120, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        x = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return self.out(x)


MODELS = {
    "cnn": lambda: (SmallCnn(), (torch.randn(16, 3, 16, 16),)),
    "seq2seq": lambda: (Seq2Seq(), (torch.randint(0, 100, (8, 12)), torch.randint(0, 100, (8, 12)))),
    "transformer": lambda: (TransformerBlock(), (torch.randint(0, 120, (8, 32)),)),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_layers_add_up_to_the_step(name: str) -> None:
    model, inputs = MODELS[name]()
    # The bound is the noise that the plain steps themselves show, so a busy machine gets another look.
    for _ in range(5):
        measured = profile_module(model, inputs, repeats=12, batch=len(inputs[0]))
        if abs(measured.layers_over_step - 1) <= max(0.05, 2 * measured.spread):
            break
    assert measured.layers_over_step == pytest.approx(1, abs=max(0.05, 2 * measured.spread))


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_exact(name: str) -> None:
    model, inputs = MODELS[name]()
    measured = profile_module(model, inputs, repeats=2, batch=len(inputs[0]))
    assert measured.unattributed_bytes == 0
    assert measured.profile.parameter_bytes == sum(p.numel() * 4 for p in model.parameters())
    assert partition(measured.profile, Topology(((2, 1e9),))).seconds_per_minibatch > 0


def names(profile) -> list[str]:
    return [layer.name for layer in profile.layers]


def test_the_cnns_graph() -> None:
    model, inputs = MODELS["cnn"]()
    profile = profile_module(model, inputs, repeats=1).profile
    assert names(profile)[:5] == ["first Conv2d", "relu ReLU", "second Conv2d", "relu#2 ReLU", "model: Add"]
    assert {(0, 1), (1, 2), (1, 4), (2, 3), (3, 4)} <= set(profile.edges)
    assert profile.layers[0].activation_bytes == 16 * 24 * 16 * 16 * 4
    assert profile.input_bytes == 16 * 3 * 16 * 16 * 4


@pytest.mark.parametrize("trained", [0, 3])
def test_frozen_weights_leave_the_graph_as_it_is(trained: int) -> None:
    model, inputs = MODELS["transformer"]()
    whole = profile_module(model, inputs, repeats=1).profile
    model.requires_grad_(False)
    model.position.requires_grad_(trained == 0)  # at the beginning, or only what comes last
    for parameter in [*model.down.parameters(), model.norm2.weight][:trained]:
        parameter.requires_grad_(True)
    needs = [p.requires_grad for p in model.parameters()]
    frozen = profile_module(model, inputs, repeats=1).profile
    assert frozen.edges == whole.edges
    assert frozen.tied == whole.tied
    assert [replace(layer, forward_s=0, backward_s=0) for layer in frozen.layers] == [
        replace(layer, forward_s=0, backward_s=0) for layer in whole.layers
    ]
    assert [p.requires_grad for p in model.parameters()] == needs
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_what_a_layer_passes_on_is_the_output_of_the_one_that_made_it() -> None:
    layers = nn.Linear(8, 8), nn.Identity(), nn.Dropout(0.0), nn.ReLU(inplace=True), nn.Linear(8, 2)
    profile = profile_module(nn.Sequential(*layers), (torch.randn(4, 8),), repeats=1).profile
    assert [layer.activation_bytes for layer in profile.layers] == [128, 0, 0, 128, 32, 4]
    frozen = nn.Sequential(*layers)
    layers[0].requires_grad_(False)
    profile = profile_module(frozen, (torch.randn(4, 8),), repeats=1).profile
    assert [layer.activation_bytes for layer in profile.layers] == [128, 0, 0, 128, 32, 4]


def test_modules_used_twice_share_their_weights() -> None:
    model, inputs = MODELS["seq2seq"]()
    profile = profile_module(model, inputs, repeats=1).profile
    assert names(profile)[:4] == ["embed Embedding", "encoder LSTM", "embed#2 Embedding", "decoder LSTM"]
    assert profile.tied == ((0, 2),)
    assert profile.layers[2].parameter_bytes == 0
    assert {(0, 1), (1, 3), (2, 3), (3, 4)} <= set(profile.edges)


def test_tied_weights_and_parameters_of_the_outer_module() -> None:
    model, inputs = MODELS["transformer"]()
    profile = profile_module(model, inputs, repeats=1).profile
    first, last = names(profile).index("embed Embedding"), names(profile).index("out Linear")
    assert profile.tied == ((first, last),)
    added = profile.layers[first + 1]
    assert "Add" in added.name
    assert added.parameter_bytes == model.position.numel() * 4
    plan = partition(profile, Topology(((2, 1e12),)), straight=True)
    together = any({first, last} <= set(stage.layers) for stage in plan.stages)
    assert any("share weights" in note for note in plan.notes) == (not together)


def test_time_goes_to_the_layer_that_takes_it() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 2048), nn.Linear(2048, 32), nn.Linear(32, 32))
    profile = profile_module(model, (torch.randn(256, 32),), repeats=7).profile
    small = max(profile.layers[0].compute_s, profile.layers[3].compute_s)
    assert min(profile.layers[1].compute_s, profile.layers[2].compute_s) > 3 * small


def test_gradients_and_hooks_are_left_as_they_were() -> None:
    model, inputs = MODELS["cnn"]()
    expected = model(*inputs)
    profile_module(model, inputs, repeats=1)
    assert torch.equal(model(*inputs), expected)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_what_cannot_be_profiled_says_why() -> None:
    with pytest.raises(ProfileError, match="give a loss"):
        profile_module(nn.Identity(), (torch.zeros(2, dtype=torch.long),))
    frozen = nn.Linear(2, 2)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ProfileError, match="gradient"):
        profile_module(frozen, (torch.randn(2, 2),))
    with pytest.raises(ProfileError, match="repeat"):
        profile_module(nn.Linear(2, 2), (torch.randn(2, 2),), repeats=0)


@dataclass
class Scores:
    """As models of Hugging Face return, without being a dict."""

    scores: torch.Tensor


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, pair: Pair) -> Scores:
        return Scores(self.layer(pair.left + pair.right))


class Pair(NamedTuple):
    """An input of two tensors."""

    left: torch.Tensor
    right: torch.Tensor


def test_outputs_may_be_dataclasses_and_inputs_named_tuples() -> None:
    pair = to_device(Pair(torch.randn(4, 3), torch.randn(4, 3)), "cpu")
    assert isinstance(pair, Pair)
    found = profile_module(Scorer(), (pair,), repeats=1).profile
    assert sum(layer.parameter_bytes for layer in found.layers) == 4 * 8
    assert found.input_bytes == 4 * 24
