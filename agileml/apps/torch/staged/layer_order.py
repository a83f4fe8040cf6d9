"""Where the tables of a module can be cut, so that each part has the parameters and buffers of neighbouring layers.

Parameters lie in the order of `named_parameters()`, in which a module's own stand before those of its parts: not always
the order in which the forward reads them. A cut has a place where all that lie before it are read by layers before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch import fx

from agileml.application import InputError
from agileml.apps.torch.flat import TensorSpan
from pipeline.stages.traced import TracedModel


def first_layers(
    traced: TracedModel, tensors: Mapping[fx.Node, str], spans: Sequence[TensorSpan]
) -> list[int]:
    """The layer that reads each parameter or buffer first; one that is not among `tensors` goes with the one before."""
    where = {node: number for number, layer in enumerate(traced.layers) for node in layer.nodes}
    first = {
        name: min(where[user] for user in node.users if user in where)
        for node, name in tensors.items()
        if any(user in where for user in node.users)
    }
    found: list[int] = []
    for span in spans:
        found.append(first.get(span.name, found[-1] if found else 0))
    return found


def places_to_cut(layers: Sequence[int], of_buffers: Sequence[Sequence[int]]) -> dict[int, int]:
    """By parameter before which a cut may lie, the layer that begins there.

    layers: of the parameters. of_buffers: of the buffers of each table.
    """
    found = {}
    for at in range(1, len(layers)):
        end = min(layers[at:])
        if max(layers[:at]) < end and all(_are_split(each, end) for each in of_buffers):
            found[at] = end
    return found


def _are_split(layers: Sequence[int], end: int) -> bool:
    """Whether the tensors of the layers before `end` stand before all others in their table."""
    count = sum(layer < end for layer in layers)
    return max(layers[:count], default=-1) < end


def end_before(spans: Sequence[TensorSpan], layers: Sequence[int], end: int) -> int:
    """Where the tensors of the layers before `end` end in their table."""
    count = sum(layer < end for layer in layers)
    return spans[count - 1].end if count else 0


def check_order(kind: str, spans: Sequence[TensorSpan], layers: Sequence[int]) -> None:
    """Raise InputError for tensors that are not in the order of the forward."""
    for (before, last), (span, layer) in pairwise(zip(spans, layers, strict=True)):
        if layer < last:
            raise InputError(
                f"pipeline: the forward reads the {kind} {span.name!r} before {before.name!r}, expected {kind}s in the "
                f"order of the forward (named_{kind}s() lists a module's own before those of its parts): a stage holds "
                "neighbours, and here no cut would have them"
            )
