"""Several clocks as one line of a long log."""

import math

import pytest

from agileml.events.run import ClockDone
from agileml.events.sums import ClocksDone
from agileml.runs.thinning import Thinning


@pytest.mark.parametrize(
    ("losses", "examples", "mean"),
    [
        ([4.0, 2.0, 3.0], [30, 10, 40], 3.25),
        ([4.0, 2.0, 3.0], [0, 0, 0], 3.0),  # an application that counts no examples
        ([4.0, 2.0], [0, 8], 2.0),
        ([math.inf, 4.0, math.nan, 1.0], [8, 8, 8, 8], 3.25),  # clocks of float16 that were skipped
    ],
)
def test_a_line_of_several_clocks_has_their_mean_loss(
    losses: list[float], examples: list[int], mean: float
) -> None:
    pairs = enumerate(zip(losses, examples, strict=True))
    thinning = Thinning()
    for at, (loss, count) in pairs:
        assert not thinning.take(700.0 + 0.1 * at, ClockDone(at + 1, loss, count, 0.1))
    (line,) = thinning.rest()
    assert isinstance(line.event, ClocksDone)
    assert line.event.loss == pytest.approx(mean)
    assert line.event.examples == sum(examples)
