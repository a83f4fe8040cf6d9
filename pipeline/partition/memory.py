"""The memory of a stage (thesis 5.3.3 "Memory Overhead"; the released optimizer's limit per worker).

A replica holds one version of its weights and one set of activations for each minibatch in flight at it,
besides gradients and the optimizer's state:

    bytes = d (weights + activations) + gradients + optimizer state,
    d = ceil(workers in this and later stages / replicas of this stage)

A stage that recomputes keeps its input per minibatch in flight instead of all its activations, runs its
forward a second time in the backward, and needs the activations of that one minibatch while it does.

With a flush after each group of minibatches a replica has one version of its weights whatever is in flight, no more
minibatches than the group has, and beside the newest gradient one sum for each level of the tree that adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = TypeVar("Number", float, Floats)


class Recompute(Enum):
    """The stages that run their forward twice to save memory."""

    NEVER = "never"
    WHERE_NEEDED = "auto"
    ALWAYS = "always"


@dataclass(frozen=True)
class MemoryRules:
    """limit_bytes: of each device (None = no limit). optimizer_factor: bytes of optimizer state per byte of
    weights (SGD 0, momentum 1, Adam 2). group: minibatches between two flushes (None = there is no flush)."""

    limit_bytes: float | None = None
    optimizer_factor: float = 1.0
    recompute: Recompute = Recompute.NEVER
    group: int | None = None

    def held(self, d: int) -> tuple[int, int]:
        """(minibatches, copies of its weights' size) that a replica holds where d are in flight without a flush."""
        if self.group is None:
            return d, d
        return min(d, self.group), 1 + (self.group - 1).bit_length()


def in_flight(workers_behind: int, replicas: int) -> int:
    """d: minibatches in flight at one replica of a stage; `workers_behind` are those in later stages."""
    return 1 + -(-workers_behind // replicas)


def stage_bytes(
    held: tuple[int, int], parameter_bytes: Number, activation_bytes: Number, optimizer_factor: float
) -> Number:
    """Bytes on one replica that keeps its activations. held: minibatches, and copies of its weights' size."""
    minibatches, copies = held
    return minibatches * activation_bytes + (copies + 1.0 + optimizer_factor) * parameter_bytes


def recomputing_stage_bytes(
    held: tuple[int, int],
    parameter_bytes: Number,
    activation_bytes: Number,
    input_bytes: Number,
    optimizer_factor: float,
) -> Number:
    """Bytes on one replica that keeps its input and computes its activations again."""
    return stage_bytes(held, parameter_bytes, input_bytes, optimizer_factor) + activation_bytes


def leaf_seconds(
    rules: MemoryRules,
    d: int,
    compute_s: Floats,
    forward_s: Floats,
    parameter_bytes: Floats,
    activation_bytes: Floats,
    input_bytes: Floats,
) -> Floats:
    """The seconds of `leaf_choice` for many ranges at once."""
    limit = np.inf if rules.limit_bytes is None else rules.limit_bytes
    held = rules.held(d)
    keep = stage_bytes(held, parameter_bytes, activation_bytes, rules.optimizer_factor)
    plain = np.where(keep <= limit, compute_s, np.inf)
    if rules.recompute is Recompute.NEVER:
        return plain
    need = recomputing_stage_bytes(
        held, parameter_bytes, activation_bytes, input_bytes, rules.optimizer_factor
    )
    again = np.where(need <= limit, compute_s + forward_s, np.inf)
    if rules.recompute is Recompute.ALWAYS:
        return again
    return np.where(np.isfinite(plain), plain, again)


def leaf_choice(
    rules: MemoryRules,
    d: int,
    compute_s: float,
    forward_s: float,
    parameter_bytes: float,
    activation_bytes: float,
    input_bytes: float,
) -> tuple[float, float, bool]:
    """(seconds, bytes, recomputes) of a stage on one device; infinite seconds where it does not fit."""
    held = rules.held(d)
    keep = stage_bytes(held, parameter_bytes, activation_bytes, rules.optimizer_factor)
    limit = float("inf") if rules.limit_bytes is None else rules.limit_bytes
    if rules.recompute is not Recompute.ALWAYS and keep <= limit:
        return compute_s, keep, False
    if rules.recompute is Recompute.NEVER:
        return float("inf"), keep, False
    again = recomputing_stage_bytes(
        held, parameter_bytes, activation_bytes, input_bytes, rules.optimizer_factor
    )
    return (compute_s + forward_s if again <= limit else float("inf")), again, True
