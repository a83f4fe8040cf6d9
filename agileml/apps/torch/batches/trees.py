"""Batches as trees of tensors: dicts, tuples, named tuples, lists and dataclasses, nested as the user likes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor changed; leaves of other types (text, numbers, None) stay as they are."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, PackedSequence):  # torch wants its batch sizes on the CPU
        moved = (None if t is None else change(t) for t in (tree.sorted_indices, tree.unsorted_indices))
        return PackedSequence(change(tree.data), tree.batch_sizes, *moved)
    if isinstance(tree, Mapping):
        found = {key: mapped(value, change) for key, value in tree.items()}
        return found if type(tree) is dict else _same_mapping(tree, found)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(value, change) for value in tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree) if field.init}
        return dataclasses.replace(tree, **{name: mapped(value, change) for name, value in fields.items()})
    return tree


def copied(tree: Any) -> Any:
    """The same tree with tensors of its own: what is done to them in place leaves these as they are."""
    return mapped(tree, Tensor.clone)


def _same_mapping(tree: Mapping[Any, Any], found: dict[Any, Any]) -> Any:
    try:
        return type(tree)(found)  # type: ignore[call-arg]
    except TypeError:
        return found


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from tensors(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from tensors(getattr(tree, field.name))


def is_same(tree: Any, other: Any) -> bool:
    """Whether two trees have equal tensors, in the same order."""
    pairs = zip_longest(tensors(tree), tensors(other))
    return all(a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
