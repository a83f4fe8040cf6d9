"""Products with few classes are those of BLAS, for any sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.apps.few_classes import MOST_CLASSES, add_gradient, logits_of
from tests.thorough import examples


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(
    classes=st.integers(1, 13) | st.just(MOST_CLASSES + 1),
    items=st.integers(0, 13),
    features=st.integers(1, 70),
    dtype=st.sampled_from(["f4", "f8"]),
    seed=st.integers(0, 1000),
)
def test_products(classes: int, items: int, features: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, p, start = (
        rng.normal(size=shape).astype(dtype)
        for shape in ((classes, features), (classes, items), (classes, features))
    )
    x = rng.normal(size=(items + 3, features)).astype(dtype)[1 : items + 1]
    tolerance = 1e-4 if dtype == "f4" else 1e-12
    logits = logits_of(weights, x)
    assert logits.flags.c_contiguous or classes > MOST_CLASSES
    np.testing.assert_allclose(logits, weights @ x.T, rtol=tolerance, atol=tolerance)
    gradient = start.copy()
    add_gradient(gradient, p, x)
    np.testing.assert_allclose(gradient, start + p @ x, rtol=tolerance, atol=tolerance)
    assert np.array_equal(logits, logits_of(weights, x)), "the same bits every time"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(value: float) -> None:
    x = np.ones((5, 9), np.float32)
    x[3, 4] = value
    logits = logits_of(np.ones((6, 9), np.float32), x)
    assert (np.isfinite(logits) == (np.arange(5) != 3)).all()
