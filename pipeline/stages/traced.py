"""A torch model as an ordered list of layers, each of which can be run by itself.

`torch.export` records the operations of one forward on example inputs, with parameters and buffers as inputs of the
graph. Consecutive operations of one module call are a layer; operations between calls are layers of their own. What is
not a tensor (flags, sizes) is fixed by the example. A model that is a sequence, or that has a method `stages()` that
returns one, has the items of the sequence as its layers.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree


class StageError(ValueError):
    """A model that cannot be run in stages. The message is one sentence that names the layer."""


# Operations whose result may be their input's own memory, without being views by declaration.
_MAY_SHOW = (
    "reshape",
    "contiguous",
    "flatten",
    "to",
    "dropout",
    "feature_dropout",
    "alpha_dropout",
    "expand_as",
)


@dataclass(frozen=True)
class Fact:
    """A tensor of the graph, as the example run made it. needs_gradient: a gradient flows back through it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class LayerNodes:
    """One layer: consecutive nodes of the graph, and the name of the module that made them."""

    name: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class TracedModel:
    """The operations of a model.

    layers: in the order of the forward. parameters, buffers: by placeholder, the name in the model. inputs: the
    model's own inputs, flattened; None where one is not a tensor. outputs: nodes or constants, flattened as
    `out_spec` says. facts: of every node that is a tensor. changed: buffers that a forward changes. values:
    parameters and buffers by name. example: the inputs that are no tensors.
    """

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
    """The layers of a model in training mode, for inputs of the shapes of `inputs`. Raises StageError."""
    model.train()
    program = _exported(model, tuple(inputs))
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
        (parameters if given.kind is InputKind.PARAMETER else buffers)[node] = name
        values[name] = tensor
    flat, in_spec = pytree.tree_flatten((tuple(inputs), {}))
    facts, changed = _facts(program, parameters, buffers, own, flat, values)
    output = next(node for node in program.graph.nodes if node.op == "output")
    body = _body(program.graph, buffers, changed)
    return TracedModel(
        program.graph_module,
        _joined(_layers(body), _forbidden(_layers(body), buffers, changed, facts)),
        parameters,
        buffers,
        tuple(own),
        tuple(output.args[0]),
        in_spec,
        program.call_spec.out_spec,
        facts,
        changed,
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


def _exported(model: nn.Module, inputs: tuple[Any, ...]) -> ExportedProgram:
    """torch.export's program. Raises StageError, whose sentence names the innermost module that failed."""
    if callable(own := getattr(model, "stages", None)) and not isinstance(own, nn.Module):
        parts = list(own())
        if not parts or not all(isinstance(part, nn.Module) for part in parts):
            raise StageError(
                f"{type(model).__name__}.stages() must return a list of modules, found {parts!r:.80}"
            )
        model = _Chain(parts).train()
    names = {module: name or type(model).__name__ for name, module in model.named_modules()}
    calls: list[nn.Module] = []
    handles = []
    for module in names:
        handles.append(module.register_forward_pre_hook(lambda module, _: calls.append(module)))
        handles.append(module.register_forward_hook(lambda *_: calls.pop() and None))
    try:
        with warnings.catch_warnings():
            # Such as of LSTM, which assigns a list of its own weights again.
            warnings.filterwarnings("ignore", message=".*were assigned during export")
            return torch.export.export(model, inputs, strict=False)
    except Exception as error:  # whatever the user's forward may raise
        where = names[calls[-1]] if calls else type(model).__name__
        kind = type(calls[-1] if calls else model).__name__
        reason = " ".join(str(error).split())[:160] or type(error).__name__
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

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.facts[n] = Fact(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        return value


def _facts(
    program: ExportedProgram,
    parameters: dict[fx.Node, str],
    buffers: dict[fx.Node, str],
    own: Sequence[fx.Node | None],
    flat: Sequence[Any],
    values: dict[str, Tensor],
) -> tuple[dict[fx.Node, Fact], frozenset[str]]:
    """(what each tensor is like, the buffers that a forward changes), from one run on copies of the buffers."""
    copies = {name: values[name].clone() for name in buffers.values()}
    arguments: list[Any] = [
        *(values[name].detach().requires_grad_(values[name].requires_grad) for name in parameters.values()),
        *(copies[name] for name in buffers.values()),
        *flat,
    ]
    recorder = _Recorder(program.graph_module)
    state = torch.get_rng_state()
    try:
        with torch.enable_grad():  # `needs_gradient` says what a training step needs, wherever this is called
            recorder.run(*arguments)
    finally:
        torch.set_rng_state(state)
    changed = {name for name, copy in copies.items() if not torch.equal(copy, values[name])}
    assert len(flat) == len(own)
    return recorder.facts, frozenset(changed)


def _body(graph: fx.Graph, buffers: dict[fx.Node, str], changed: frozenset[str]) -> list[fx.Node]:
    """The nodes that compute something, parts of a tuple right behind the node that made it."""
    found: list[fx.Node] = []
    items: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_module") or "_assert" in str(node.target):
            continue
        if node.target is operator.getitem:
            items.setdefault(_source(node), []).append(node)
        else:
            found.append(node)
    ordered: list[fx.Node] = []
    for node in found:
        todo = [node]
        while todo:
            ordered.append(todo.pop(0))
            todo = items.get(ordered[-1], []) + todo
    return ordered


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _place(node: fx.Node) -> tuple[str, str]:
    """(path, class) of the innermost module whose forward made a node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return "", "model"
    path, kind = stack[-1]
    return str(path), (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def _layers(body: Sequence[fx.Node]) -> list[LayerNodes]:
    """Consecutive nodes of the same module call."""
    if not body:
        raise StageError("the model computes nothing: there are no layers to cut between")
    groups: list[list[fx.Node]] = []
    last: tuple[str, str] | None = None
    for node in body:
        place = _place(_made_by(node))
        if place != last or not groups:
            groups.append([])
        groups[-1].append(node)
        last = place
    paths = {_place(_made_by(nodes[0]))[0] for nodes in groups}
    seen: dict[str, int] = {}
    found = []
    for nodes in groups:
        path, kind = _place(_made_by(nodes[0]))
        if any(other != path and other.startswith(f"{path}." if path else "") for other in paths):
            kind = "+".join(
                dict.fromkeys(str(node.target).split(".")[1] for node in nodes if "." in str(node.target))
            )
        name = f"{path or 'model'} {kind[:40]}"
        seen[name] = seen.get(name, 0) + 1
        found.append(LayerNodes(name if seen[name] == 1 else f"{name}#{seen[name]}", tuple(nodes)))
    return found


def _made_by(node: fx.Node) -> fx.Node:
    """The node itself; of a part of a tuple the node that made the tuple."""
    while node.target is operator.getitem:
        node = _source(node)
    return node


def _writes(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    given = [*node.args, *(node.kwargs.get(a.name) for a in schema.arguments[len(node.args) :])]
    return [
        value
        for value, argument in zip(given, schema.arguments, strict=False)
        if isinstance(value, fx.Node) and argument.alias_info is not None and argument.alias_info.is_write
    ]


def _base(node: fx.Node) -> fx.Node:
    """The node that made the memory that a view shows."""
    while node.op == "call_function":
        sees = getattr(node.target, "is_view", False)
        named = getattr(node.target, "__name__", "").split(".")[0] in _MAY_SHOW
        first = node.args[0] if node.args else None
        if not (sees or named or node.target is operator.getitem or _writes(node)) or not isinstance(
            first, fx.Node
        ):
            break
        node = first
    return node


def _forbidden(
    layers: Sequence[LayerNodes],
    buffers: dict[fx.Node, str],
    changed: frozenset[str],
    facts: dict[fx.Node, Fact],
) -> list[tuple[int, int]]:
    """Ranges (first, last) of layers between which no cut may lie."""
    where = {node: number for number, layer in enumerate(layers) for node in layer.nodes}
    found = []
    for node, number in where.items():
        for written in _writes(node):
            if (base := _base(written)) in where:
                found.append((where[base], number))
        users = [where[user] for user in node.users if user in where]
        fact = facts.get(node)
        # A tuple, or memory with gaps, does not travel as it is: it stays with what reads it.
        if users and (fact is None or not _is_dense(fact)) and node.target is not operator.getitem:
            readers = [user for user in node.users if user.target is not operator.getitem and user in where]
            if fact is not None or readers:
                found.append((number, max(users)))
        elif users and fact is not None and not _is_dense(fact):
            found.append((number, max(users)))
    for node, name in buffers.items():
        users = [where[user] for user in node.users if user in where]
        if name in changed and users:
            found.append((min(users), max(users)))
    return found


def _is_dense(fact: Fact) -> bool:
    """Whether the elements fill a stretch of memory, in some order of the dimensions, each once."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(fact.stride, fact.shape, strict=True) if size != 1
    ):
        if stride != expected:
            return size == 0
        expected *= size
    return True


def _joined(layers: Sequence[LayerNodes], ranges: Sequence[tuple[int, int]]) -> tuple[LayerNodes, ...]:
    """The layers, those of a range as one."""
    glued = {number for first, last in ranges for number in range(first + 1, last + 1)}
    found: list[LayerNodes] = []
    for number, layer in enumerate(layers):
        if number in glued:
            before = found.pop()
            name = before.name if before.name.endswith("+") else f"{before.name}+"
            layer = LayerNodes(name, before.nodes + layer.nodes)
        found.append(layer)
    return tuple(found)
