"""Dynamic loss scaling: the number that the losses of a clock are multiplied with before backward, and how it follows
overflows.

float16 has no numbers below 6e-8 and none above 65504, so backward computes with gradients that are larger than they
are. A worker divides them again before they are added up; a gradient that is not finite then says that the scale
was too large. The decision is the clock's: one unit's overflow is in the sum, so no parameter takes a step. The rule is
that of torch.amp.GradScaler (Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2).

Every partition holds the present scale in a block of its own, and decides by itself: all of them know of the same
sum whether it is finite. So cuts, checkpoints and reads have the scale as they have parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from agileml.application import Array, LossScaleRule, Table, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.gradient_norm import clip_scale
from agileml.core.parameters.layout import ALIGNMENT, Dense
from agileml.core.parameters.step_terms import StepTerms

LOSS_SCALE = "loss_scale"  # the table; each partition has its first numbers


class ScaleChange(Enum):
    """The scale's change in a clock."""

    NONE = "none"
    GREW = "grew"
    SHRANK = "shrank"  # and the clock took no step


@dataclass(frozen=True)
class LossScale:
    """The scale of the next clock. good_clocks: since it changed last; skipped: clocks without a step, of all; change:
    by the clock before."""

    scale: float
    good_clocks: int = 0
    skipped: int = 0
    change: ScaleChange = ScaleChange.NONE

    def as_block(self) -> Array:
        """A partition's block, float64."""
        block = np.zeros(ALIGNMENT)
        block[:4] = self.scale, self.good_clocks, self.skipped, list(ScaleChange).index(self.change)
        return block

    @classmethod
    def of(cls, block: Array) -> LossScale:
        """The state in a block, or in the whole table, in which all partitions have the same."""
        scale, good_clocks, skipped, change = block.reshape(-1)[:4].tolist()
        return cls(scale, int(good_clocks), int(skipped), list(ScaleChange)[int(change)])


def after_clock(state: LossScale, rule: LossScaleRule, *, is_finite: bool) -> LossScale:
    """The state after a clock whose summed gradient is finite or not. The scale is a float32 that never becomes
    infinite, as GradScaler has it."""
    if not is_finite:
        scale = float(np.float32(state.scale * rule.backoff))
        return LossScale(scale, 0, state.skipped + 1, ScaleChange.SHRANK)
    if state.good_clocks + 1 < rule.interval:
        return replace(state, good_clocks=state.good_clocks + 1, change=ScaleChange.NONE)
    with np.errstate(over="ignore"):
        scale = float(np.float32(state.scale * rule.growth))
    if math.isinf(scale):
        return LossScale(state.scale, 0, state.skipped)
    return LossScale(scale, 0, state.skipped, ScaleChange.GREW)


def reason(state: LossScale) -> str:
    """One sentence: why the scale is what it is after a clock."""
    match state.change:
        case ScaleChange.SHRANK:
            return (
                f"a gradient was not finite, so the clock took no step; the loss scale is {state.scale:g} now"
            )
        case ScaleChange.GREW:
            return f"the gradients of many clocks in a row were finite; the loss scale is {state.scale:g} now"
    return f"the loss scale is {state.scale:g} after {state.good_clocks} finite clocks in a row"


def with_loss_scale(
    tables: Sequence[Table], rule: LossScaleRule | None, partitions: int
) -> tuple[Table, ...]:
    """The tables of an application, and the one of the scale behind them where it has a rule. It lies where the
    parameters do."""
    if rule is None:
        return tuple(tables)
    is_resident = any(table.resident for table in tables)
    scale = Table(
        LOSS_SCALE, 1, ALIGNMENT * partitions, "float64", update=Update.LOSS_SCALE, resident=is_resident
    )
    return (*tables, scale)


def initial_table(table: Table, rule: LossScaleRule) -> Array:
    """The table of the scale before clock 0."""
    return np.tile(LossScale(rule.initial).as_block(), table.columns // ALIGNMENT).reshape(1, -1)


@dataclass(frozen=True)
class ClockSum:
    """The sum of a clock as a partition applies it, and the terms of the step along its gradients."""

    total: Contribution
    terms: StepTerms


def clock_sum(
    total: Contribution,
    tables: Sequence[Table],
    blocks: Sequence[Array],
    *,
    rule: LossScaleRule | None,
    limit: float | None,
    norm: float | None,
) -> ClockSum:
    """The sum of a clock, with the scale of its gradient that follows from the norm of the whole gradient.

    limit: of the norm. norm: None where the job does not ask for it. With a rule the updates include the next loss
    scale, and no gradients if the norm is not finite.
    """
    factor = 1.0 if limit is None or norm is None else clip_scale(norm, limit)
    index = scale_index(tables)
    if rule is None or norm is None or index is None:
        return ClockSum(total, StepTerms(factor))
    before = LossScale.of(blocks[index])
    is_finite = math.isfinite(norm)
    kept = [
        update if is_finite or table.update is not Update.GRADIENT else None
        for table, update in zip(tables, total.blocks, strict=True)
    ]
    kept[index] = Dense(after_clock(before, rule, is_finite=is_finite).as_block())
    terms = StepTerms(factor if is_finite else 1.0, before.skipped)
    return ClockSum(replace(total, blocks=tuple(kept)), terms)


def scale_index(tables: Sequence[Table]) -> int | None:
    """The place of the table of scales; None where the job has none."""
    return next((i for i, table in enumerate(tables) if table.update is Update.LOSS_SCALE), None)
