"""The model is worth what it catches: rules of the protocol, broken one at a time."""

from __future__ import annotations

import pytest

from tests.model.mutants import MUTANTS, broken, try_mutant

TEN = (
    "worker obeys acks of any epoch",
    "a clock counts as complete early",
    "no version before the newest",
    "the version before does not move",
    "sums in the order of arrival",
    "staged copies are authoritative",
    "boundaries are not kept",
    "survivors are not rolled back",
    "momentum is not in the cut",
    "ASP counts twice",
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_source(mutant):
    assert broken(mutant)


def test_there_are_enough_of_them_that_no_run_can_miss():
    assert len([mutant for mutant in MUTANTS if not mutant.safe]) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_the_model_catches(name):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    verdict = try_mutant(mutant)
    print(f"\n{name}: seed {verdict.seed}, {verdict.how[:120]}")
    assert verdict.seed is not None, mutant.why
