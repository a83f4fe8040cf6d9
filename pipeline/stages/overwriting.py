"""Which operations of a recorded graph overwrite memory, and which tensors show the same memory."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

# By tensor of the graph, one whose memory it shows.
Shows = Mapping[fx.Node, fx.Node]

# Operations whose result may be their input's own memory for other strides or rates than the example's.
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


def writes(node: fx.Node) -> list[fx.Node]:
    """The arguments that an operation changes in place; of a block, such as that of `no_grad`, its operations do."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return list(_writes_of_block(node))
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    given = [*node.args, *(node.kwargs.get(a.name) for a in schema.arguments[len(node.args) :])]
    return [
        value
        for value, argument in zip(given, schema.arguments, strict=False)
        if isinstance(value, fx.Node) and argument.alias_info is not None and argument.alias_info.is_write
    ]


def _writes_of_block(node: fx.Node) -> Iterator[fx.Node]:
    for place, argument in enumerate(node.args):
        module = _module_of(argument)
        if module is None:
            continue
        inside = [each for each in module.graph.nodes if each.op == "placeholder"]
        given = dict(zip(inside, node.args[place + 1 :], strict=False))
        for each in module.graph.nodes:
            for value in writes(each):
                outside = given.get(base_of(value, {}))
                if isinstance(outside, fx.Node):
                    yield outside


def _module_of(argument: object) -> fx.GraphModule | None:
    """The module that a block's argument names."""
    if not isinstance(argument, fx.Node) or argument.op != "get_attr":
        return None
    found = operator.attrgetter(str(argument.target))(argument.graph.owning_module)
    return found if isinstance(found, fx.GraphModule) else None


def base_of(node: fx.Node, shows: Shows) -> fx.Node:
    """The node that made the memory that a tensor shows."""
    while node.op == "call_function":
        if node in shows:
            node = shows[node]
            continue
        sees = getattr(node.target, "is_view", False)
        named = getattr(node.target, "__name__", "").split(".")[0] in _MAY_SHOW
        first = node.args[0] if node.args else None
        if not (sees or named or node.target is operator.getitem or writes(node)) or not isinstance(
            first, fx.Node
        ):
            break
        node = first
    return node


class Sharing:
    """Notes, while a graph runs, which tensors show memory of others: not all such operations are views by
    declaration (`type_as`, `einsum`)."""

    def __init__(self) -> None:
        self.shows: dict[fx.Node, fx.Node] = {}
        self._parts: dict[fx.Node, list[fx.Node | None]] = {}  # of the parts of a tuple

    def note(self, node: fx.Node, value: Any, given: Mapping[fx.Node, Any]) -> None:
        """A node made a value of what it was given."""
        if node.target is operator.getitem and node.args[0] in self._parts:
            parts, place = self._parts[node.args[0]], node.args[1]
            shown = parts[place] if isinstance(place, int) else None
        elif isinstance(value, tuple | list):
            self._parts[node] = [_shown(part, given) for part in value]
            return
        else:
            shown = _shown(value, given)
        if shown is not None:
            self.shows[node] = shown


def _shown(value: Any, given: Mapping[fx.Node, Any]) -> fx.Node | None:
    if (place := _place(value)) is None:
        return None
    return next((node for node, each in given.items() if place in _places(each)), None)


def _places(value: Any) -> Sequence[int | None]:
    return [_place(part) for part in pytree.tree_leaves(value)]


def _place(value: Any) -> int | None:
    """Where a tensor's memory is."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or not value.numel():
        return None
    return value.untyped_storage().data_ptr()
