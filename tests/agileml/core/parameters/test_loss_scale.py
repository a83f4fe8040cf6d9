"""The scale of the losses: the rule of torch's GradScaler, and a clock that no partition steps when one overflows."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from agileml.application import LossScaleRule, Table, Update
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Dense, Layout
from agileml.core.parameters.loss_scale import (
    LOSS_SCALE,
    LossScale,
    ScaleChange,
    after_clock,
    clock_sum,
    initial_table,
    reason,
    with_loss_scale,
)


def in_torch(rule: LossScaleRule, finite: list[bool]) -> list[tuple[float, int, int]]:
    """(scale, good clocks, steps taken) of a GradScaler after each step whose gradients are finite or not."""
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=rule.initial,
        growth_factor=rule.growth,
        backoff_factor=rule.backoff,
        growth_interval=rule.interval,
    )
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    steps, found = 0, []
    optimizer.register_step_post_hook(lambda *_: steps_taken.append(1))
    steps_taken: list[int] = []
    scaler.scale(torch.ones(()))
    for is_finite in finite:
        parameter.grad = torch.tensor([1.0, 1.0 if is_finite else np.inf])
        scaler.step(optimizer)
        scaler.update()
        state: dict[str, Any] = scaler.state_dict()
        steps = len(steps_taken)
        found.append((state["scale"], state["_growth_tracker"], steps))
    return found


@given(
    initial=st.sampled_from([1.0, 3.0, 65536.0, 2.0**100, 2.0**126]),
    growth=st.sampled_from([2.0, 1.5, 2.0**20]),
    backoff=st.sampled_from([0.5, 0.3, 2.0**-20]),
    interval=st.integers(1, 5),
    finite=st.lists(st.booleans(), max_size=30),
)
@example(2.0**126, 2.0, 0.5, 1, [True] * 6)  # a float32 is infinite after the second
@example(65536.0, 2.0, 0.5, 2000, [True, False, True, False])
def test_it_is_that_of_a_grad_scaler(
    initial: float, growth: float, backoff: float, interval: int, finite: list[bool]
) -> None:
    rule = LossScaleRule(initial, growth, backoff, interval)
    state = LossScale(rule.initial)
    for clock, (is_finite, theirs) in enumerate(zip(finite, in_torch(rule, finite), strict=True), 1):
        before, state = state, after_clock(state, rule, is_finite=is_finite)
        assert (state.scale, state.good_clocks, clock - state.skipped) == theirs
        change = ScaleChange.NONE
        if not is_finite:
            change = ScaleChange.SHRANK
        elif state.scale > before.scale:
            change = ScaleChange.GREW
        assert state.change is change
        assert LossScale.of(state.as_block()) == state


def test_the_usual_numbers_are_torchs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = torch.amp.GradScaler("cpu")
    ours = LossScaleRule()
    assert ours.initial == theirs.state_dict()["scale"] == 65536
    assert ours.growth == theirs.get_growth_factor()
    assert ours.backoff == theirs.get_backoff_factor()
    assert ours.interval == theirs.get_growth_interval() == 2000


TABLES = (Table("w", 1, 40), Table("means", 1, 16, update=Update.STEP))
RULE = LossScaleRule(initial=8.0, interval=2)


@pytest.mark.parametrize("gathers", [False, True])
def test_every_partition_has_the_scale(gathers: bool) -> None:
    tables = with_loss_scale(TABLES, RULE, 3)
    layout = Layout(tables, 3, gathers=gathers)
    values = {t.name: np.zeros((t.rows, t.columns), t.dtype) for t in TABLES}
    values[LOSS_SCALE] = initial_table(tables[-1], RULE)
    parts = [layout.blocks(values, partition) for partition in range(3)]
    assert [LossScale.of(part[-1]) for part in parts] == [LossScale(8.0)] * 3
    assert layout.whole(parts)[LOSS_SCALE].shape == (1, 16), "that of one, whatever the partitions"
    assert with_loss_scale(TABLES, None, 3) == TABLES


def test_a_clock_that_overflows_takes_no_step_and_counts_as_none() -> None:
    tables = with_loss_scale(TABLES, RULE, 1)
    total = Contribution((Dense(np.ones(40, np.float32)), Dense(np.ones(16, np.float32)), None), 1.0, 2)
    scale = LossScale(8.0, 1, 5).as_block()
    blocks = [np.zeros(40, np.float32), np.zeros(16, np.float32), scale]
    good = clock_sum(total, tables, blocks, rule=RULE, limit=2.0, norm=4.0)
    assert good.total.blocks[:2] == total.blocks[:2] and good.terms.skipped == 5
    assert good.terms.scale == pytest.approx(0.5)
    assert LossScale.of(good.total.blocks[2].values) == LossScale(16.0, 0, 5, ScaleChange.GREW)  # type: ignore[union-attr]
    for norm in (float("inf"), float("nan")):
        bad = clock_sum(total, tables, blocks, rule=RULE, limit=2.0, norm=norm)
        assert bad.total.blocks[0] is None, "no step along a gradient that is not finite"
        assert bad.total.blocks[1] == total.blocks[1], "forward has changed the running means"
        after = LossScale.of(bad.total.blocks[2].values)  # type: ignore[union-attr]
        assert after == LossScale(4.0, 0, 6, ScaleChange.SHRANK)
        assert "took no step; the loss scale is 4 now" in reason(after)
