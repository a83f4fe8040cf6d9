"""How many GPUs, how many parameter servers, which minibatch (Zou et al. 2017, sections 3.1 to 3.3).

All sizes are bytes, all times seconds. Where the paper's formulas are short of something the functions give
the right value by default and the printed one with `literal=True` (in bytes too: the paper counts bits):

- equation 1 has no floor: a map of 55.25 rows;
- equation 3 multiplies a filter by the depth of its output, not of its input;
- equation 4 counts the outputs of one sample instead of the minibatch's, one bias per layer instead of one
  per neuron, and leaves out the weights between the last feature map and the first dense layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

FLOAT_BYTES = 4
# Weights, the gradient of one sample and the sum over the minibatch (the paper's footnote 4).
COPIES = 3


Shape = tuple[float, float, float]  # of a feature map: height, width, depth


class SizingError(ValueError):
    """A question without an answer; the message is one sentence."""


@dataclass(frozen=True)
class FeatureLayer:
    """A convolution (filters > 0) or a pooling layer (filters = 0)."""

    filter_size: int
    stride: int
    padding: int
    filters: int = 0


@dataclass(frozen=True)
class ConvNet:
    """A CNN: input (height, width, depth), convolution and pooling layers, then dense layers by neurons."""

    input_shape: tuple[int, int, int]
    features: tuple[FeatureLayer, ...]
    dense: tuple[int, ...]


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a layer: seconds of one minibatch and bytes of working memory."""

    name: str
    seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Choice:
    """algorithms: one name per layer; seconds: of one minibatch; memory_bytes: working memory used."""

    algorithms: tuple[str, ...]
    seconds: float
    memory_bytes: float


@dataclass(frozen=True)
class Answer:
    """A number and the sentence that says why."""

    count: int
    reason: str


def feature_shapes(network: ConvNet, *, literal: bool = False) -> list[Shape]:
    """Equation 1: (height, width, depth) of the input and of every feature map. Raises SizingError."""
    shapes: list[Shape] = [network.input_shape]
    for number, layer in enumerate(network.features, start=1):
        height, width, depth = shapes[-1]
        sides = []
        for side in (height, width):
            steps = (side - layer.filter_size + 2 * layer.padding) / layer.stride
            sides.append(steps + 1 if literal else math.floor(steps) + 1)
        if min(sides) < 1:
            raise SizingError(
                f"layer {number}: a filter of {layer.filter_size} does not fit in {height} x {width} with "
                f"padding {layer.padding}"
            )
        shapes.append((sides[0], sides[1], layer.filters or depth))
    return shapes


def feature_map_bytes(network: ConvNet, minibatch: int, *, literal: bool = False) -> float:
    """Equation 2, M_FM: the input and every feature map of a minibatch."""
    cells = sum(h * w * d for h, w, d in feature_shapes(network, literal=literal))
    return cells * _samples(minibatch) * FLOAT_BYTES


def convolution_parameter_bytes(network: ConvNet, *, literal: bool = False) -> float:
    """Equation 3, M_MP: weights and biases of the convolutions with their gradients."""
    total = 0.0
    depth: float = network.input_shape[2]
    for layer in network.features:
        if layer.filters:
            across = layer.filters if literal else depth
            total += (layer.filter_size**2 * across * layer.filters + layer.filters) * COPIES
            depth = layer.filters
    return total * FLOAT_BYTES


def classifier_bytes(network: ConvNet, minibatch: int, *, literal: bool = False) -> float:
    """Equation 4, M_C: outputs, weights and biases of the dense layers."""
    if not network.dense:
        return 0.0
    inner = sum(a * b for a, b in zip(network.dense, network.dense[1:], strict=False))
    outputs = sum(network.dense)
    if literal:
        return (outputs + (inner + len(network.dense) - 1) * COPIES) * FLOAT_BYTES
    height, width, depth = feature_shapes(network)[-1]
    weights = height * width * depth * network.dense[0] + inner + outputs
    return (outputs * _samples(minibatch) + weights * COPIES) * FLOAT_BYTES


def memory_left_bytes(
    gpu_memory_bytes: float, network: ConvNet, minibatch: int, *, literal: bool = False
) -> float:
    """Equation 5, M_bound: the bytes left for the algorithms' working memory; negative if it does not fit."""
    return (
        gpu_memory_bytes
        - feature_map_bytes(network, minibatch, literal=literal)
        - convolution_parameter_bytes(network, literal=literal)
        - classifier_bytes(network, minibatch, literal=literal)
    )


def gemm_bytes(before: Shape, after: Shape, minibatch: int) -> float:
    """Bytes that a convolution by matrix multiplication touches: its input and its output."""
    return minibatch * (math.prod(before) + math.prod(after)) * FLOAT_BYTES


def fft_bytes(before: Shape, after: Shape, minibatch: int) -> float:
    """Bytes that one by FFT touches: input, filters and output in the frequency domain, n (n + 1) numbers per map
    of side n (Mathieu et al. 2013); filters are padded to the input's size."""
    height, width, depth_in = before
    maps = minibatch * depth_in + depth_in * after[2] + minibatch * after[2]
    return height * (width + 1) * maps * FLOAT_BYTES


def choose_algorithms(layers: Sequence[Sequence[Algorithm]], memory_bytes: float) -> Choice | None:
    """Equation 6, exactly: an algorithm per layer, least seconds within the memory; None if nothing fits.

    A dynamic program over the layers that keeps, of all partial choices, those that no other beats in both
    time and memory. Of equally fast choices the one with less memory.
    """
    frontier: list[tuple[float, float, tuple[str, ...]]] = [(0.0, 0.0, ())]
    for options in layers:
        grown = sorted(
            (used + a.memory_bytes, seconds + a.seconds, (*names, a.name))
            for used, seconds, names in frontier
            for a in options
            if used + a.memory_bytes <= memory_bytes
        )
        frontier = []
        for candidate in grown:
            if not frontier or candidate[1] < frontier[-1][1]:
                frontier.append(candidate)
    if not frontier or memory_bytes < 0:
        return None
    used, seconds, names = frontier[-1]
    return Choice(names, seconds, used)


def epoch_seconds(choice: Choice, samples: int, minibatch: int) -> float:
    """Equation 6 gives the time of one minibatch; an epoch has ceil(samples / minibatch) of them."""
    return math.ceil(samples / _samples(minibatch)) * choice.seconds


def best_minibatch(samples: int, choices: Mapping[int, Choice | None]) -> Answer:
    """The minibatch with the shortest epoch among candidates (None: does not fit). Raises SizingError."""
    times = {
        size: epoch_seconds(choice, samples, size) for size, choice in choices.items() if choice is not None
    }
    if not times:
        smallest = min(choices, default=0)
        raise SizingError(
            f"no candidate fits in the GPU's memory, the smallest minibatch ({smallest}) included: take a "
            "smaller one, or a GPU with more memory"
        )
    best = min(times, key=lambda size: (times[size], size))
    chosen = choices[best]
    assert chosen is not None
    dropped = sorted(size for size, choice in choices.items() if choice is None)
    reason = (
        f"an epoch of {samples} samples takes {times[best]:.4g} s at {best} ({chosen.seconds:.4g} s per "
        f"minibatch with {', '.join(chosen.algorithms)})"
    )
    others = ", ".join(f"{size}: {times[size]:.4g} s" for size in sorted(times) if size != best)
    reason += f"; others: {others}" if others else ""
    reason += f"; too large for the memory: {', '.join(map(str, dropped))}" if dropped else ""
    return Answer(best, reason)


def efficiency(gpus: int, overhead_ratio: float | Fraction) -> float:
    """Lemma 3.1: alpha = (1 + R_O) / (1 + G R_O)."""
    r = _ratio(overhead_ratio)
    return float((1 + r) / (1 + gpus * r))


def speedup(gpus: int, overhead_ratio: float | Fraction) -> float:
    """alpha G over one GPU."""
    r = _ratio(overhead_ratio)
    return float(gpus * (1 + r) / (1 + gpus * r))


def gpus_for_speedup(wanted: float | Fraction, overhead_ratio: float | Fraction) -> Answer:
    """Lemma 3.1 solved for G: the fewest GPUs for a speedup, in exact arithmetic.

    alpha G = G (1 + R) / (1 + G R) >= s  <=>  G (1 + R - s R) >= s. Raises SizingError where 1 + R <= s R.
    """
    s, r = exact(wanted), _ratio(overhead_ratio)
    if s < 1:
        raise SizingError(f"a speedup must be 1 or more, found {wanted}")
    room = 1 + r - s * r
    if room <= 0:
        raise SizingError(
            f"a speedup of {float(s):g} cannot be reached with an overhead of {float(r):.3g} of the computing: "
            f"however many GPUs, it stays below 1 + 1/R = {float(1 + 1 / r):.4g}; hide more of the overhead"
        )
    gpus = math.ceil(s / room)
    reason = f"{gpus} GPUs give {speedup(gpus, r):.3g}x at {efficiency(gpus, r):.0%} efficiency"
    if gpus > 1:
        reason += f", {gpus - 1} give {speedup(gpus - 1, r):.3g}x"
    return Answer(gpus, reason)


def parameter_servers(
    parameter_bytes: float,
    workers: int,
    server_bytes_per_s: float,
    compute_s: float,
    *,
    worker_bytes_per_s: float | None = None,
) -> Answer:
    """Lemma 3.2: N_ps = ceil(2 S_p N_w / (B_ps T_C)), and its second condition 2 S_p <= B T_C.

    worker_bytes_per_s: a worker's own link, by default a server's. No number of servers cures that one.
    Raises SizingError.
    """
    values = {
        "parameter_bytes": parameter_bytes,
        "workers": workers,
        "server_bytes_per_s": server_bytes_per_s,
        "compute_s": compute_s,
        "worker_bytes_per_s": server_bytes_per_s if worker_bytes_per_s is None else worker_bytes_per_s,
    }
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise SizingError(f"{name} must be positive, found {value}")
    size, link, seconds = map(exact, (parameter_bytes, server_bytes_per_s, compute_s))
    moved = 2 * size * exact(workers)
    servers = math.ceil(moved / (link * seconds))
    reason = (
        f"{workers} workers pull and push {float(moved) / 1e6:.4g} MB per round of {compute_s:g} s, "
        f"a server moves {float(link * seconds) / 1e6:.4g} MB in that time"
    )
    own = link if worker_bytes_per_s is None else exact(worker_bytes_per_s)
    if 2 * size > own * seconds:
        reason += (
            f"; but a worker's own link needs {float(2 * size / own):.3g} s for its 2 x "
            f"{float(size) / 1e6:.4g} MB, longer than the computing: no number of servers hides that; take a "
            f"larger minibatch (at least {float(2 * size / own):.3g} s of computing) or a faster link"
        )
    return Answer(servers, reason)


def exact(value: float | Fraction) -> Fraction:
    """A decimal as it was written: 0.2 is 1/5, not the float next to it."""
    if isinstance(value, Fraction):
        return value
    if not math.isfinite(value):
        raise SizingError(f"expected a number, found {value}")
    return Fraction(str(value))  # numbers of numpy, too, whose repr says their type


def _ratio(value: float | Fraction) -> Fraction:
    ratio = exact(value)
    if ratio < 0:
        raise SizingError(f"an overhead ratio must be 0 or more, found {value}")
    return ratio


def _samples(minibatch: int) -> int:
    if minibatch < 1:
        raise SizingError(f"a minibatch must have at least one sample, found {minibatch}")
    return minibatch
