"""Layers of a recorded graph: consecutive operations of one module call, and where no cut may lie between them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pipeline.stages.overwriting import Shows, base_of, writes


class StageError(ValueError):
    """A model that cannot be run in stages. The message is one sentence that names the layer."""


@dataclass(frozen=True)
class Fact:
    """A tensor of the graph, as its last reader in the example run found it. needs_gradient: a gradient flows back
    through it."""

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


def _body(graph: fx.Graph) -> list[fx.Node]:
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


def _forbidden(
    layers: Sequence[LayerNodes],
    buffers: dict[fx.Node, str],
    changed: frozenset[str],
    facts: dict[fx.Node, Fact],
    shows: Shows,
) -> list[tuple[int, int]]:
    """Ranges (first, last) of layers between which no cut may lie."""
    where = {node: number for number, layer in enumerate(layers) for node in layer.nodes}
    found = []
    # Layers that overwrite an input or a buffer, of which each stage has its own copy: they stay with its readers.
    changing: dict[fx.Node, list[int]] = {node: [] for node, name in buffers.items() if name in changed}
    for node, number in where.items():
        for written in writes(node):
            if (base := base_of(written, shows)) in where:
                found.append((where[base], number))
            else:
                changing.setdefault(base, []).append(number)
        users = [where[user] for user in node.users if user in where]
        fact = facts.get(node)
        # A tuple, or memory with gaps, does not travel as it is: it stays with what reads it.
        if users and (fact is None or not _is_dense(fact)) and node.target is not operator.getitem:
            readers = [user for user in node.users if user.target is not operator.getitem and user in where]
            if fact is not None or readers:
                found.append((number, max(users)))
        elif users and fact is not None and not _is_dense(fact):
            found.append((number, max(users)))
    for node, numbers in changing.items():
        if users := [*numbers, *(where[user] for user in node.users if user in where)]:
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


def layers_to_cut(
    graph: fx.Graph,
    buffers: dict[fx.Node, str],
    changed: frozenset[str],
    facts: dict[fx.Node, Fact],
    shows: Shows,
) -> tuple[LayerNodes, ...]:
    """The layers between any two of which the model can be cut. Raises StageError."""
    found = _layers(_body(graph))
    return _joined(found, _forbidden(found, buffers, changed, facts, shows))


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
