"""The tree of sums: the same bits for every assignment of units and every order of arrival."""

from copy import deepcopy

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.core.parameters.fold import Contribution, Fold, running_sum, tree_sum
from agileml.core.parameters.layout import Block, Dense, Sparse
from straggler.coverage import members, span
from tests.agileml.core.parameters.dealt import deal
from tests.thorough import examples

EXAMPLES = settings(deadline=None, derandomize=True, max_examples=examples(150))
ROWS, COLUMNS = 6, 2
SPECIAL = np.array([0.0, -0.0, np.inf, 1e30, 1e-30, 1.0, -1.0, 3e38], np.float32)


@st.composite
def blocks(draw: st.DrawFn, sparse: bool) -> Block | None:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    if draw(st.integers(0, 4)) == 0:
        return None
    rows = np.sort(rng.permutation(ROWS)[: rng.integers(1, ROWS + 1)]).astype(np.int32)
    size = (len(rows), COLUMNS) if sparse else (ROWS * COLUMNS,)
    values = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 6, size)).astype(np.float32)
    at = rng.random(size) < 0.15
    values[at] = rng.choice(SPECIAL, at.sum())
    return Sparse(rows, values) if sparse else Dense(values)


@st.composite
def clocks(draw: st.DrawFn) -> list[Contribution]:
    """One contribution per unit: a dense table and two sparse ones, each of which may be missing."""
    kinds = (False, True, True)
    return [
        Contribution(
            tuple(draw(blocks(sparse)) for sparse in kinds), draw(st.floats(0, 1e6)), draw(st.integers(0, 9))
        )
        for _ in range(1 << draw(st.integers(0, 4)))
    ]


def plain(units: list[Contribution]) -> Contribution:
    """The tree by recursion, with row dictionaries: slow and obvious."""
    if len(units) == 1:
        return units[0]
    half = len(units) // 2
    left, right = plain(units[:half]), plain(units[half:])
    return Contribution(
        tuple(add(a, b) for a, b in zip(left.blocks, right.blocks, strict=True)),
        left.loss + right.loss,
        left.examples + right.examples,
    )


def add(a: Block | None, b: Block | None) -> Block | None:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, Dense):
        assert isinstance(b, Dense)
        return Dense(a.values + b.values)
    assert isinstance(a, Sparse)
    assert isinstance(b, Sparse)
    found = {int(row): values for row, values in zip(a.rows, a.values, strict=True)}
    for row, values in zip(b.rows, b.values, strict=True):
        found[int(row)] = found[int(row)] + values if int(row) in found else values
    rows = sorted(found)
    return Sparse(np.array(rows, np.int32), np.array([found[row] for row in rows], np.float32))


def bits(total: Contribution) -> list[object]:
    """Everything about it; nan (of inf - inf) is nan whatever its payload."""

    def of(values: np.ndarray) -> bytes:
        return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()

    found: list[object] = [total.loss, total.examples]
    for block in total.blocks:
        if isinstance(block, Sparse):
            found.append((block.rows.tolist(), of(block.values)))
        else:
            found.append(None if block is None else of(block.values))
    return found


@EXAMPLES
@given(clocks(), st.data())
@np.errstate(invalid="ignore", over="ignore")
def test_every_assignment_and_order_has_the_bits_of_the_plain_tree(
    units: list[Contribution], data: st.DataObject
) -> None:
    expected = bits(plain(units))
    fold = Fold(deterministic=True)
    bundles = data.draw(st.permutations(deal(data, 0, len(units))))
    sums = {bundle: tree_sum(deepcopy(units[u]) for u in members(bundle)) for bundle in bundles}
    before = {bundle: bits(found) for bundle, found in sums.items()}
    from_afar = data.draw(st.sets(st.sampled_from(bundles)))
    moved_after = data.draw(st.integers(0, len(bundles)))
    for number, bundle in enumerate(bundles):
        if number == moved_after:  # to another server, in the middle of the clock
            left_behind, fold = fold, Fold.restored(fold.copied(), deterministic=True)
            assert left_behind.counted == fold.counted
        if bundle in from_afar:  # a copy that nobody else has: it may be added into
            fold.add(bundle, deepcopy(sums[bundle]), given=True)
        else:
            fold.add(bundle, sums[bundle])
    assert fold.counted == span(0, len(units))
    assert sorted(fold.bundles) == sorted(bundles)
    assert bits(fold.total()) == expected
    # What was handed in is still whole: a worker may have to send it again.
    assert {bundle: bits(found) for bundle, found in sums.items()} == before


@EXAMPLES
@given(clocks(), st.data())
@np.errstate(invalid="ignore", over="ignore")
def test_a_copy_does_not_change_when_the_original_goes_on(
    units: list[Contribution], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(units))))
    copied_after = data.draw(st.integers(0, len(units)))
    fold = Fold(deterministic=True)
    is_given = data.draw(st.booleans())
    for unit in order[:copied_after]:
        fold.add(1 << unit, deepcopy(units[unit]), given=is_given)
    copy = fold.copied()
    before = [bits(total) for total in copy.totals]
    for unit in order[copied_after:]:
        fold.add(1 << unit, deepcopy(units[unit]), given=is_given)
    assert [bits(total) for total in copy.totals] == before
    assert bits(fold.total()) == bits(plain(units))


@EXAMPLES
@given(clocks(), st.data())
@np.errstate(invalid="ignore", over="ignore")
def test_without_determinism_any_sets_add_up_once(units: list[Contribution], data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(units), max_size=len(units)))
    fold = Fold(deterministic=False)
    for owner in sorted(set(owners)):
        mine = [u for u, o in enumerate(owners) if o == owner]
        fold.add(sum(1 << u for u in mine), running_sum(deepcopy(units[u]) for u in mine))
    total, expected = fold.total(), plain(units)
    assert total.examples == expected.examples
    for found, wanted, parts in zip(
        total.blocks, expected.blocks, zip(*(u.blocks for u in units), strict=True), strict=True
    ):
        assert (found is None) == (wanted is None)
        if found is None or wanted is None:
            continue
        if isinstance(found, Sparse) and isinstance(wanted, Sparse):
            assert found.rows.tolist() == wanted.rows.tolist()
        sizes = [np.abs(p.values[np.isfinite(p.values)]).max(initial=0) for p in parts if p is not None]
        if sum(map(float, sizes)) < 1e37 and np.isfinite(wanted.values).all():
            np.testing.assert_allclose(found.values, wanted.values, atol=1e-5 * max(sizes))
