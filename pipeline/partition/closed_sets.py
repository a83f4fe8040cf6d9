"""The sets of layers that a pipeline may have finished before a cut.

A cut splits the layers into those before and those after; nothing before may need something after. So what
stands before is closed under predecessors (a down-set of the graph; its last layers are an antichain), and
the stages between two cuts are differences of such sets. In a chain these are the prefixes; in a graph with
branches there are more, and the best cuts are often not prefixes of any one order of the layers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.profile.layers import Profile


@dataclass(frozen=True)
class ClosedSets:
    """States 0..S-1, smallest first; state 0 is before the first stage, the last state is the whole model.

    masks: layers of each state as bits. compute_s, forward_s, parameter_bytes, activation_bytes (float64 [S]):
    sums over the layers of a state. cut_bytes (float64 [S]): what crosses the cut behind a state: the output
    of every layer inside that something outside takes, each counted once. within (bool [S, S]): a < b as sets.
    is_chain: the states follow one another. is_all: False where only prefixes of one order were taken.
    """

    masks: tuple[int, ...]
    compute_s: npt.NDArray[np.float64]
    forward_s: npt.NDArray[np.float64]
    parameter_bytes: npt.NDArray[np.float64]
    activation_bytes: npt.NDArray[np.float64]
    cut_bytes: npt.NDArray[np.float64]
    within: npt.NDArray[np.bool_]
    is_chain: bool
    is_all: bool

    def __len__(self) -> int:
        return len(self.masks)

    def layers(self, first: int, last: int) -> tuple[int, ...]:
        """The layers between two states, ascending (with the free ones of state 0 in the first stage)."""
        mask = self.masks[last] & ~(self.masks[first] if first else 0)
        return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def closed_sets(profile: Profile, max_states: int) -> ClosedSets:
    """All closed sets of a profile; only the prefixes of its order if there are more than `max_states`."""
    masks = _enumerate(profile, max_states)
    if masks is None:
        return prefixes(profile)
    return _tabulate(profile, masks, is_all=True)


def prefixes(profile: Profile) -> ClosedSets:
    """The prefixes of the profile's topological order alone."""
    free = _free_layers(profile)
    predecessors = _predecessor_masks(profile)
    mask = _with_free(0, free, predecessors)
    masks = [mask]
    for layer in profile.topological_order():
        if not mask >> layer & 1:
            mask = _with_free(mask | 1 << layer, free, predecessors)
            masks.append(mask)
    chain = _tabulate(profile, masks, is_all=False)
    return chain


def _free_layers(profile: Profile) -> list[int]:
    """Layers without time, weights or output bytes, in order.

    Wherever such a layer stands costs nothing by itself, and as early as its inputs allow is never worse:
    its own output crosses cuts for free, while its inputs need not wait for it. So they are no choice.
    """
    return [
        i
        for i in profile.topological_order()
        if profile.layers[i].compute_s == 0
        and profile.layers[i].activation_bytes == 0
        and profile.layers[i].parameter_bytes == 0
    ]


def _predecessor_masks(profile: Profile) -> list[int]:
    masks = [0] * len(profile.layers)
    for a, b in profile.edges:
        masks[b] |= 1 << a
    return masks


def _with_free(mask: int, free: list[int], predecessors: list[int]) -> int:
    for layer in free:
        if predecessors[layer] & ~mask == 0:
            mask |= 1 << layer
    return mask


def _enumerate(profile: Profile, max_states: int) -> list[int] | None:
    """Every closed set, smallest first; None when there are more than `max_states`."""
    free = _free_layers(profile)
    predecessors = _predecessor_masks(profile)
    start = _with_free(0, free, predecessors)
    costly = [i for i in profile.topological_order() if i not in set(free)]
    after: list[set[int]] = [set() for _ in profile.layers]
    for a, b in profile.edges:
        after[a].add(b)
    for layer in reversed(profile.topological_order()):
        # A free layer hands its successors on to its inputs.
        after[layer] = {c for b in after[layer] for c in (after[b] if b in set(free) else {b})}
    seen = {start}
    ready = tuple(layer for layer in costly if predecessors[layer] & ~start == 0)
    queue = deque([(start, ready)])
    while queue:
        mask, ready = queue.popleft()
        for layer in ready:
            bigger = _with_free(mask | 1 << layer, free, predecessors)
            if bigger in seen:
                continue
            if len(seen) >= max_states:
                return None
            seen.add(bigger)
            fresh = [b for b in after[layer] if predecessors[b] & ~bigger == 0 and b not in ready]
            queue.append((bigger, (*(b for b in ready if b != layer), *fresh)))
    return sorted(seen, key=lambda mask: (mask.bit_count(), mask))


def _tabulate(profile: Profile, masks: list[int], *, is_all: bool) -> ClosedSets:
    count = len(profile.layers)
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), width), axis=1, bitorder="little")
    inside = bits[:, :count].astype(bool)
    crosses = np.zeros_like(inside)
    for a, b in profile.edges:
        crosses[:, a] |= inside[:, a] & ~inside[:, b]

    def total(values: list[float]) -> npt.NDArray[np.float64]:
        # Cumulated in the order of the layers, so that a bigger set never has a smaller sum by rounding.
        return np.cumsum(inside * np.array(values), axis=1)[:, -1]

    sizes = inside.sum(axis=1)
    # float32 matrix products are fast and exact here: counts of layers are far below 2^24.
    common = inside.astype(np.float32) @ inside.astype(np.float32).T
    within = (common == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
    states = len(masks)
    return ClosedSets(
        masks=tuple(masks),
        compute_s=total([layer.compute_s for layer in profile.layers]),
        forward_s=total([layer.forward_s for layer in profile.layers]),
        parameter_bytes=total([layer.parameter_bytes for layer in profile.layers]),
        activation_bytes=total([layer.activation_bytes for layer in profile.layers]),
        cut_bytes=(crosses * np.array([layer.activation_bytes for layer in profile.layers])).sum(axis=1),
        within=within,
        is_chain=bool(within.sum() == states * (states - 1) // 2),
        is_all=is_all,
    )
