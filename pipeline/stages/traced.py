"""A torch model as an ordered list of layers, each of which can be run by itself.

`torch.export` records the operations of one forward on example inputs, with parameters and buffers as inputs of the
graph. Consecutive operations of one module call are a layer; operations between calls are layers of their own. Values
that are no tensors (flags, sizes) are fixed by the example. A model that is a sequence, or that has a method `stages()`
that returns one, has the items of the sequence as its layers.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from pipeline.stages.layering import Fact, LayerNodes, StageError, layers_to_cut
from pipeline.stages.overwriting import Sharing, Shows


@dataclass(frozen=True)
class TracedModel:
    """The operations of a model.

    module: what was recorded. layers: in the order of the forward. parameters, buffers: by placeholder, the name in the
    model. inputs: the model's own inputs, flattened; None where one is not a tensor. outputs: nodes or constants,
    flattened as `out_spec` says. facts: of every node that is a tensor. changed: buffers that a forward changes.
    rewritten: parameters that it changes, as `max_norm` does. overwritten: places of the inputs that it changes.
    values: parameters and buffers by name. example: the inputs that are no tensors.
    """

    module: nn.Module
    graph_module: fx.GraphModule
    layers: tuple[LayerNodes, ...]
    parameters: dict[fx.Node, str]
    buffers: dict[fx.Node, str]
    inputs: tuple[fx.Node | None, ...]
    outputs: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    facts: dict[fx.Node, Fact]
    changed: frozenset[str]
    rewritten: frozenset[str]
    overwritten: frozenset[int]
    values: dict[str, Tensor]
    example: tuple[Any, ...]

    @cached_property
    def numbers(self) -> dict[fx.Node, int]:
        """The place of each node among all."""
        return {node: place for place, node in enumerate(n for layer in self.layers for n in layer.nodes)}

    def flat_inputs(self, inputs: Sequence[Any]) -> list[Any]:
        """A minibatch's inputs in the order of `inputs`. Raises StageError where they are nested otherwise."""
        flat, spec = pytree.tree_flatten((tuple(inputs), {}))
        if spec != self.in_spec:
            raise StageError(
                f"the minibatch has inputs of the form {spec}, expected {self.in_spec} as in the example"
            )
        for place, (value, node) in enumerate(zip(flat, self.inputs, strict=True)):
            found = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
            fact = self.facts[node] if node is not None else None
            expected = self.example[place] if fact is None else (fact.shape, fact.dtype)
            if found != expected:
                raise StageError(
                    f"input {place} of the minibatch is {found}, expected {expected} as in the example"
                )
        return flat


def trace_model(model: nn.Module, inputs: Sequence[Any]) -> TracedModel:
    """The layers of a model in training mode, for inputs of the shapes of `inputs`. Raises StageError.

    Parts that are in eval mode in a model that is not, such as a frozen batch norm, stay so.
    """
    if not model.training:
        model.train()
    recorded, program = _exported(model, tuple(inputs))
    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise StageError(
                f"the model assigns {spec.target} in its forward: change a buffer in place, as in "
                f"`self.{str(spec.target).rpartition('.')[2]}.copy_(...)`"
            )
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    values: dict[str, Tensor] = {}
    parameters: dict[fx.Node, str] = {}
    buffers: dict[fx.Node, str] = {}
    own: list[fx.Node | None] = []
    names = _names(model)
    for node, given in zip(placeholders, signature.input_specs, strict=True):
        if given.kind is InputKind.USER_INPUT:
            own.append(node if isinstance(node.meta.get("val"), Tensor) else None)
            continue
        target = str(given.target)
        tensor = program.state_dict[target] if target in program.state_dict else program.constants.get(target)
        if not isinstance(tensor, Tensor):
            raise StageError(f"the model takes {target} of kind {given.kind.name}, expected tensors")
        name = names.get(id(tensor), target)
        if tensor.layout is not torch.strided:
            raise StageError(
                f"the buffer {name!r} is a sparse tensor, expected dense ones, which stages can share"
            )
        (parameters if given.kind is InputKind.PARAMETER else buffers)[node] = name
        values[name] = tensor
    flat, in_spec = pytree.tree_flatten((tuple(inputs), {}))
    found = _observed(program, parameters, buffers, own, flat, values)
    output = next(node for node in program.graph.nodes if node.op == "output")
    return TracedModel(
        recorded,
        program.graph_module,
        layers_to_cut(program.graph, buffers, found.changed, found.facts, found.shows),
        parameters,
        buffers,
        tuple(own),
        tuple(output.args[0]),
        in_spec,
        program.call_spec.out_spec,
        found.facts,
        found.changed,
        found.rewritten,
        found.overwritten,
        values,
        tuple(None if isinstance(value, Tensor) else value for value in flat),
    )


def _names(model: nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by the tensor's identity."""
    found: dict[int, str] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        found.setdefault(id(tensor), name)
    return found


class _Chain(nn.Module):
    """The modules that a model's `stages()` returned, one after the other."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(parts)

    def forward(self, *values: Any) -> Any:
        given: Any = values
        for part in self.stages:
            given = part(*given) if isinstance(given, tuple | list) else part(given)
        return given


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the graph that torch logs and prints where it cannot follow a forward: our sentence names the layer."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = log.level
    log.setLevel(logging.ERROR)
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            yield
        sys.stderr.write(printed.getvalue())  # the user's own
    finally:
        log.setLevel(before)


def _exported(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, ExportedProgram]:
    """The recorded module, and torch.export's program of it. Raises StageError, whose sentence names the innermost
    module that failed."""
    if callable(own := getattr(model, "stages", None)) and not isinstance(own, nn.Module):
        parts = list(own())
        if not parts or not all(isinstance(part, nn.Module) for part in parts):
            raise StageError(
                f"{type(model).__name__}.stages() must return a list of modules, found {parts!r:.80}"
            )
        model = _Chain(parts)
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    calls: list[nn.Module] = []
    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(lambda module, _: calls.append(module)))
        handles.append(module.register_forward_hook(lambda *_: calls.pop() and None))
    try:
        with warnings.catch_warnings(), _quiet():
            # Such as of LSTM, which assigns a list of its own weights again.
            warnings.filterwarnings("ignore", message=".*were assigned during export")
            return model, torch.export.export(model, inputs, strict=False)
    except Exception as error:  # whatever the user's forward may raise
        where = names[calls[-1]] if calls else type(model).__name__
        kind = type(calls[-1] if calls else model).__name__
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).partition(". ")[0][:160]
        raise StageError(
            f"layer {where} ({kind}) cannot be cut: torch.export does not follow its forward: {reason}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(fx.Interpreter):
    """Runs the graph once and notes what its tensors are like."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self.facts: dict[fx.Node, Fact] = {}
        self.sharing = Sharing()

    def run_node(self, n: fx.Node) -> Any:
        # A tensor that is made without a gradient needs one once something that has it is written into it.
        given = {node: self.env[node] for node in n.all_input_nodes}
        for node, value in given.items():
            if node in self.facts and value.requires_grad:
                self.facts[node] = replace(self.facts[node], needs_gradient=True)
        value = super().run_node(n)
        self.sharing.note(n, value, given)
        if isinstance(value, Tensor):
            self.facts[n] = Fact(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        return value


@dataclass(frozen=True)
class _Observed:
    """The findings of one run: facts, changed, rewritten and overwritten of `TracedModel`, and tensors that show
    others' memory."""

    facts: dict[fx.Node, Fact]
    changed: frozenset[str]
    rewritten: frozenset[str]
    overwritten: frozenset[int]
    shows: Shows


def _observed(
    program: ExportedProgram,
    parameters: dict[fx.Node, str],
    buffers: dict[fx.Node, str],
    own: Sequence[fx.Node | None],
    flat: Sequence[Any],
    values: dict[str, Tensor],
) -> _Observed:
    """Run the graph once, on copies of buffers and inputs."""
    assert len(flat) == len(own)
    copies = {name: values[name].clone() for name in buffers.values()}
    inputs = [value.clone() if isinstance(value, Tensor) else value for value in flat]
    arguments: list[Any] = [
        *(values[name].detach().requires_grad_(values[name].requires_grad) for name in parameters.values()),
        *(copies[name] for name in buffers.values()),
        *inputs,
    ]
    recorder = _Recorder(program.graph_module)
    versions = {name: values[name]._version for name in parameters.values()}
    state = torch.get_rng_state()
    try:
        with torch.enable_grad():  # `needs_gradient` says what a training step needs, wherever this is called
            recorder.run(*arguments)
    finally:
        torch.set_rng_state(state)
    # A forward may write what is there already, as one that keeps a maximum does; batch norm's kernel counts no writes.
    changed = {name for name, copy in copies.items() if copy._version or not torch.equal(copy, values[name])}
    rewritten = {name for name, version in versions.items() if values[name]._version != version}
    overwritten = {place for place, v in enumerate(inputs) if isinstance(v, Tensor) and v._version}
    return _Observed(
        recorder.facts,
        frozenset(changed),
        frozenset(rewritten),
        frozenset(overwritten),
        recorder.sharing.shows,
    )
