"""A model's profile: per layer the seconds of forward and backward, and the bytes of its output and weights.

PipeDream's optimizer needs three numbers per layer (thesis 5.3.1, "Profiler"): T_l, the time of forward and
backward; a_l, the bytes of its output (and so of the gradient that comes back); w_l, the bytes of its weights.
Layers form a directed graph without cycles. Files are JSON, times in milliseconds, sizes in bytes.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from pipeline.whole_file import write_text


class ProfileError(ValueError):
    """A profile that cannot be used. The message is one sentence that names what is wrong and where."""


FIGURES = ("forward_s", "backward_s", "activation_bytes", "parameter_bytes")


@dataclass(frozen=True)
class Layer:
    """One layer of a profile.

    forward_s, backward_s: seconds for one minibatch on one device. activation_bytes: size of the output of
    one minibatch. parameter_bytes: size of the weights, 0 if it has none.
    """

    name: str
    forward_s: float
    backward_s: float
    activation_bytes: float
    parameter_bytes: float

    def __post_init__(self) -> None:
        for key in FIGURES:
            if not isinstance(value := getattr(self, key), int | float):  # of numpy, say: a file takes none
                object.__setattr__(self, key, float(value))

    @property
    def compute_s(self) -> float:
        """T_l: forward and backward, seconds."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Profile:
    """Layers and the edges between them, checked on construction.

    edges: (from, to) by index of layer; layers may stand in any order. batch: samples in the minibatch that
    was profiled (None if unknown). input_bytes: size of the model's own input. tied: groups of layers that
    share weights (the bytes are counted at the first). Raises ProfileError.
    """

    model: str
    layers: tuple[Layer, ...]
    edges: tuple[tuple[int, int], ...]
    batch: int | None = None
    device: str = "unknown"
    input_bytes: float = 0.0
    tied: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        # Of numpy, say. Sets of layers are bits of plain ints, which its own would overflow, and a file takes none.
        if not isinstance(self.batch, int | float | None):
            object.__setattr__(self, "batch", int(self.batch))
        if not isinstance(self.input_bytes, int | float):
            object.__setattr__(self, "input_bytes", float(self.input_bytes))
        object.__setattr__(self, "edges", tuple((int(a), int(b)) for a, b in self.edges))
        _check(self)

    @property
    def single_seconds(self) -> float:
        """Seconds for one minibatch on one device: the sum of T_l."""
        return sum(layer.compute_s for layer in self.layers)

    @property
    def parameter_bytes(self) -> float:
        """Bytes of all weights."""
        return sum(layer.parameter_bytes for layer in self.layers)

    def predecessors(self) -> list[list[int]]:
        """For each layer the layers whose output it takes."""
        found: list[list[int]] = [[] for _ in self.layers]
        for a, b in self.edges:
            found[b].append(a)
        return found

    def topological_order(self) -> list[int]:
        """Layers, each after everything that it needs; of those that are ready the lowest index first."""
        order = _topological(len(self.layers), self.edges)
        assert order is not None, "checked on construction"
        return order

    def scaled(self, *, batch: int | None = None, speed: float = 1.0) -> Profile:
        """The profile at another batch size or on a faster device.

        Times and activations grow with the batch, weights do not; times are divided by `speed`. Linear in
        the batch, which holds for batches that already fill the device. Raises ProfileError.
        """
        if not (speed > 0 and math.isfinite(speed)):
            raise ProfileError(f"speed must be a positive number, found {speed}")
        factor = 1.0
        if batch is not None:
            if batch < 1:
                raise ProfileError(f"batch must be 1 or more, found {batch}")
            if self.batch is None:
                raise ProfileError(
                    f"profile {self.model} does not say which batch it was taken at, so it cannot be scaled "
                    f'to {batch}: add "batch" to the file'
                )
            factor = batch / self.batch
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * factor / speed,
                backward_s=layer.backward_s * factor / speed,
                activation_bytes=layer.activation_bytes * factor,
            )
            for layer in self.layers
        )
        return replace(self, layers=layers, batch=batch or self.batch, input_bytes=self.input_bytes * factor)

    def table(self, limit: int | None = None) -> str:
        """The layers as a text table: index, name, ms forward and backward, MB of output and of weights."""
        rows = [f"{'#':>4}  {'layer':<44} {'fwd ms':>9} {'bwd ms':>9} {'output MB':>10} {'weights MB':>10}"]
        shown = self.layers if limit is None else self.layers[:limit]
        for i, layer in enumerate(shown):
            name = " ".join(layer.name.split())
            name = name if len(name) <= 44 else name[:41] + "..."
            rows.append(
                f"{i:>4}  {name:<44} {layer.forward_s * 1e3:>9.3f} {layer.backward_s * 1e3:>9.3f} "
                f"{layer.activation_bytes / 1e6:>10.3f} {layer.parameter_bytes / 1e6:>10.3f}"
            )
        if len(shown) < len(self.layers):
            rows.append(f"      ... {len(self.layers) - len(shown)} more")
        forward_s = sum(layer.forward_s for layer in self.layers)
        backward_s = sum(layer.backward_s for layer in self.layers)
        activation_bytes = sum(layer.activation_bytes for layer in self.layers)
        rows.append(
            f"{'':>4}  {'sum of ' + str(len(self.layers)) + ' layers':<44} {forward_s * 1e3:>9.3f} "
            f"{backward_s * 1e3:>9.3f} {activation_bytes / 1e6:>10.3f} {self.parameter_bytes / 1e6:>10.3f}"
        )
        return "\n".join(rows)


def chain(
    compute_s: Sequence[float],
    activation_bytes: Sequence[float],
    parameter_bytes: Sequence[float],
    *,
    model: str = "chain",
    forward_share: float = 1 / 3,
) -> Profile:
    """A profile whose layers follow one another; `forward_share` of each layer's seconds is its forward."""
    layers = tuple(
        Layer(f"layer{i}", t * forward_share, t - t * forward_share, a, w)
        for i, (t, a, w) in enumerate(zip(compute_s, activation_bytes, parameter_bytes, strict=True))
    )
    return Profile(model, layers, tuple((i, i + 1) for i in range(len(layers) - 1)))


def read(path: str | Path) -> Profile:
    """Read a profile file. Raises ProfileError, whose sentence names the file and the key."""
    path = Path(path)
    try:
        raw = json.loads(path.read_text("utf-8-sig"))  # with or without the mark that some editors write
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ProfileError(f"{path} is a folder; expected a JSON file") from None
    except OSError as error:
        raise ProfileError(f"{path} cannot be read ({error.strerror}); expected a JSON file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ProfileError(f"{path} is not JSON: {error}") from None
    except RecursionError:
        raise ProfileError(f"{path} is nested too deeply") from None
    try:
        return from_dict(raw)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def from_dict(raw: object) -> Profile:
    """A profile from the parsed JSON of a file. Raises ProfileError."""
    if not isinstance(raw, dict) or not isinstance(raw.get("layers"), list):
        raise ProfileError('expected an object with the key "layers", a list of layers')
    layers = tuple(_layer(item, i) for i, item in enumerate(raw["layers"]))
    names = _names(raw["layers"])
    raw_edges = raw.get("edges")
    if raw_edges is None:
        raise ProfileError('the key "edges" is missing; expected a list of [from, to]')
    if not isinstance(raw_edges, list):
        raise ProfileError(f'"edges" must be a list of [from, to], found {raw_edges!r}')
    edges = tuple(_edge(item, names, len(layers)) for item in raw_edges)
    batch = raw.get("batch")
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool)):
        raise ProfileError(f'"batch" must be a whole number, found {batch!r}')
    return Profile(
        model=str(raw.get("model", "model")),
        layers=layers,
        edges=edges,
        batch=batch,
        device=str(raw.get("device", "unknown")),
        input_bytes=_number(raw.get("input_bytes", _removed_bytes(raw)), "input_bytes"),
        tied=_tied(raw, names, len(layers)),
    )


def _removed_bytes(raw: Mapping[str, Any]) -> float:
    """Bytes of the input layers that another tool took out of the graph."""
    removed = raw.get("inputs_removed", [])
    if not isinstance(removed, list) or not all(isinstance(item, Mapping) for item in removed):
        raise ProfileError(f'"inputs_removed" must be a list of layers, found {removed!r:.80}')
    return sum(_number(item.get("activation_bytes", 0.0), "activation_bytes of an input") for item in removed)


def _tied(raw: Mapping[str, Any], names: Mapping[str, int], count: int) -> tuple[tuple[int, ...], ...]:
    groups = raw.get("tied", [])
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ProfileError(f'"tied" must be a list of lists of layers, found {groups!r:.80}')
    return tuple(tuple(_index(end, names, count) for end in group) for group in groups)


def to_dict(profile: Profile) -> dict[str, Any]:
    """The content of the file that `write` makes."""
    return {
        "model": profile.model,
        "batch": profile.batch,
        "device": profile.device,
        "units": {"time": "ms", "size": "bytes"},
        "input_bytes": profile.input_bytes,
        "layers": [
            {
                "index": i,
                "name": layer.name,
                "forward_ms": layer.forward_s * 1e3,
                "backward_ms": layer.backward_s * 1e3,
                "activation_bytes": layer.activation_bytes,
                "parameter_bytes": layer.parameter_bytes,
            }
            for i, layer in enumerate(profile.layers)
        ],
        "edges": [list(edge) for edge in profile.edges],
        "tied": [list(group) for group in profile.tied],
    }


def write(profile: Profile, path: str | Path) -> None:
    """Write a profile so that `read` gives it back; the file appears whole or not at all."""
    write_text(Path(path), json.dumps(to_dict(profile), indent=1) + "\n")


def _layer(raw: object, index: int) -> Layer:
    if not isinstance(raw, Mapping):
        raise ProfileError(f"layer {index} must be an object, found {raw!r}")
    numbers = []
    for key in ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes"):
        if key not in raw:
            raise ProfileError(f'layer {index} lacks the key "{key}"')
        numbers.append(_number(raw[key], f"layer {index} {key}"))
    forward_ms, backward_ms, activation_bytes, parameter_bytes = numbers
    name = str(raw.get("name", raw.get("id", f"layer{index}")))
    return Layer(name, forward_ms / 1e3, backward_ms / 1e3, activation_bytes, parameter_bytes)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProfileError(f"{where} must be a number, found {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ProfileError(f"{where} must be a number below 1e308") from None


def _names(raw_layers: Iterable[object]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, item in enumerate(raw_layers):
        if isinstance(item, Mapping) and "id" in item and found.setdefault(str(item["id"]), index) != index:
            raise ProfileError(f'layers {found[str(item["id"])]} and {index} have the same id "{item["id"]}"')
    return found


def _edge(item: object, names: Mapping[str, int], count: int) -> tuple[int, int]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise ProfileError(f"an edge must be [from, to], found {item!r}")
    return _index(item[0], names, count), _index(item[1], names, count)


def _index(end: object, names: Mapping[str, int], count: int) -> int:
    if isinstance(end, str):
        if end not in names:
            raise ProfileError(f'edges and tied layers name "{end}", which no layer has as its id')
        return names[end]
    if isinstance(end, bool) or not isinstance(end, int):
        raise ProfileError(f"edges and tied layers name {end!r}; expected the index or the id of a layer")
    if not 0 <= end < count:
        raise ProfileError(f"edges and tied layers name layer {end}, but the layers are 0 to {count - 1}")
    return end


def _check(profile: Profile) -> None:
    count = len(profile.layers)
    if count == 0:
        raise ProfileError("the profile has no layers")
    for i, layer in enumerate(profile.layers):
        for key in FIGURES:
            value = getattr(layer, key)
            if not (value >= 0 and math.isfinite(value)):
                raise ProfileError(f"layer {i} ({layer.name}): {key} must be 0 or more, found {value}")
    if profile.batch is not None and profile.batch < 1:
        raise ProfileError(f"batch must be 1 or more, found {profile.batch}")
    if not (profile.input_bytes >= 0 and math.isfinite(profile.input_bytes)):
        raise ProfileError(f"input_bytes must be 0 or more, found {profile.input_bytes}")
    for ends in profile.edges:
        for end in ends:
            if not 0 <= end < count:
                raise ProfileError(f"an edge ends at layer {end}, but the layers are 0 to {count - 1}")
    for tied in itertools.chain(*profile.tied):
        if not 0 <= tied < count:
            raise ProfileError(f"tied names layer {tied}, but the layers are 0 to {count - 1}")
    if _topological(count, profile.edges) is None:
        raise ProfileError(f"the edges form a cycle through {_cycle(profile.edges)}")
    if not profile.single_seconds > 0:
        raise ProfileError("all times are zero: there is nothing to balance")


def _topological(count: int, edges: Iterable[tuple[int, int]]) -> list[int] | None:
    """Kahn's algorithm, lowest index first; None if there is a cycle."""
    successors: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for a, b in edges:
        successors[a].append(b)
        waiting[b] += 1
    ready = [i for i in range(count) if waiting[i] == 0]
    order = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for after in successors[node]:
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(ready, after)
    return order if len(order) == count else None


def _cycle(edges: Iterable[tuple[int, int]]) -> str:
    """The layers of one cycle, as text."""
    sorter = TopologicalSorter[int]()
    for a, b in edges:
        sorter.add(b, a)
    try:
        sorter.prepare()
    except CycleError as error:
        return "layers " + " -> ".join(map(str, error.args[1]))
    raise AssertionError("the edges form no cycle")
